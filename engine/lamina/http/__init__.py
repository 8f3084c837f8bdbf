"""The engine behind an OpenAI-compatible HTTP API. Its modules are imported one by one: most need torch."""
