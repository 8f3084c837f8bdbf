"""Traces: tables of requests, from files, downloads or fitted profiles, ready for a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laminabench.traces.frames import from_frame, load, to_frame
    from laminabench.traces.frames import listed as list  # noqa: A004 - `traces.list()` reads as the command
    from laminabench.traces.table import Trace

__all__ = ["Trace", "from_frame", "list", "load", "to_frame"]


def __getattr__(name: str) -> Any:
    """Import pandas helpers on first use: most of the suite needs no pandas."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from laminabench.traces import frames, table

    return table.Trace if name == "Trace" else getattr(frames, "listed" if name == "list" else name)
