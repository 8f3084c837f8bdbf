"""Scripts and style sheets: ours, the report's, plotly's own; their addresses change with their content."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from laminabench.render.report import plotly_script

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_REPORTS = ("report.css", "report.js")


def static(name: str) -> str:
    """The address of a file; a browser may keep what it got there for ever."""
    content = packaged(name)
    assert content is not None, name
    return f"/static/{_digest(content)}/{name}"


@functools.cache
def packaged(name: str) -> bytes | None:
    """A file by its name; None where there is none that may be had."""
    if name == "plotly.js":
        return plotly_script().encode()
    if name not in _names():
        return None
    package = "laminabench.render" if name in _REPORTS else "laminabench.render.view"
    return (resources.files(package) / name).read_bytes()


@functools.cache
def _names() -> frozenset[str]:
    ours = (file.name for file in resources.files("laminabench.render.view").iterdir())
    return frozenset((*_REPORTS, *(name for name in ours if name.endswith(tuple(TYPES)))))


@functools.cache
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
