"""Sensitivity of a comparison to each of its inputs, and the values at which it flips."""
