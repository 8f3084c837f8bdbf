"""How a figure becomes a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.atomic import replacing
from laminabench.errors import UserError
from laminabench.runs.replace import require_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What keeps a file's date out of it, so that equal figures are equal files.
_UNDATED = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}


def check_target(target: Path) -> None:
    """UserError for a picture that could not be written, before anything is computed for it."""
    if target.suffix.lower() not in _UNDATED:
        raise UserError(
            "picture-suffix", f"cannot draw {target}: give it one of the suffixes {', '.join(_UNDATED)}"
        )
    if target.exists() and not target.is_file():
        raise UserError("file-not-writable", f"cannot write {target}: it is there and not a file")
    require_writable(target)


def drawn(picture: Callable[[], Figure], target: Path) -> None:
    """Write it into `target`, in the format that its suffix names."""
    check_target(target)
    import matplotlib as mpl

    suffix = target.suffix.lower()
    # Text stays text, so that a picture can be searched.
    with (
        mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "laminabench", "font.family": "DejaVu Sans"}),
        replacing(target) as temporary,
    ):
        picture().savefig(temporary, format=suffix[1:], dpi=130, metadata=_UNDATED[suffix])
