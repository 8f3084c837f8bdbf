"""Scenes, one for each kind of file: the state before, the write, and the reader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.disk import mark
from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.journal import Journal, journal_path
from laminabench.runs.read import read_run
from laminabench.runs.write import write_run
from laminabench.traces.formats import load_file
from laminabench.traces.profile import named_profile, read_profile, write_profile
from laminabench.traces.store import save
from laminabench.util.progress import SILENT
from laminabench.workflows.check.golden import Obtained, read_golden, write_golden
from laminabench.workflows.replay.run import Result, run
from laminabench.workflows.sweep.store import SweepStore, opened

HEADER = {"what": "a journal"}
# Sizes like those of iterations: most are short, some have many tokens.
RECORDS = [["Iteration", number, [number] * (number * 7 % 300)] for number in range(60)]
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Scene:
    """A tested write: `begin` makes the state before, `act` writes, `read` fails if it is unusable."""

    begin: Callable[[Path], None]
    act: Callable[[Path], None]
    read: Callable[[Path], Any]


@functools.cache
def replayed(seed: int = 0) -> tuple[ReplayRequest, Result]:
    """Return a replay of which Runs are written."""
    request = ReplayRequest(
        trace="profile:azure-conv", model="llama3-70b", system="vllm", num_requests=40, seed=seed, no_out=True
    )
    return request, run(request, listener=SILENT)


def write_a_run(directory: Path, seed: int = 0) -> None:
    request, result = replayed(seed)
    write_run(directory, result.replayed.outcome, result.trace, result.manifest(request))


def journalled(folder: Path, records: list[Any] | None = None) -> None:
    """Write the files of a live replay: records, then the Run, and then no journal."""
    journal = Journal.create(journal_path(folder / "run"), HEADER)
    mark("begun")
    try:
        for record in RECORDS if records is None else records:
            journal.append(record)
            journal.flush()
        write_a_run(folder / "run", 1)
        mark("whole")
        journal.remove()
    finally:
        journal.close()


def _sweep(folder: Path) -> None:
    with opened(folder / "sweep", {"identity": {"points": ["a", "b"]}}, ["a", "b"]) as store:
        for key in store_keys(store):
            store.put(key, {"throughput": 1.5, "name": key})


def store_keys(store: SweepStore) -> list[str]:
    return [key for key in ("a", "b") if key not in store.results]


def _points(folder: Path) -> dict[str, Any]:
    return SweepStore(folder / "sweep", ["a", "b"]).results


def _nothing(_: Path) -> None:
    pass


def _traces(name: str) -> Scene:
    def act(folder: Path) -> None:
        save(replayed()[1].trace, folder / name)

    return Scene(_nothing, act, lambda folder: len(load_file(folder / name)))


def _golden(folder: Path, value: float) -> None:
    facts = {"backend": "modelled", "laminabench": {"version": "0", "commit": None}}
    write_golden(folder, "case", Obtained({"throughput_tokens_per_s": value}, facts))


SCENES: Mapping[str, Scene] = {
    "run": Scene(
        _nothing, lambda folder: write_a_run(folder / "run"), lambda folder: read_run(folder / "run")
    ),
    "run again": Scene(
        lambda folder: write_a_run(folder / "run"),
        lambda folder: write_a_run(folder / "run", 1),
        lambda folder: read_run(folder / "run"),
    ),
    "sweep": Scene(_nothing, _sweep, _points),
    "golden": Scene(
        lambda folder: _golden(folder, 1.0),
        lambda folder: _golden(folder, 2.0),
        lambda folder: read_golden(folder, "case"),
    ),
    "profile": Scene(
        _nothing,
        lambda folder: write_profile(named_profile("azure-conv"), folder / "p.toml"),
        lambda folder: read_profile(folder / "p.toml"),
    ),
    "costs": Scene(
        _nothing,
        lambda folder: write_costs(load_costs("vllm-0.14"), folder / "c.toml"),
        lambda folder: load_costs(str(folder / "c.toml")),
    ),
    **{name: _traces(name) for name in ("t.parquet", "t.csv", "t.jsonl")},
}


def files_in(folder: Path) -> Files:
    """Return the content of all files, by path."""
    contents = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    return contents | {f"{path.relative_to(folder)}/": b"" for path in folder.rglob("*") if path.is_dir()}


def facts(run: Any) -> bytes:
    """Return the content of a Run that is compared."""
    return msgspec.json.encode([run.manifest.summary, run.prompt_tokens.tolist()])
