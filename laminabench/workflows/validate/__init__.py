"""Validation of the model against measurements."""
