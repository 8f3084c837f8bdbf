"""Figures and tables of the attention-offloading paper (v1)."""
