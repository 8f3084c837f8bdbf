"""What marks a directory as a Run, and which version of the format it is in."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laminabench.util import safe_parse
from laminabench.util.errors import UserError

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
        found = safe_parse.json_value(safe_parse.content(directory / file))
    except (OSError, ValueError, UserError):
        return None
    return found if isinstance(found, dict) and found.get("format") == format_ else None


def sha256_of(path: Path) -> str:
    """Hash a table's file, so that one changed bit is an error and not another result."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum, so that one flipped bit is an error and not another result."""
    return {**facts, "crc32": _sum_of(facts)}


def unsealed(found: object) -> dict[str, Any] | None:
    """Return what was sealed, or was written before there were checksums; None if it has changed."""
    if not isinstance(found, dict):
        return None
    facts = {name: value for name, value in found.items() if name != "crc32"}
    return facts if found.get("crc32", _sum_of(facts)) == _sum_of(facts) else None


def _sum_of(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, ensure_ascii=True).encode())
