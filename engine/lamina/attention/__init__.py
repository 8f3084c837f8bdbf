"""Decode attention over index lists: partials of sets of tokens, and what joins them.

The names here are the native ones, which take addresses. `lamina.attention.cpu` wraps them for torch
tensors.
"""

from lamina._native import AttentionWorker, attention_isas, combine

__all__ = ["AttentionWorker", "attention_isas", "combine"]
