"""The KV cache by tokens: which slots of the arena belong to which request, and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina._native import Slab, SlabFullError

if TYPE_CHECKING:
    from lamina.kv.arena import Arena, ArenaError, ArenaShape

__all__ = ["Arena", "ArenaError", "ArenaShape", "Slab", "SlabFullError"]


def __getattr__(name: str) -> Any:
    """The arena needs torch, the slab does not."""
    if name in ("Arena", "ArenaError", "ArenaShape"):
        from lamina.kv import arena

        return getattr(arena, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
