"""Sweeps: values of varied flags, stored points, and their table."""
