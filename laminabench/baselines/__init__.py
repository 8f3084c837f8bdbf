"""Systems of others that Lamina is compared with: how the environment of each is built, and what is in it.

What runs in such an environment is in the folder `baselines/` of the tree (below `_tree` where laminabench is
installed): it imports the standard library and the system itself, and nothing of laminabench.
"""
