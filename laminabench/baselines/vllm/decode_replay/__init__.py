"""A trace decoded by vLLM, prefill stripped out: the order on stdin, what happens on stdout, as JSON lines.

Run by the Python of vLLM's environment, never by laminabench's (`__main__` says how). Nothing here imports
laminabench; only `engine` imports vLLM.
"""
