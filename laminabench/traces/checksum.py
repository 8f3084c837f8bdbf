"""The sha256 of a trace file, and a note of it beside a download whose publisher gives none."""

from __future__ import annotations

import hashlib
from pathlib import Path

from laminabench.atomic import replacing


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record(path: Path, sha256: str) -> None:
    """Note the sum beside the file, as sha256sum writes it."""
    with replacing(_beside(path)) as temporary:
        temporary.write_text(f"{sha256}  {path.name}\n", encoding="utf-8")


def recorded(path: Path) -> str | None:
    """The sum that was noted when the file came, if one was."""
    try:
        words = _beside(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words else None


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
