"""The engine behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.http.driver import Driver, News, Ticket
    from lamina.http.server import Serving
    from lamina.http.service import Limits, Service
    from lamina.http.tokenizer import Tokenizer, TokenizerError

_MODULES = {
    "Driver": "driver",
    "Limits": "service",
    "News": "driver",
    "Service": "service",
    "Serving": "server",
    "Ticket": "driver",
    "Tokenizer": "tokenizer",
    "TokenizerError": "tokenizer",
}
__all__ = [
    "Driver",
    "Limits",
    "News",
    "Service",
    "Serving",
    "Ticket",
    "Tokenizer",
    "TokenizerError",
]


def __getattr__(name: str) -> Any:
    """The server needs torch; its address does not."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"lamina.http.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
