"""Figures and tables of the model-attention-disaggregation paper (v2)."""
