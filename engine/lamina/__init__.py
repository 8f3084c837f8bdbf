"""lamina: the reference engine for LLM decoding with attention split from the model."""
