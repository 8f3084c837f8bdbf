"""Sweeps: the values of flags that are varied, the points that are kept, and the table of all."""
