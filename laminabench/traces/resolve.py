"""Resolution of `--trace` to a trace: file, import, download, or fitted profile."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from laminabench.requests.replay import ReplayRequest, seconds
from laminabench.traces import catalogue
from laminabench.traces.catalogue import Entry, recorded
from laminabench.traces.formats import load_file
from laminabench.traces.formats.limits import Limits
from laminabench.traces.formats.source import PACKED, SUFFIXES
from laminabench.traces.table import Trace
from laminabench.traces.transform import Transforms
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.paths import expanded
from laminabench.util.progress import Listener
from laminabench.util.suggest import nearest

if TYPE_CHECKING:
    from laminabench.traces.fetch import Progress

# A larger file is worth asking for by name (`traces fetch`), not a side effect of looking at a trace.
AUTOMATIC_BYTES = 64 << 20
# Without a network the profile should answer at once.
AUTOMATIC_TIMEOUT_S = 5.0
# Making more requests than this takes seconds. The first N of a generated trace are not the N that would be
# generated alone (each has the profile's whole mix of lengths), so a smaller profile is always made in full.
MOST_IN_FULL = 1_000_000

# Before a name of the catalogue: its profile, whatever real data is here, so that every machine has the same.
PROFILE = "profile:"

Notice = Callable[[str], None]


def resolve(
    text: str,
    *,
    offline: bool = False,
    requests: int | None = None,
    seed: int = 0,
    notice: Notice = lambda sentence: None,
    progress: Progress = lambda done, total: None,
    limits: Limits | None = None,
) -> Trace:
    """Return the trace named by `text`: a path, an imported name, a catalogue name, or `profile:NAME`.

    `requests` bounds how many are wanted; only a trace generated from a very large profile makes use of it.
    """
    if text.startswith(PROFILE):
        return _from_profile(catalogue.find(text.removeprefix(PROFILE)), requests, seed)
    resolved, why_not = real_trace(text, offline=offline, notice=notice, progress=progress, limits=limits)
    if resolved is not None:
        return resolved
    trace = _from_profile(catalogue.find(text), requests, seed)
    notice(f"{text} is not here ({why_not}): {trace.meta.notes[0]}, {len(trace):,} requests")
    return trace


def real_trace(
    text: str,
    *,
    offline: bool = False,
    notice: Notice = lambda sentence: None,
    progress: Progress = lambda done, total: None,
    limits: Limits | None = None,
) -> tuple[Trace | None, str]:
    """Return the trace from a file; or none, and why there is only a profile of that name."""
    path = expanded(text)
    if path.is_file():
        if path.suffix == ".toml":
            raise UserError(
                "trace-is-a-profile",
                f"{text} is a profile, not a trace; make one with `laminabench traces synth {text} -o FILE`",
            )
        return load_file(path, limits=limits), ""
    imported = catalogue.imported_path(text)
    if imported is not None and imported.is_file():
        return load_file(imported, name=text, limits=limits), ""
    if os.sep in text or path.suffix.lower() in SUFFIXES + PACKED:
        return load_file(path, limits=limits), ""  # which says what is wrong with it
    if text not in catalogue.entries():
        known = [*catalogue.entries(), *catalogue.imported_names()]
        raise UserError("trace-unknown", f"no trace or file is called '{text}'; {nearest(text, known)}")
    entry = catalogue.find(text)
    if trouble := shared_trouble():
        notice(trouble)
    file, why_not = data_file(entry), "--offline"
    if file is None and not offline:
        file, why_not = _downloaded(entry, progress)
    return (None, why_not) if file is None else (_load_entry(entry, file, limits), "")


def data_file(entry: Entry) -> Path | None:
    """Return the entry's real data on this machine: downloaded, or in $LAMINABENCH_TRACES."""
    places = [entry.downloaded_path]
    folder = _shared()
    if folder is not None:
        places.append(folder / entry.file.name)
    return next((place for place in places if place.is_file()), None)


def shared_trouble() -> str | None:
    folder = _shared()
    if folder is None or folder.is_dir():
        return None
    return f"$LAMINABENCH_TRACES is {folder}, which is not a folder"


def _shared() -> Path | None:
    folder = os.environ.get("LAMINABENCH_TRACES")
    return expanded(folder) if folder else None


def _downloaded(entry: Entry, progress: Progress) -> tuple[Path | None, str]:
    """Return the file, or why there is none."""
    # Here, as it brings an HTTP client, TLS and e-mail headers.
    from laminabench.traces.fetch import DownloadError, fetch

    file = entry.file
    # A file of unknown size is tried if its sum is known: the server then says whether it is too large.
    unverifiable = file.bytes is None and file.sha256 is None
    if unverifiable or (file.bytes is not None and file.bytes > AUTOMATIC_BYTES):
        return None, f"`laminabench traces fetch {entry.name}` would download it"
    try:
        path = fetch(
            entry,
            progress=progress,
            attempts=1,
            timeout_s=AUTOMATIC_TIMEOUT_S,
            most_bytes=AUTOMATIC_BYTES,
        )
        return path, ""
    except (DownloadError, CheckFailedError) as error:
        # A failed check is often the log-in page of a network.
        return None, str(error)


def _load_entry(entry: Entry, path: Path, limits: Limits | None) -> Trace:
    trace = load_file(path, format=entry.format, name=entry.name, limits=limits)
    meta = replace(
        trace.meta,
        license=entry.license,
        citation=entry.citation,
        tokenizer=entry.tokenizer,
        origin=entry.file.url,
    )
    noted = recorded(path)
    if entry.file.sha256 and meta.sha256 != entry.file.sha256:
        meta = meta.with_note(f"{path} is not the published file: its sha256 is {meta.sha256}")
    elif entry.file.sha256 is None and noted and noted != meta.sha256:
        meta = meta.with_note(
            f"{path} changed since it was downloaded: its sha256 is {meta.sha256} and was {noted}"
        )
    return replace(trace, meta=meta)


def _from_profile(entry: Entry, requests: int | None, seed: int) -> Trace:
    from laminabench.traces.profile import named_profile
    from laminabench.traces.synth import synthesise

    profile = named_profile(entry.name)
    count = min(requests, profile.requests) if requests and profile.requests > MOST_IN_FULL else None
    trace = synthesise(profile, count, seed)
    return replace(trace, meta=replace(trace.meta, license=entry.license, citation=entry.citation))


def transforms_of(request: ReplayRequest) -> Transforms:
    same = {each.name: getattr(request, each.name) for each in fields(Transforms) if each.name != "window_s"}
    window_s = None if request.window is None else seconds(request.window, "--window")
    return Transforms(window_s, **same)


def load_needed(
    name: str, transforms: Transforms, listener: Listener, *, offline: bool, max_rows: int | None = None
) -> Trace:
    """Load as much of a trace as the transforms can need."""
    with listener.progress(f"loading {name}") as progress:
        trace = resolve(
            name,
            offline=offline,
            requests=transforms.prefix_needed(),
            seed=transforms.seed,
            notice=listener.note,
            progress=progress,
            limits=Limits(max_rows),
        )
    # The notice already says that the trace is generated; the profile's source is for -v and --json.
    for sentence in trace.meta.notes:
        (listener.note if trace.meta.source == "file" else listener.detail)(sentence)
    return trace


def cut(trace: Trace, transforms: Transforms, listener: Listener) -> Trace:
    transformed = transforms.apply(trace)
    for sentence in transformed.meta.notes[len(trace.meta.notes) :]:
        listener.note(sentence)
    return transformed
