"""The catalogue's TOML files, from the package or from a path of the user's, and their entries by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

Table = dict[str, Any]
Entry = TypeVar("Entry")

# Catalogues are short: a wrong name that is near nothing gets all of them.
ALL = 10_000


def packaged(*parts: str) -> Table:
    return packaged_in(__package__, "data", *parts)


def packaged_in(package: str, *parts: str) -> Table:
    """Return a TOML file of one of this project's packages."""
    return tomllib.loads(resources.files(package).joinpath(*parts).read_text(encoding="utf-8"))


def from_path(path: Path) -> Table:
    """Return the parsed TOML file at `path`; a UserError says what is wrong with it."""
    try:
        return safe_parse.toml(safe_parse.text(path))
    except OSError as error:
        raise UserError("catalogue-file-unreadable", f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("catalogue-file-not-toml", f"{path}: not valid TOML: {error}") from error


def pick(kind: str, name: str, entries: Mapping[str, Entry], *, hint: str = "") -> Entry:
    """Return `entries[name]`, ignoring case; else a UserError with a suggestion."""
    key = name.strip().lower()
    if key in entries:
        return entries[key]
    meant = nearest(key, sorted(entries), ALL)
    end = "" if meant.endswith("?") or hint.startswith("(") else "."
    raise UserError("catalogue-unknown-name", f"no {kind} named {name!r}; {meant}{hint and f'{end} {hint}'}")
