"""Any OpenAI-compatible server, over HTTP."""
