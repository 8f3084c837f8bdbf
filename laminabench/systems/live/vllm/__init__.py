"""Real vLLM, in an environment of its own."""
