"""The engine behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamina.http.driver import Driver, Ticket, Update
    from lamina.http.server import Serving
    from lamina.http.service import Limits, Service
    from lamina.http.tokenizer import Tokenizer, TokenizerError

_MODULES = {
    "Driver": "driver",
    "Limits": "service",
    "Service": "service",
    "Serving": "server",
    "Ticket": "driver",
    "Tokenizer": "tokenizer",
    "TokenizerError": "tokenizer",
    "Update": "driver",
}
__all__ = [
    "Driver",
    "Limits",
    "Service",
    "Serving",
    "Ticket",
    "Tokenizer",
    "TokenizerError",
    "Update",
]


def __getattr__(name: str) -> Any:
    """The server needs torch; its address does not."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"lamina.http.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
