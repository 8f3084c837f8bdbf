"""Documents that people hand each other (JSON, TOML), read within bounds: of their size, depth and numbers.

What is wrong is an OSError or a ValueError, as of a damaged file, whichever way it is wrong.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from laminabench.util.errors import UserError

# Of a Run's manifest, a cost set, a recording: the longest real ones are a hundredth of it.
MOST_BYTES = 32 << 20
# Of measurements of other tools: times of all tokens, tables of all kernels.
RESULTS_BYTES = 1 << 30
_DEEPEST = 50
# A key of so many parts takes Python's parser their number squared.
_LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % _DEEPEST  # noqa: UP031
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# What a small table may come to in memory, and how many times its size a larger one may.
UNPACKED_BYTES = 1 << 30
UNPACKED_TIMES = 1000


def content(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's content; a UserError if it is no file, or larger than plausible."""
    require_file(path)
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UserError(
            "file-too-large", f"{path} has more than {most >> 20} MiB: it is not what it is read as"
        )
    return data


def require_file(path: Path) -> None:
    """Raise a UserError for a path that may never end, such as a pipe, unless the user named it."""
    if path.exists() and not path.is_file() and not path.is_dir() and path.parts[:2] != ("/", "dev"):
        raise UserError("file-is-pipe", f"{path} is a pipe or a device, and no file: it is not read")


def text(path: Path, most: int = MOST_BYTES) -> str:
    """Return a file's text as UTF-8 with Python's line ends; a UnicodeDecodeError if it is not UTF-8."""
    return content(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def toml(text: str) -> dict[str, Any]:
    """Parse TOML; a TOMLDecodeError also if nested too deeply, or for a number of a thousand digits."""
    try:
        if _LONG_KEY.search(text):
            raise RecursionError
        document = tomllib.loads(text)
        if _is_deep(document):
            raise RecursionError
        return document
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except ValueError as error:  # of a number
        raise tomllib.TOMLDecodeError(f"a value is none ({' '.join(str(error).split())[:80]})") from error


def json_value(data: str | bytes) -> Any:
    """Parse JSON; a ValueError also if it is nested too deeply, or has text that cannot be written."""
    try:
        value = json.loads(data)
        if _is_deep(value):
            raise RecursionError
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(data if isinstance(data, str) else data.decode("latin-1")):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a character, a lone surrogate") from None
    return value


def json_typed(data: bytes) -> Any:
    """Parse JSON by msgspec; a DecodeError also if it is nested too deeply."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None


def _is_deep(document: Any) -> bool:
    """Return whether recursion could overflow: dotted keys nest without being nested."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def is_bomb(packed: int, unpacked: int) -> bool:
    """Return whether so few bytes cannot honestly need so much memory."""
    return unpacked > max(UNPACKED_BYTES, UNPACKED_TIMES * packed)
