"""One step after the other, each in a process of its own, and what came of them in one folder.

A step that fails or takes too long is said, and the others go on: whoever has a GPU for ten minutes gets
whatever can be had in these.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from laminabench.atomic import replacing
from laminabench.bench.frame import QUIET, Report, Table, Text, Watcher
from laminabench.child_environment import child_environment
from laminabench.errors import UserError
from laminabench.json_safe import json_safe
from laminabench.markdown import table
from laminabench.nearest import nearest
from laminabench.paths import part_of_tree
from laminabench.version import describe

# Of which at least so much has to be left for another step.
LEAST_S = 15.0
SHARE = 0.7  # of a step's time after which it begins nothing more, so that what it has is kept
LAST_WORDS = 5  # lines of a step that failed
TESTS = (
    "lamina/attention/test_attention_cuda.py",
    "lamina/fhbn/test_device_on_gpu.py",
    "lamina/convert/test_convert_cudagraph.py",
    "lamina/serve/test_graphs.py",
)


@dataclass(frozen=True)
class Step:
    """What it tells, and the seconds that it may take."""

    says: str
    limit_s: float
    quick_s: float

    def seconds(self, *, quick: bool) -> float:
        return self.quick_s if quick else self.limit_s


STEPS: Mapping[str, Step] = {
    "card": Step("what the card copies and multiplies", 60, 40),
    "tests": Step("the tests that need a GPU", 120, 60),
    "attention": Step("decode attention beside copying, and beside torch's own", 150, 60),
    "engine": Step("the engine in one process, an 8B model's shape, decoding alone", 170, 80),
    "workers": Step("attention apart from the model, on the GPU and on cores beside it", 120, 60),
    "fhbn": Step("messages of a GPU's stream, beside going through the host", 100, 40),
}
TOTAL_S, QUICK_S = 600.0, 280.0


def measure(name: str, *, quick: bool, watcher: Watcher = QUIET) -> Report:
    """One step, in this process."""
    if name not in STEPS:
        raise UserError("bench-gpu-step", f"there is no step '{name}'; {nearest(name, STEPS)}")
    if name == "tests":
        files = " ".join(f"tests/{name}" for name in TESTS)
        raise UserError("bench-gpu-tests", f"the tests run by themselves: pytest {files}")
    from laminabench.bench.on_gpu import copy_bandwidth, require_gpu

    require_gpu()
    rounds = 5 if quick else 15
    seconds = STEPS[name].seconds(quick=quick) * SHARE
    if name == "card":
        from laminabench.bench.gpu import card

        return card.run(rounds, watcher)
    if name == "attention":
        from laminabench.bench import attention_cuda

        if quick:
            return attention_cuda.run((20, 64), (4096, 8192), rounds, seconds, watcher)
        return attention_cuda.run(rounds=rounds, seconds=seconds, watcher=watcher)
    if name == "engine":
        from laminabench.bench.gpu import engine

        batches = (1, 16, 64) if quick else engine.BATCHES
        return engine.run(copy_bandwidth(), batches=batches, seconds=seconds, watcher=watcher)
    if name == "workers":
        from laminabench.bench.gpu import workers

        return workers.run(batches=(16,) if quick else workers.BATCHES, seconds=seconds, watcher=watcher)
    from laminabench.bench.fhbn import cuda

    if quick:
        return cuda.run(sizes=(0, 16 << 20), rounds=rounds, watcher=watcher)
    return cuda.run(rounds=rounds, watcher=watcher)


@dataclass
class Outcome:
    """What became of a step: what it measured, or why not."""

    name: str
    took_s: float
    found: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def word(self) -> str:
        """In one: met and missed are of its target, if it has one."""
        if self.found is None:
            return "failed"
        return {True: "met", False: "missed", None: "measured"}[self.found.get("met")]


# What runs a step's command: its exit code (None of one that is late), and what it said on stdout and stderr.
Runner = Callable[[Sequence[str], float], tuple[int | None, str, str]]


def run(
    folder: Path | None,
    *,
    quick: bool = False,
    device: Callable[[], str] | None = None,
    runner: Runner | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """All steps, and files in the folder as they come: STEP.json, gpu.json, report.md."""
    called = (device or _device)()
    place = folder or Path("results") / _slug(called)
    command, until_s = runner or _run, time.monotonic() + (QUICK_S if quick else TOTAL_S)
    outcomes: list[Outcome] = []
    for done, name in enumerate(STEPS):
        watcher.progress(done, len(STEPS))
        left_s = until_s - time.monotonic()
        if left_s < LEAST_S:
            outcome = Outcome(name, 0.0, why="no time was left for it")
        else:
            outcome = _step(name, quick, min(left_s, STEPS[name].seconds(quick=quick)), command)
        outcomes.append(outcome)
        watcher.note(f"{name}: {outcome.word}{f', {outcome.why}' if outcome.why else ''}")
        if outcome.found is not None:
            _write(place / f"{name}.json", _json(outcome.found))
        _summary(place, called, outcomes)
    watcher.progress(len(STEPS), len(STEPS))
    return _report(place, called, outcomes)


def _device() -> str:
    import torch

    from laminabench.bench.on_gpu import require_gpu

    require_gpu()
    return torch.cuda.get_device_name()


def _slug(device: str) -> str:
    """`h100-80gb-hbm3` of "NVIDIA H100 80GB HBM3"."""
    return re.sub("[^a-z0-9]+", "-", device.lower().replace("nvidia", "")).strip("-")


def _step(name: str, quick: bool, limit_s: float, command: Runner) -> Outcome:
    started = time.monotonic()
    if name == "tests":
        found, why = _tested(limit_s, command)
    else:
        found, why = _measured(name, quick, limit_s, command)
    return Outcome(name, time.monotonic() - started, found, why)


def _measured(
    name: str, quick: bool, limit_s: float, command: Runner
) -> tuple[Mapping[str, Any] | None, str]:
    arguments = [sys.executable, "-P", "-m", "laminabench", "bench", "gpu", "--only", name, "--json"]
    code, out, err = command([*arguments, *(["--quick"] if quick else [])], limit_s)
    if code is None:
        return None, f"it took longer than {limit_s:.0f} s"
    try:
        return json.loads(out), "" if code == 0 else f"it ended with {code}"
    except ValueError:
        return None, _last_words(err) or f"it ended with {code} and said nothing"


def _tested(limit_s: float, command: Runner) -> tuple[Mapping[str, Any] | None, str]:
    """Those of the tree that need a GPU; elsewhere there are none."""
    files = [part_of_tree("tests") / name for name in TESTS]
    if not all(file.exists() for file in files):
        return None, "the tests are in the source tree, and this is none"
    with TemporaryDirectory(prefix="laminabench-") as temporary:
        result = Path(temporary) / "junit.xml"
        arguments = ["-q", "-p", "no:cacheprovider", f"--junit-xml={result}", *map(str, files)]
        code, out, err = command([sys.executable, "-m", "pytest", *arguments], limit_s)
        if code is None:
            return None, f"they took longer than {limit_s:.0f} s"
        try:
            suite = ElementTree.parse(result).getroot().find("testsuite")
        except (OSError, ElementTree.ParseError):
            suite = None
        if suite is None:
            return None, _last_words(err) or _last_words(out) or f"pytest ended with {code}"
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        failed = [
            f"{case.get('classname')}::{case.get('name')}"
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
        return {"benchmark": "gpu-tests", **counts, "failed": failed, "met": not failed}, ""


def _run(command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
    try:
        ended = subprocess.run(
            command,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    return ended.returncode, ended.stdout, ended.stderr


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_WORDS:])


def _facts(called: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "benchmark": "gpu",
        "device": called,
        "laminabench": describe(),
        "command": shlex.join(["laminabench", *sys.argv[1:]]),
        "steps": [
            {"name": one.name, "outcome": one.word, "took_s": one.took_s, "why": one.why} for one in outcomes
        ],
    }


def _summary(place: Path, called: str, outcomes: Sequence[Outcome]) -> None:
    """After every step, so that what there is stays if the machine goes."""
    _write(place / "gpu.json", _json(_facts(called, outcomes)))
    lines = [f"# {called}", "", f"laminabench {describe()}", ""]
    lines += table(("step", "what it tells", ">took", "outcome"), map(_cells, outcomes))
    for one in outcomes:
        if one.found is not None and one.found.get("rows"):
            lines += ["", f"## {one.name}", "", *_rows(one.found["rows"])]
    _write(place / "report.md", "\n".join(lines))


def _rows(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Facts as a table: of a spread its median; what is nested deeper is in the JSON."""
    flat = [
        {
            key: value["median"] if isinstance(value, Mapping) and "median" in value else value
            for key, value in row.items()
        }
        for row in rows
    ]
    plain = (bool, int, float, str, type(None))
    titles = list(
        dict.fromkeys(key for row in flat for key, value in row.items() if isinstance(value, plain))
    )
    shown = ([_number(row.get(title)) for title in titles] for row in flat)
    return list(table(titles, shown))


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else str(value)


def _cells(one: Outcome) -> tuple[str, ...]:
    outcome = f"{one.word}: {one.why}" if one.why else one.word
    return one.name, STEPS[one.name].says, f"{one.took_s:.0f} s", outcome


def _json(found: Mapping[str, Any]) -> str:
    return json.dumps(json_safe(found), indent=2, ensure_ascii=False, allow_nan=False)


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _report(place: Path, called: str, outcomes: Sequence[Outcome]) -> Report:
    failed = [one.name for one in outcomes if one.found is None]
    facts = _facts(called, outcomes) | {"folder": str(place), "failed": failed}
    titles = ("<step", "<what it tells", "took", "<outcome")
    shown = Table(titles, [_cells(one) for one in outcomes])
    text: list[Text] = [called, shown, f"{place / 'report.md'} has all of it"]
    return Report(facts, text, failed=bool(failed))
