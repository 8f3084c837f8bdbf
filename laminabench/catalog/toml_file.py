"""Read the TOML data of the catalogue, from the package or from a path of the user's."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from laminabench.errors import UserError

Table = dict[str, Any]


def packaged(*parts: str) -> Table:
    """The parsed TOML file at data/<parts> inside this package."""
    return tomllib.loads(resources.files(__package__).joinpath("data", *parts).read_text(encoding="utf-8"))


def from_path(path: Path) -> Table:
    """The parsed TOML file at `path`; a UserError says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("catalogue-file-unreadable", f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("catalogue-file-not-toml", f"{path}: not valid TOML: {error}") from error
