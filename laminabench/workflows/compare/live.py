"""Live replays that alternate, round after round, and the comparison of their Runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from laminabench.catalog.deployment import AUTO
from laminabench.requests.compare import ROUNDS, CompareRequest
from laminabench.requests.replay import CUTS, FIELDS, NOT_OF_MANY, ReplayRequest
from laminabench.runs.replace import require_writable
from laminabench.systems.registry import prepare
from laminabench.util.errors import CheckFailedError, Interrupted, UserError
from laminabench.util.progress import Listener, Once
from laminabench.workflows.compare.rounds import compare_runs
from laminabench.workflows.compare.sides import SideBySide
from laminabench.workflows.replay import in_turns, run
from laminabench.workflows.replay.run import free_directory


@dataclass(frozen=True, slots=True)
class Entry:
    """One --live: its text, without secrets, and its request."""

    text: str
    request: ReplayRequest

    @contextlib.contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name the entry in the errors of the block."""
        try:
            yield
        except (UserError, CheckFailedError) as error:
            raise error.within(f"--live {self.text!r}") from error


def compare_live(
    request: CompareRequest, given: Sequence[tuple[str, Mapping[str, Any]]], listener: Listener
) -> tuple[SideBySide, list[str], list[Path]]:
    """Replay all entries in every round and compare their Runs; also notes, and the Runs.

    `given` has the text and the fields of each entry.
    """
    for flag, values in (("--trace", request.trace), ("--model", request.model)):
        if len(values) > 1 or not (values or flag == "--model"):
            raise UserError(
                "compare-live-one-workload", f"--live takes one {flag}, and {len(values)} are given"
            )
    entries = [_entry(text, own, request) for text, own in given]
    _require_different(entries)
    base = _place(request.base, len(entries))
    name = f"compare-{Path(request.trace[0]).name}"
    directory = Path(request.directory) if request.directory else free_directory(name)
    require_new(directory)
    # All that can be refused is refused before the first replay begins.
    for entry in entries:
        with entry.naming_errors():
            entry.request.require_valid()
            prepare(entry.request)
    rounds, once = request.rounds or ROUNDS, Once(listener)
    paths: list[list[Path]] = [[] for _ in entries]
    for turn, place in in_turns(len(entries), rounds):
        entry, path = entries[place], directory / f"{turn + 1}-{place + 1}"
        listener.note(f"round {turn + 1} of {rounds}: {entry.text}")
        with entry.naming_errors():
            result = run(structs.replace(entry.request, directory=str(path)), listener=once)
            if result.replayed.interrupted:
                raise Interrupted(f"the Runs so far are in {directory}")
            result.require_sound()
        if entry.request.deployment == AUTO:  # once for all rounds
            settled = structs.replace(entry.request, deployment=result.prepared.request.deployment)
            entries[place] = replace(entry, request=settled)
        paths[place].append(path)
    all_paths = [path for each in paths for path in each]
    compared, doubts = compare_runs(
        all_paths, base=paths[base][0], slo_tbt_ms=request.slo_tbt_ms, slo_ttft_ms=request.slo_ttft_ms
    )
    return compared, [f"Runs are in {directory}", *doubts], all_paths


def require_new(directory: Path) -> None:
    """Raise a UserError unless Runs of this comparison would be alone in the folder."""
    if directory.exists() and any(directory.iterdir()):
        raise UserError(
            "output-exists",
            f"{directory} is not empty, and earlier Runs are no part of this comparison: name another --out",
        )
    require_writable(directory / "1")


def _entry(text: str, own: Mapping[str, Any], request: CompareRequest) -> Entry:
    """Combine an entry's fields with the comparison's."""
    for name in own:
        field = FIELDS[name]
        if field.key in NOT_OF_MANY or name == "trace" or field.option.group == CUTS:
            why = NOT_OF_MANY.get(field.key, "all sides have the comparison's")
            raise UserError(
                "compare-live-flag", f"--live {text!r}: {field.flag} does not belong to one side: {why}"
            )
    if own.get("backend", "live") != "live":
        raise UserError(
            "compare-live-modelled", f"--live {text!r}: what is modelled takes no turns; leave --backend out"
        )
    common: dict[str, object] = {"trace": request.trace[0], "backend": "live", **request.limits()}
    if request.model:
        common["model"] = request.model[0]
    if "mode" in own:
        common["concurrency"] = None  # it belongs to the comparison's mode
    return Entry(text, structs.replace(request.replay, **{**common, **own}))


def _require_different(entries: Sequence[Entry]) -> None:
    """Raise a UserError where rounds of two entries would be taken for rounds of one."""
    if len(entries) < 2:
        raise UserError("compare-too-few", "one --live cannot be compared; give at least two")
    for place, entry in enumerate(entries):
        for other in entries[:place]:
            if other.request == entry.request:
                raise UserError(
                    "compare-live-same",
                    f"--live {entry.text!r} is the same as --live {other.text!r}; vary a flag",
                )


def _place(base: str | None, entries: int) -> int:
    """Return the place of the base: the first, or the one of that number."""
    if base is None:
        return 0
    if not base.isdecimal() or not 1 <= int(base) <= entries:
        raise UserError("compare-base-unknown", f"--base {base}: of --live give its number, 1 to {entries}")
    return int(base) - 1
