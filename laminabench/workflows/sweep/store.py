"""A sweep's directory: what it is of, and each point from the moment that it is finished."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from laminabench.runs.format import manifest_in, sealed, unsealed
from laminabench.runs.replace import require_replaceable
from laminabench.util import safe_parse
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.json import Json

FORMAT, FORMAT_VERSION = "laminabench sweep", 1
MANIFEST, POINTS = "sweep.json", "points"
# What may differ between two sweeps, as a sentence says it; all of it is in the keys of the points.
_WHAT = {"laminabench": "by laminabench", "vary": "with --vary", "flags": "with the flags"}


def key_of(facts: Mapping[str, Any]) -> str:
    """Return a point's key: the same for the same flags, trace, numbers and version."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class SweepStore:
    """The points of one sweep that are finished, by their keys. `opened` makes one."""

    def __init__(self, directory: Path, keys: Sequence[str]) -> None:
        self.directory = directory
        self.results = {key: result for key in keys if (result := self._read(key)) is not None}

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a point, whatever becomes of the others."""
        # Not forced to the disk, which takes longer than many a point: some may be replayed again.
        with replacing(self._path(key), durable=False) as temporary:
            text = json.dumps(sealed(result), ensure_ascii=False, allow_nan=False)
            temporary.write_text(text, encoding="utf-8")
        self.results[key] = dict(result)

    def forget_failed(self) -> None:
        """Forget failed points, so that they are replayed again."""
        self.results = {key: result for key, result in self.results.items() if "error" not in result}

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Say what the directory is of, and how far it has come."""
        _write_manifest(self.directory, manifest)

    def _path(self, key: str) -> Path:
        return self.directory / POINTS / f"{key}.json"

    def _read(self, key: str) -> dict[str, Json] | None:
        """Return a stored point; None also if damaged, as by a power cut: it is replayed again."""
        try:
            return unsealed(safe_parse.json_value(safe_parse.content(self._path(key))))
        except (OSError, ValueError, UserError):
            return None


@contextlib.contextmanager
def opened(directory: Path, manifest: Mapping[str, Any], keys: Sequence[str]) -> Iterator[SweepStore]:
    """Open the directory for this sweep; raise a UserError if another sweep is in it.

    `manifest["identity"]` is what makes a sweep the one that was begun there.
    """
    check(directory, manifest["identity"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("output-unwritable", f"cannot write {directory}: {error.strerror}") from error
    with _locked(directory):
        # Again: another process may have started one before this lock.
        check(directory, manifest["identity"])
        _write_manifest(directory, manifest)
        yield SweepStore(directory, keys)


def check(directory: Path, identity: Mapping[str, Any]) -> None:
    """Raise a UserError unless the directory is free or has this very sweep, begun or complete."""
    require_replaceable(directory, lambda: _identity_in(directory) is not None, "a sweep")
    was = _identity_in(directory)
    if was is None or was.get("points") == identity["points"]:
        return
    differing = (name for name in _WHAT if was.get(name) != identity.get(name))
    what = next(
        (f"{_WHAT[name]} {_text(was.get(name))}" for name in differing),
        "of a trace, a model or prices that have changed since",
    )
    raise UserError(
        "sweep-another", f"{directory} has another sweep, {what}: name another --out, or remove it"
    )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _identity_in(directory: Path) -> dict[str, Json] | None:
    identity = (manifest_in(directory, FORMAT, MANIFEST) or {}).get("identity")
    return identity if isinstance(identity, dict) else None


def _write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    facts = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest}
    with replacing(directory / MANIFEST) as temporary:
        text = json.dumps(sealed(facts), indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock until the process ends, in whatever way."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError("sweep-in-use", f"{directory} is in use: the sweep still runs") from None
    finally:
        os.close(handle)
