"""What marks a directory as a Run, and which version of the format it is in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FORMAT = "laminabench-run"
# The newest there is. A change that older readers would misread is a new version; a Run that has nothing of
# it is still written as the first, for them to read.
# 2: tables of what a client saw, requests that failed, Runs that ended early.
FORMAT_VERSION = 2
FIRST_VERSION = 1

MANIFEST = "run.json"


def manifest_in(directory: Path, format_: str, file: str = MANIFEST) -> dict[str, Any] | None:
    """run.json, or another file, of a directory in this format, whatever its version; None of any other."""
    try:
        found = json.loads((directory / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == format_ else None


def sha256_of(path: Path) -> str:
    """What the manifest says of each table, so that one changed bit is an error and not another result."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
