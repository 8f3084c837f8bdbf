"""Systems that really run: our engine, real vLLM, and servers that are reached over HTTP."""
