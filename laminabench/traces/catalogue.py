"""The traces laminabench knows by name, read from the TOML descriptors under traces/."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from laminabench import paths
from laminabench.errors import UserError


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The file upstream: where it is and how to know that it arrived whole."""

    name: str
    url: str
    sha256: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What the trace's publisher or the Lamina paper says of it."""

    source: str
    requests: int
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One descriptor: what the trace is, whose it is, and where its data and its profile are."""

    name: str
    description: str
    format: str
    license: str
    citation: str
    homepage: str
    file: RemoteFile
    published: Published | None = None
    tokenizer: str = ""

    @property
    def profile_path(self) -> Path:
        return paths.descriptors() / "profiles" / f"{self.name}.toml"

    @property
    def downloaded_path(self) -> Path:
        return downloads() / self.file.name


def downloads() -> Path:
    """Where fetched files live, under their upstream names."""
    return paths.home() / "traces" / "raw"


def imports() -> Path:
    """Where imported traces live, one parquet file a name."""
    return paths.home() / "traces" / "imported"


@cache
def entries() -> dict[str, Entry]:
    """Every descriptor, by name."""
    return {path.stem: _read(path) for path in sorted(paths.descriptors().glob("*.toml"))}


def find(name: str) -> Entry:
    """The entry of that name, or a sentence with the nearest names."""
    try:
        return entries()[name]
    except KeyError:
        raise UserError(f"no trace is called '{name}'; {nearest(name, entries())}") from None


def imported_names() -> list[str]:
    return sorted(path.stem for path in imports().glob("*.parquet")) if imports().is_dir() else []


def nearest(name: str, known: Any) -> str:
    """The end of an error sentence: the names that were perhaps meant, or all of them."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"


def _read(path: Path) -> Entry:
    fields: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    published = fields.pop("published", None)
    return Entry(
        **{**fields, "file": RemoteFile(**fields["file"])},
        published=Published(**published) if published else None,
    )
