"""Formulas fitted to measurements, for `costs import` and `calibrate`."""
