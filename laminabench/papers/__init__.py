"""Figures, tables and claims of the papers, computed again."""
