"""All steps in turn, each in a process of its own, with their results in one folder.

A step that fails or takes too long is reported, and the others run: a short time with a GPU is not wasted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from gpu_window import KERNELS
from gpu_window.outcomes import Outcome, as_json, report, write, write_summary
from gpu_window.steps import STEPS, TESTS, card_here, folder_of
from laminabench.bench.frame import QUIET, Report, Watcher
from laminabench.util.child_environment import child_environment
from laminabench.util.paths import part_of_tree

BENCH = Path(__file__).parents[1] / "bench.py"
LAST_WORDS = 5  # lines of a step that failed

# Runs a step's command: its exit code (None if it ran too long), stdout and stderr.
Runner = Callable[[Sequence[str], float], tuple[int | None, str, str]]


def run(
    folder: Path | None,
    *,
    quick: bool = False,
    device: Callable[[], str] | None = None,
    runner: Runner | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """Run all steps, and write their files as they come: STEP.json, gpu.json, report.md.

    What a step leaves of its time the next one may have: all of them together take as long as is promised.
    """
    called = (device or card_here)()
    place, command = folder or folder_of(called), runner or _run
    due_s = time.monotonic()
    outcomes: list[Outcome] = []
    for done, (name, step) in enumerate(STEPS.items()):
        watcher.progress(done, len(STEPS))
        due_s += step.seconds(quick=quick)
        for old in (f"{name}.json", *((KERNELS,) if name == "kernels" else ())):
            (place / old).unlink(missing_ok=True)  # of an earlier run, which later steps would read
        outcome = _step(name, place, quick, due_s - time.monotonic(), command)
        outcomes.append(outcome)
        watcher.note(f"{name}: {outcome.word}{f', {outcome.why}' if outcome.why else ''}")
        if outcome.results is not None:
            write(place / f"{name}.json", as_json(outcome.results))
        write_summary(place, called, outcomes)
    watcher.progress(len(STEPS), len(STEPS))
    return report(place, called, outcomes)


def _step(name: str, place: Path, quick: bool, limit_s: float, command: Runner) -> Outcome:
    started = time.monotonic()
    if name == "tests":
        results, why = _tested(limit_s, command)
    else:
        results, why = _measured(name, place, quick, limit_s, command)
    return Outcome(name, time.monotonic() - started, results, why)


def _measured(
    name: str, place: Path, quick: bool, limit_s: float, command: Runner
) -> tuple[Mapping[str, Any] | None, str]:
    arguments = [sys.executable, str(BENCH), "gpu", "--only", name, "--json"]
    code, out, err = command([*arguments, "--out", str(place), *(["--quick"] if quick else [])], limit_s)
    if code is None:
        return None, f"it took longer than {limit_s:.0f} s"
    try:
        results = json.loads(out)
    except ValueError:
        return None, _last_words(err) or f"it ended with {code} and no output"
    if "error" in results:  # the request is impossible here
        return None, str(results["error"]["message"])
    return results, "" if code == 0 else f"it ended with {code}"


def _tested(limit_s: float, command: Runner) -> tuple[Mapping[str, Any] | None, str]:
    """Run the repository's tests that need a GPU."""
    files = [part_of_tree("tests") / name for name in TESTS]
    if not all(Path(str(file).partition("::")[0]).exists() for file in files):
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


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_WORDS:])
