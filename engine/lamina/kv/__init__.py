"""The KV cache by tokens: which slots of the arena belong to which request."""

from lamina._native import Slab, SlabFullError

__all__ = ["Slab", "SlabFullError"]
