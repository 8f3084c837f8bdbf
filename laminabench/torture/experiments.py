"""What there is to try: each experiment's name, what it does, where it is, and how long it is in full."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from laminabench.torture.apart import apart
from laminabench.torture.tally import Tally
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

# It gets the seeds of its cases, each of which draws from its own seed alone.
Experiment = Callable[[Sequence[int]], Tally]
# A number of a case fits into JSON's, whoever reads it.
_SEED_BITS = 48


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the registry. `place` is "module:function" in this package, imported when it runs."""

    says: str
    place: str
    chunk: int  # cases that are lost where it is interrupted: some seconds of them, or one session
    full: int  # cases
    needs: tuple[str, ...] = ()
    apart: bool = False  # in a process of its own, which it may kill, or where libraries keep memory

    def load(self) -> Experiment:
        if self.apart:
            return functools.partial(apart, self.place)
        module, _, function = self.place.partition(":")
        return cast("Experiment", getattr(importlib.import_module(f"laminabench.torture.{module}"), function))

    @property
    def missing(self) -> str | None:
        """Why it cannot run here."""
        return next((why for need in self.needs if (why := NEEDS[need]())), None)


def _compiler() -> str | None:
    found = any(map(shutil.which, ("cc", "gcc", "clang")))
    return None if found else "there is no C compiler (apt-get install gcc)"


def _engine() -> str | None:
    names = ("torch", "msgpack", "safetensors", "transformers")
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    native = importlib.util.find_spec("lamina") and importlib.util.find_spec("lamina._native")
    if native and not lacking:
        return None
    return "there is no engine (pip install 'laminabench[engine]'; in a checkout, make setup)"


def _server() -> str | None:
    names = ("fastapi", "uvicorn", "httptools", "prometheus_client")
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    return f"there is no {lacking[0]} (pip install 'laminabench[engine,serve]')" if lacking else _engine()


def _tree() -> str | None:
    found = (Path(__file__).parents[2] / "tests" / "helpers").is_dir()
    if found and importlib.util.find_spec("hypothesis"):
        return None
    return "what it is held against is in the source tree, and needs hypothesis (make setup)"


def _qemu() -> str | None:
    if not _tree() and shutil.which("qemu-system-x86_64"):
        return None
    return "there is no virtual machine (a checkout, and apt-get install qemu-system-x86)"


NEEDS: Mapping[str, Callable[[], str | None]] = {
    "compiler": _compiler,
    "engine": _engine,
    "server": _server,
    "tree": _tree,
    "qemu": _qemu,
    "root": lambda: None if os.geteuid() == 0 else "only root can do it",
}

# In full, files, messages and HTTP requests are a million damaged inputs together.
EXPERIMENTS: Mapping[str, Listed] = {
    "failing-writes": Listed(
        "each operation on the disk fails in turn, full or broken",
        "files:failing_writes",
        20,
        20,
        ("compiler",),
    ),
    "power-cuts": Listed(
        "the power goes while a replay is journalled and its Run written",
        "files:power_cuts",
        500,
        10_000,
        ("compiler",),
    ),
    "flipped-bits": Listed(
        "one bit of a Run or a journal is another", "files:flipped_bits", 2_000, 100_000, ("engine",)
    ),
    "fuzzed-files": Listed(
        "files of every kind that is read, damaged in all ways",
        "files:fuzzed_files",
        10_000,
        350_000,
        ("engine",),
        apart=True,
    ),
    "messages": Listed(
        "what workers say to each other, damaged: messages, links, handing over, rings",
        "messages:messages",
        10_000,
        350_000,
        ("engine",),
        apart=True,
    ),
    "long-prompts": Listed(
        "a prompt of 130,000 tokens, or 40 of 2,048, beside 20 requests that decode",
        "long_prompts:long_prompts",
        1,
        4,
        ("engine",),
    ),
    "examples": Listed(
        "scheduler, router, KV arena and simulator against their references, on drawn cases of 25 examples",
        "examples:examples",
        20,
        4_000,
        ("engine", "tree"),
    ),
    "resumes": Listed(
        "a live replay killed up to twenty times and resumed, on a disk that fills up",
        "resumes:resumes",
        10,
        95,
        ("engine",),
    ),
    "machine-cuts": Listed(
        "the power of a virtual machine goes while journals and Runs are written in it",
        "machine_cuts:machine_cuts",
        5,
        100,
        ("engine", "qemu", "root"),
    ),
    "clock-jumps": Listed(
        "the wall clock jumps by hours under replays, a sweep and a server",
        "clock_jumps:clock_jumps",
        8,
        80,
        ("server", "compiler"),
    ),
    "kills-replay": Listed(
        "workers are killed and stopped under a live replay, 100 times a session",
        "kills:kills_replay",
        4,
        20,
        ("engine",),
        apart=True,  # all workers of its process are struck
    ),
    "clients": Listed(
        "clients that leave at any moment, send trailers, pipeline, read slowly, half-close",
        "clients:clients",
        25_000,
        1_000_000,
        ("server",),
    ),
    "http-fuzz": Listed("mutated HTTP requests", "clients:http_fuzz", 25_000, 350_000, ("server",)),
    "kills-http": Listed(
        "the same under 2,000 connections that read streams",
        "kills_http:kills_http",
        1,
        20,
        ("server",),
    ),
    "soak": Listed(
        "minutes of open traffic at 80 % load, a fault every 10 s", "soak:soak", 60, 60, ("server",)
    ),
}


def named(names: Sequence[str]) -> dict[str, Listed]:
    """Those of these names, or all."""
    for name in names:
        if name not in EXPERIMENTS:
            raise UserError(
                "torture-unknown", f"no experiment is called '{name}'; {nearest(name, EXPERIMENTS)}"
            )
    return {name: EXPERIMENTS[name] for name in names or EXPERIMENTS}


def cases(name: str, seed: int, first: int, count: int) -> Sequence[int]:
    """The seeds of an experiment's cases from one on: in a row, so that all kinds of a case come."""
    digest = hashlib.sha256(f"{name} {seed}".encode()).digest()
    begin = int.from_bytes(digest, "big") % (1 << _SEED_BITS)
    return range(begin + first, begin + first + count)
