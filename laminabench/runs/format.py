"""The format of a Run: the manifest that marks a directory, its version, and checksums."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

FORMAT = "laminabench-run"
# The newest version. A change that older readers would misread needs a new one; a Run without such a feature
# is still written as the first, which they can read.
# 2: tables of what a client saw, requests that failed, Runs that ended early.
FORMAT_VERSION = 2
FIRST_VERSION = 1

MANIFEST = "run.json"


def manifest_in(directory: Path, format_: str, file: str = MANIFEST) -> dict[str, Any] | None:
    """Return the manifest of a directory in this format, whatever its version; None for any other."""
    try:
        document = safe_parse.json_value(safe_parse.content(directory / file))
    except (OSError, ValueError, UserError):
        return None
    return document if isinstance(document, dict) and document.get("format") == format_ else None


def sha256_of(path: Path) -> str:
    """Hash a table's file, so that one changed bit is an error and not another result."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(facts: Mapping[str, Any]) -> JsonObject:
    """Add a checksum, so that one flipped bit is an error and not another result."""
    return {**facts, "crc32": _sum_of(facts)}


def unsealed(document: object) -> dict[str, Any] | None:
    """Return what was sealed, or was written before there were checksums; None if it has changed."""
    if not isinstance(document, dict):
        return None
    facts = {name: value for name, value in document.items() if name != "crc32"}
    return facts if document.get("crc32", _sum_of(facts)) == _sum_of(facts) else None


def _sum_of(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, ensure_ascii=True).encode())
