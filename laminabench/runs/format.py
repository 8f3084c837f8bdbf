"""What marks a directory as a Run, and which version of the format it is in."""

from __future__ import annotations

import hashlib
from pathlib import Path

FORMAT = "laminabench-run"
# A change that older readers would misread is a new version.
FORMAT_VERSION = 1

MANIFEST = "run.json"


def sha256_of(path: Path) -> str:
    """What the manifest says of each table, so that one changed bit is an error and not another result."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
