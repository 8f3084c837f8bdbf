"""The traces laminabench knows by name, from the TOML descriptors under traces/; their files and sums."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

import msgspec

from laminabench.util import paths
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

_IMPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RemoteFile(msgspec.Struct, frozen=True):
    """The file upstream: where it is and how to know that it arrived whole."""

    name: str
    url: str
    sha256: str | None = None
    bytes: int | None = None


class Published(msgspec.Struct, frozen=True):
    """Statistics of the trace in its publication or the Lamina paper."""

    source: str
    requests: int
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None


class Entry(msgspec.Struct, frozen=True):
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
    """Return the folder of downloaded files, under their upstream names."""
    return paths.home() / "traces" / "raw"


def imports() -> Path:
    """Return the folder of imported traces, one parquet file a name."""
    return paths.home() / "traces" / "imported"


@cache
def entries() -> dict[str, Entry]:
    return {
        path.stem: msgspec.toml.decode(path.read_bytes(), type=Entry)
        for path in sorted(paths.descriptors().glob("*.toml"))
    }


def find(name: str) -> Entry:
    """Return the entry of that name, or a sentence with the nearest names."""
    try:
        return entries()[name]
    except KeyError:
        raise UserError("trace-unknown", f"no trace is called '{name}'; {nearest(name, entries())}") from None


def imported_path(name: str) -> Path | None:
    """Return the path for an import of this name, whether it exists or not; None for an invalid name."""
    return imports() / f"{name}.parquet" if _IMPORT_NAME.fullmatch(name) else None


def imported_names() -> list[str]:
    """Return the names that `traces import` has stored. A file still being written has another name."""
    return sorted(path.stem for path in imports().glob("*.parquet") if imported_path(path.stem))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record(path: Path, sha256: str) -> None:
    """Write the sum next to the file, in sha256sum's format."""
    with replacing(_checksum_path(path)) as temporary:
        temporary.write_text(f"{sha256}  {path.name}\n", encoding="utf-8")


def recorded(path: Path) -> str | None:
    """Return the sum that was noted when the file came, if one was."""
    try:
        words = _checksum_path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words else None


def _checksum_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
