"""Folders written by commands (Runs, sweeps, plans, validations): the JSON that marks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from laminabench.runs.format import unsealed
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

Document = TypeVar("Document", bound=msgspec.Struct)


class Kind(NamedTuple):
    """A kind of document: its name, its file, and the newest version that can be read."""

    name: str  # "plan"
    writer: str  # the command that writes it again
    file: str
    format: str
    version: int
    # Documents from before `format` existed have one of these keys.
    unmarked: tuple[str, ...] = ()

    def marks(self, document: Any) -> bool:
        """Return whether a document is of this kind, whatever its version."""
        if not isinstance(document, dict):
            return False
        if "format" not in document:
            return any(key in document for key in self.unmarked)
        return bool(document["format"] == self.format)

    def damaged(self, path: Path, why: str) -> UserError:
        return UserError("kept-damaged", f"{path} is damaged: {why}; `{self.writer}` writes it again")

    def another(self, directory: Path, why: str) -> UserError:
        return UserError("kept-another", f"{directory} is not a {self.name}: {why}")

    def newer(self, directory: Path, version: int) -> UserError:
        return UserError(
            "kept-format-newer",
            f"{directory} was written in format {version} and this laminabench reads up to {self.version}; "
            "upgrade laminabench",
        )

    def is_in(self, directory: Path) -> bool:
        try:
            return self.marks(safe_parse.json_typed(safe_parse.content(directory / self.file)))
        except (OSError, msgspec.DecodeError, UserError):
            return False


def facts_in(directory: Path, kind: Kind) -> dict[str, Any]:
    """Return what a document of this kind in a directory was sealed with."""
    path = directory / kind.file
    try:
        document = safe_parse.json_typed(safe_parse.content(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise kind.another(directory, f"it has no {kind.file}") from error
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise kind.damaged(path, f"it is not JSON ({error})") from error
    if not kind.marks(document):
        raise kind.another(directory, f'{kind.file} does not say "format": "{kind.format}"')
    version = document.get("format_version")
    if isinstance(version, int) and version > kind.version:
        raise kind.newer(directory, version)
    facts = unsealed(document)
    if facts is None:
        why = "it is not what its checksum is of (if you changed it on purpose, remove crc32)"
        raise kind.damaged(path, why)
    return facts


def read(directory: Path, kind: Kind, schema: type[Document]) -> Document:
    """Return the document of this kind in a directory, completely checked."""
    try:
        return msgspec.convert(facts_in(directory, kind), schema)
    except msgspec.ValidationError as error:
        raise kind.damaged(directory / kind.file, str(error)) from error
