"""The fault experiments of docs/reliability.md in full: `make torture`.

The other modules here run a few cases of each.

Environment variables: `SEED` draws other cases, `CASES` replaces the full count, `CASE` repeats one case by
the seed that a failure names, `OUT` is the folder for results.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments import files, isolated, results
from experiments.clients import clients, http_fuzz
from experiments.clock_jumps import clock_jumps
from experiments.kills_http import kills_http
from experiments.long_prompts import long_prompts
from experiments.machine_cuts import machine_cuts
from experiments.results import Experiment
from experiments.resumes import resumes
from experiments.soak import soak

pytestmark = pytest.mark.skipif(not os.environ.get("TORTURE"), reason="hours; run `make torture`")
SEED = int(os.environ.get("SEED", "20261124"))
OUT = Path(os.environ.get("OUT", "torture"))

# Experiments whose process may die, or where libraries keep memory, run isolated.
EXPERIMENTS: Mapping[str, Experiment] = {
    "failing-writes": Experiment(
        "each disk operation fails in turn, full or broken", 20, files.failing_writes
    ),
    "power-cuts": Experiment(
        "the power goes while a replay is journalled and its Run written", 10_000, files.power_cuts
    ),
    "flipped-bits": Experiment("one bit of a Run or a journal is flipped", 100_000, files.flipped_bits),
    "fuzzed-files": Experiment(
        "files of every kind that is read, damaged in all ways",
        350_000,
        functools.partial(isolated.run, "files:fuzzed_files"),
    ),
    "command-lines": Experiment(
        "command lines with odd values and combinations, of every command",
        100_000,
        functools.partial(isolated.run, "command_lines:command_lines"),
    ),
    "messages": Experiment(
        "damaged messages between workers: messages, links, channel set-up, rings",
        350_000,
        functools.partial(isolated.run, "messages:messages"),
    ),
    "long-prompts": Experiment(
        "a prompt of 130,000 tokens, or 40 of 2,048, next to 20 decoding requests", 4, long_prompts
    ),
    "resumes": Experiment(
        "a live replay killed up to twenty times and resumed, on a disk that fills up", 95, resumes
    ),
    "machine-cuts": Experiment(
        "the power of a virtual machine goes while journals and Runs are written in it", 100, machine_cuts
    ),
    "clock-jumps": Experiment(
        "the wall clock jumps by hours under replays, a sweep and a server", 80, clock_jumps
    ),
    "kills-replay": Experiment(
        "workers are killed and stopped under a live replay, 100 times a session",
        20,
        functools.partial(isolated.run, "kills:kills_replay"),
    ),
    "kills-copies": Experiment(
        "workers are killed under a live replay with second copies of KV, 100 times a session",
        10,
        functools.partial(isolated.run, "kills:kills_copies"),
    ),
    "clients": Experiment(
        "clients that leave at any moment, send trailers, pipeline, read slowly, half-close",
        1_000_000,
        clients,
    ),
    "http-fuzz": Experiment("mutated HTTP requests", 350_000, http_fuzz),
    "kills-http": Experiment(
        "workers are killed and stopped under 2,000 connections that read streams", 20, kills_http
    ),
    "soak": Experiment("minutes of open traffic at 80 % load, a fault every 10 s", 60, soak),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_is_lost(name: str) -> None:
    experiment = EXPERIMENTS[name]
    if name == "machine-cuts" and (os.geteuid() != 0 or not shutil.which("qemu-system-x86_64")):
        pytest.skip("needs root and QEMU")
    if case := os.environ.get("CASE"):
        assert not experiment.run([int(case)]).failures
        return
    count = int(os.environ.get("CASES", experiment.full))
    summary = results.run(name, experiment, SEED, count)
    results.write(OUT, summary)
    assert not summary.failures, (
        f"{OUT}/{name}-{SEED}.json has each failure with its seed: CASE=SEED repeats it"
    )
