"""The KV cache by tokens: the slots of each request, and the arena that stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina._native import Slab, SlabFullError

if TYPE_CHECKING:
    from lamina.kv.arena import MOST_OVERCOMMIT, Arena, ArenaError, ArenaShape, Faults, capacity

__all__ = [
    "MOST_OVERCOMMIT",
    "Arena",
    "ArenaError",
    "ArenaShape",
    "Faults",
    "Slab",
    "SlabFullError",
    "capacity",
]


def __getattr__(name: str) -> Any:
    """Import the arena on first use: it needs torch, the slab does not."""
    if name in __all__:
        from lamina.kv import arena

        return getattr(arena, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
