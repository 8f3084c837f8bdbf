"""Replaying a trace against any OpenAI-compatible server, over HTTP."""
