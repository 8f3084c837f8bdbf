"""A trace decoded by vLLM, prefill stripped out: the order on stdin, the events on stdout, as lines of JSON.

Run by the Python of vLLM's environment, never by laminabench's (`__main__` says how). Nothing here imports
laminabench; only `engine` imports vLLM.
"""
