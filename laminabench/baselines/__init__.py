"""Systems of others that Lamina is compared with: an environment of its own for each, and what runs in it.

What a folder here holds (`vllm/`) is run by the Python of that environment: it imports the standard library
and the system itself, and nothing of laminabench.
"""
