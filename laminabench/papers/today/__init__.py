"""Figures of no paper: whether splitting attention pays for the models of today."""
