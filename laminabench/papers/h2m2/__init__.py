"""Figures and tables of the H2M2 paper."""
