"""lamina: the reference engine for LLM decoding with attention split from the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina import threads as threads  # before anything of lamina imports torch

if TYPE_CHECKING:
    from lamina.cluster import Layout, Machine
    from lamina.serve import Engine, Fleet, Sampling

__all__ = ["Engine", "Fleet", "Layout", "Machine", "Sampling"]


def __getattr__(name: str) -> Any:
    """Import the engine on first use: it needs torch, while parts such as the slab do not."""
    if name in __all__:
        from lamina import cluster, serve

        return getattr(cluster if name in ("Layout", "Machine") else serve, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
