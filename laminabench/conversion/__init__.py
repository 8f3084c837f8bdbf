"""Conversions by the engine's converter: the model, the report of it, its matrix products by short names."""
