"""A live replay that is killed at random moments and resumed, on a disk that fills up: each token once.

Each cycle is a `laminabench replay --backend live`, or its --resume, with workers of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.disk import memory
from experiments.prefork import Process, Warm
from experiments.processes import eventually, shared_memory
from experiments.tally import Tally
from laminabench.runs.read import read_run
from laminabench.util.errors import UserError

# Interruptions of one replay; after that many it runs to its end.
CYCLES = 20
REQUESTS, LONGEST_PROMPT, LONGEST_ANSWER = 60, 40, 60
LIVE = (
    *("replay", "--trace", "t.csv", "--backend", "live", "--model", "llama-tiny", "--prefill", "model"),
    # In float32, tokens that are computed again in another batch are the same.
    *("--dtype", "fp32", "--oversubscribe", "--max-num-seqs", "8", "--kv-tokens", "2000", "--seed", "5"),
    *("-q", "--json"),
)
LONGEST_S = 180.0
_GRACE_S = 20.0
_LOOK_S = 0.002
# Exit statuses by signal. Before it handles SIGTERM, a process sends no status.
_ENDED = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (143, -signal.SIGKILL),
    signal.SIGINT: (130,),
}
_SAME = ("requests", "tokens_generated", "tokens_sha256", "preemptions")


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The result of a replay that was not interrupted."""

    facts: dict[str, Any]
    journal_bytes: int
    took_s: float


def resumes(seeds: Sequence[int], *, cycles: int = CYCLES) -> Tally:
    """Run replays with this many interruptions each; a case is a replay, and `tried` counts interruptions."""
    tally = Tally("resumes", facts={"full_disks": 0.0})
    with tempfile.TemporaryDirectory() as place, Warm(Path(place)) as warm:
        expected = undisturbed(warm, Path(place))
        for seed in seeds:
            _session(tally, warm, expected, seed, cycles)
    return tally


def undisturbed(warm: Warm, place: Path) -> Undisturbed:
    """Return the result of the second undisturbed replay: the first one has to load the model."""
    write_trace(place)
    for name in ("first", "whole"):
        began = time.perf_counter()
        with (place / "out").open("w+b") as out, (place / "err").open("w+b") as errors:
            running = warm.start([*LIVE, "--out", name], place, errors, out)
            size, status = 0, None
            while status is None:
                with contextlib.suppress(FileNotFoundError):
                    size = max(size, (place / f"{name}.journal").stat().st_size)
                status = running.wait(_LOOK_S)
        if status:
            raise RuntimeError(f"a replay that nothing disturbs ended with {status}: {_last(place / 'err')}")
        took_s = time.perf_counter() - began
    return Undisturbed(json.loads((place / "out").read_bytes()), size, took_s)


def write_trace(folder: Path) -> None:
    drawn = random.Random(27)
    rows = [
        f"{number},{drawn.randint(4, LONGEST_PROMPT)},{drawn.randint(8, LONGEST_ANSWER)}\n"
        for number in range(REQUESTS)
    ]
    (folder / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))


def interrupted(
    warm: Warm,
    folder: Path,
    expected: Undisturbed,
    drawn: random.Random,
    cycles: int,
    room: Room | None = None,
) -> tuple[str | None, str, int]:
    """Return what was wrong with a replay of this many interruptions, if anything, and their number."""
    room = room or Room(folder, None)
    done = 0
    try:
        for _ in range(cycles):
            done += 1
            if _cycle(warm, folder, drawn, expected, room):
                break
        return *_ended(warm, folder, expected, room), done
    except _WrongError as error:
        return error.kind, str(error), done


def _session(tally: Tally, warm: Warm, expected: Undisturbed, seed: int, cycles: int) -> None:
    drawn = random.Random(seed)
    was = shared_memory()
    with memory() as folder, _small(folder, drawn, expected) as room:
        write_trace(folder)
        kind, what, done = interrupted(warm, folder, expected, drawn, cycles, room)
        tally.facts["full_disks"] = max(tally.facts["full_disks"], room.filled)
        if kind is None and not eventually(lambda: shared_memory() - was <= {folder.name}, _GRACE_S):
            kind, what = "leaked", f"/dev/shm: {sorted(shared_memory() - was)}"
    tally.add(kind, f"after {done} interruptions", seed, what)
    for _ in range(done - 1):
        tally.add(None, "", seed)


class _WrongError(Exception):
    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


@dataclass(slots=True)
class Room:
    """The size of the file system, which only root can set; None is unlimited."""

    folder: Path
    size: int | None
    filled: int = 0

    def grow(self) -> None:
        """Double the size, as a user would make room."""
        assert self.size is not None
        self.filled += 1
        self.size *= 2
        subprocess.run(["mount", "-o", f"remount,size={self.size}", self.folder], check=True)


@contextlib.contextmanager
def _small(folder: Path, drawn: random.Random, expected: Undisturbed) -> Iterator[Room]:
    """Mount, as root, a separate file system that fills up before the replay is done."""
    if os.geteuid():
        yield Room(folder, None)
        return
    size = 4096 * drawn.randint(4, 8 + expected.journal_bytes // 4096)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "laminabench", folder],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:  # root of a container that may not
        yield Room(folder, None)
        return
    try:
        yield Room(folder, size)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _cycle(warm: Warm, folder: Path, drawn: random.Random, expected: Undisturbed, room: Room) -> bool:
    """Start or resume, and end it at a random moment; return whether it was done before that."""
    how = drawn.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (8, 1, 1))[0]
    early = drawn.random() < 0.2
    wait_s = drawn.uniform(0, expected.took_s / 2)
    journal = folder / "kept.journal"
    more = drawn.uniform(0, expected.journal_bytes / 10)
    if (folder / "kept").exists():
        return True
    with _begun(warm, folder) as running:
        until, size, status = time.monotonic() + LONGEST_S, _size(journal), None
        end = time.monotonic() + wait_s if early else until
        while status is None and time.monotonic() < end and (early or _size(journal) < size + more):
            status = running.wait(_LOOK_S)
        if status is None:
            running.kill(how)
            status = running.wait(_GRACE_S)
    if status is None:
        raise _WrongError("crashed", f"{how.name} did not end it in {_GRACE_S:g} s")
    if status == 0:
        return True
    message = _last(folder.parent / f"{folder.name}.err")
    if status == 2 and "No space left" in message and room.size is not None:
        room.grow()
    elif status not in _ENDED[how]:
        raise _WrongError("crashed", f"it ended with {status} after {how.name}: {message}")
    return False


@contextlib.contextmanager
def _begun(warm: Warm, folder: Path) -> Iterator[Process]:
    resumed = (folder / "kept.journal").exists()
    command = ("replay", "--resume", "kept", "-q", "--json") if resumed else (*LIVE, "--out", "kept")
    outside = folder.parent / folder.name  # its output does not fill the disk
    with (
        outside.with_suffix(".out").open("w+b") as out,
        outside.with_suffix(".err").open("w+b") as errors,
        contextlib.closing(warm.start(command, folder, errors, out)) as running,
    ):
        yield running


def _ended(warm: Warm, folder: Path, expected: Undisturbed, room: Room) -> tuple[str | None, str]:
    """Resume undisturbed to the end; return what is wrong, if anything."""
    outside = folder.parent / folder.name
    try:
        while not (folder / "kept").exists():
            with _begun(warm, folder) as running:
                status = running.wait(LONGEST_S)
            message = _last(outside.with_suffix(".err"))
            if status == 2 and "No space left" in message and room.size is not None:
                room.grow()
            elif status != 0:
                return ("crashed" if status else "lost"), f"resumed, it ended with {status}: {message}"
        return _same(folder, expected)
    finally:
        for suffix in (".out", ".err"):
            outside.with_suffix(suffix).unlink(missing_ok=True)


def _same(folder: Path, expected: Undisturbed) -> tuple[str | None, str]:
    try:
        run = read_run(folder / "kept")
    except UserError as error:
        return "lost", str(error)
    summary = msgspec.to_builtins(run.manifest.summary)
    for name in _SAME:
        if summary[name] != expected.facts[name]:
            return "wrong", f"{name} is {summary[name]} instead of {expected.facts[name]}"
    made = int(run.outcome.iterations["size"].sum())
    if made != expected.facts["tokens_generated"]:
        return "wrong", f"{made} tokens in iterations instead of {expected.facts['tokens_generated']}"
    left = {path.name for path in folder.iterdir()} - {"t.csv", "kept", "kept.journal", "kept.live"}
    return ("leaked", f"{sorted(left)}") if left else (None, "")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
