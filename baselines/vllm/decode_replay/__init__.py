"""A trace replayed by vLLM, prefill stripped out or not: the order on stdin, events on stdout, lines of JSON.

Run by the Python of vLLM's environment, never by laminabench's (`__main__` says how). Nothing here imports
laminabench; only `engine` imports vLLM.
"""
