"""Results of experiments as files to commit: NAME-SEED.json of each, and a table of all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from experiments.tally import Failure, Tally
from laminabench.runs.manifest import Host, host
from laminabench.util import version
from laminabench.util.atomic import make_folder, replacing
from laminabench.util.markdown import table

KINDS = ("lost", "wrong", "leaked", "crashed")
_SEED_BITS = 48  # a seed fits into a JSON number


@dataclass(frozen=True, slots=True)
class Experiment:
    """A fault experiment: what it does, how many cases it has in full, and the function that runs them."""

    purpose: str
    full: int
    run: Callable[[Sequence[int]], Tally]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one experiment with one seed."""

    name: str
    purpose: str = msgspec.field(name="says")
    seed: int
    cases: int
    full: int
    attempts: int = msgspec.field(name="tried")
    survived: int
    lost: int
    wrong: int
    leaked: int
    crashed: int
    facts: dict[str, float]
    failures: list[Failure]
    began: str
    wall_s: float
    versions: list[str]
    host: Host


def seeds(name: str, seed: int, count: int) -> Sequence[int]:
    """Return the seeds of an experiment's cases, consecutive so that every kind of case occurs."""
    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    first = int.from_bytes(digest, "big") % (1 << _SEED_BITS)
    return range(first, first + count)


def run(name: str, experiment: Experiment, seed: int, count: int) -> Summary:
    """Run `count` cases of an experiment."""
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    tally = experiment.run(seeds(name, seed, count))
    return Summary(
        name=name,
        purpose=experiment.purpose,
        seed=seed,
        cases=count,
        full=experiment.full,
        **{field: getattr(tally, field) for field in Tally.__struct_fields__ if field != "name"},
        began=began,
        wall_s=round(time.perf_counter() - clock, 3),
        versions=[version.describe()],
        host=host(),
    )


def write(folder: Path, summary: Summary) -> None:
    """Write an experiment's file, and the table of all experiments in the folder."""
    make_folder(folder)
    with replacing(folder / f"{summary.name}-{summary.seed}.json") as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    with replacing(folder / "summary.md") as temporary:
        temporary.write_text("".join(f"{line}\n" for line in _page(folder)), encoding="utf-8")


def _page(folder: Path) -> Iterator[str]:
    yield "Results of `make torture`; each `.json` has all of them, failures with their seeds."
    yield ""
    titles = ("experiment", ">seed", ">cases", ">tried", ">survived", *(f">{kind}" for kind in KINDS))
    paths = sorted(folder.glob("*-*.json"))
    rows = (_row(msgspec.json.decode(path.read_bytes(), type=Summary)) for path in paths)
    yield from table((*titles, "largest", ">time", "began", "laminabench", "processor"), rows)


def _row(summary: Summary) -> Iterator[str]:
    yield summary.name
    yield str(summary.seed)
    yield f"{summary.cases:,} of {summary.full:,}"
    for name in ("attempts", "survived", *KINDS):
        yield f"{getattr(summary, name):,}"
    yield ", ".join(f"{name} {value:,.4g}" for name, value in summary.facts.items())
    yield f"{summary.wall_s:,.0f} s"
    yield summary.began
    yield "; ".join(summary.versions)
    yield f"{summary.host.cpu}, {summary.host.cores} cores"
