"""From what a person writes after --trace to a trace: file, import, download, or fitted profile."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from laminabench.errors import UserError
from laminabench.traces import catalogue
from laminabench.traces.catalogue import Entry
from laminabench.traces.fetch import DownloadError, Progress, fetch
from laminabench.traces.formats import load_file
from laminabench.traces.profile_file import read_profile
from laminabench.traces.synth import synthesise
from laminabench.traces.table import Trace

# A larger file is worth asking for by name (`traces fetch`), not a side effect of looking at a trace.
AUTOMATIC_BYTES = 64 << 20
# Without a network the profile should answer at once.
AUTOMATIC_TIMEOUT_S = 5.0

Notice = Callable[[str], None]


def resolve(
    text: str,
    *,
    offline: bool = False,
    requests: int | None = None,
    seed: int = 0,
    notice: Notice = lambda sentence: None,
    progress: Progress = lambda done, total: None,
) -> Trace:
    """The trace that `text` means: a path, an imported name, or a name of the catalogue.

    `requests` bounds how many are wanted; only a generated trace makes use of it.
    """
    path = Path(text).expanduser()
    if path.is_file() or _looks_like_a_path(text):
        return load_file(path)
    imported = catalogue.imports() / f"{text}.parquet"
    if imported.is_file():
        return load_file(imported, name=text)
    if text not in catalogue.entries():
        known = [*catalogue.entries(), *catalogue.imported_names()]
        raise UserError(f"no trace or file is called '{text}'; {catalogue.nearest(text, known)}")
    entry = catalogue.find(text)
    found = data_file(entry)
    why_not = "--offline"
    if found is None and not offline:
        found, why_not = _downloaded(entry, progress)
    if found is not None:
        return _load_entry(entry, found)
    trace = _from_profile(entry, requests, seed)
    notice(f"{text} is not here ({why_not}): {trace.meta.notes[0]}, {len(trace):,} requests")
    return trace


def data_file(entry: Entry) -> Path | None:
    """The entry's real data on this machine: downloaded, or in $LAMINABENCH_TRACES."""
    places = [entry.downloaded_path]
    folder = os.environ.get("LAMINABENCH_TRACES")
    if folder:
        places.append(Path(folder).expanduser() / entry.file.name)
    return next((place for place in places if place.is_file()), None)


def _looks_like_a_path(text: str) -> bool:
    return os.sep in text or Path(text).suffix.lower() in {
        ".csv",
        ".jsonl",
        ".json",
        ".parquet",
        ".gz",
        ".zst",
    }


def _downloaded(entry: Entry, progress: Progress) -> tuple[Path | None, str]:
    """The file, or why there is none."""
    size = entry.file.bytes
    if size is None or size > AUTOMATIC_BYTES:
        return None, f"`laminabench traces fetch {entry.name}` would download it"
    try:
        return fetch(entry, progress=progress, timeout_s=AUTOMATIC_TIMEOUT_S), ""
    except DownloadError as error:
        return None, str(error)


def _load_entry(entry: Entry, path: Path) -> Trace:
    trace = load_file(path, format=entry.format, name=entry.name)
    meta = replace(
        trace.meta,
        license=entry.license,
        citation=entry.citation,
        tokenizer=entry.tokenizer,
        origin=entry.file.url,
    )
    if entry.file.sha256 and trace.meta.sha256 != entry.file.sha256:
        meta = meta.with_note(f"{path} is not the published file: its sha256 is {trace.meta.sha256}")
    return replace(trace, meta=meta)


def _from_profile(entry: Entry, requests: int | None, seed: int) -> Trace:
    profile = read_profile(entry.profile_path)
    if requests is not None:
        requests = min(requests, profile.requests)
    trace = synthesise(profile, requests, seed)
    return replace(trace, meta=replace(trace.meta, license=entry.license, citation=entry.citation))
