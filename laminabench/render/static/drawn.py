"""Files of figures."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.runs.replace import require_writable
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130
# Metadata without a date, so that equal figures are equal files.
_UNDATED = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}


def check_target(target: Path) -> None:
    """Raise UserError if the picture could not be written, before anything is computed."""
    if target.suffix.lower() not in _UNDATED:
        raise UserError(
            "picture-suffix", f"cannot draw {target}: give it one of the suffixes {', '.join(_UNDATED)}"
        )
    if target.exists() and not target.is_file():
        raise UserError("file-not-writable", f"cannot write {target}: it exists and is not a file")
    require_writable(target)


def drawn(picture: Callable[[], Figure], target: Path) -> None:
    """Write a figure into `target`, in the format of its suffix."""
    check_target(target)
    suffix = target.suffix.lower()
    with _as_text(), replacing(target) as temporary:
        picture().savefig(temporary, format=suffix[1:], dpi=DPI, metadata=_UNDATED[suffix])


def png_of(picture: Callable[[], Figure]) -> bytes:
    """Return the figure as PNG, to show it without a file."""
    written = io.BytesIO()
    with _as_text():
        picture().savefig(written, format="png", dpi=DPI)
    return written.getvalue()


def _as_text() -> AbstractContextManager[None]:
    """Save text as text, so that pictures can be searched."""
    import matplotlib as mpl

    return mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "laminabench", "font.family": "DejaVu Sans"}
    )
