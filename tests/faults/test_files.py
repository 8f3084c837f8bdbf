"""The experiments on files in short; and that they see what they are there to see."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiments import child_environment, corpus
from experiments.files import failing_writes, flipped_bits, fuzzed_files, power_cuts
from experiments.tally import Tally

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def require_none_failed(tally: Tally, least: int) -> None:
    assert not tally.failures
    assert tally.attempts == tally.survived >= least


@needs_compiler
@pytest.mark.parametrize(
    ("experiment", "count"),
    [(failing_writes, 3), (power_cuts, 40), (flipped_bits, 100), (fuzzed_files, 300)],
)
def test_in_short(experiment: Callable[[Sequence[int]], Tally], count: int) -> None:
    require_none_failed(experiment(range(count)), count)


@pytest.mark.long
@needs_compiler
def test_in_long() -> None:
    counts = {failing_writes: 20, power_cuts: 1000, flipped_bits: 2000, fuzzed_files: 5000}
    for experiment, count in counts.items():
        tally = experiment(range(10_000, 10_000 + count))
        require_none_failed(tally, 500 if experiment is failing_writes else count)


# One change each to how things are written, and the experiment says that something is lost.
SPOILED = {
    "nothing is forced": "import laminabench.runs.replace as r; r.force = lambda path: None",
    "folders are not": (
        "import laminabench.runs.replace as r; f = r.force; r.force = lambda path: path.is_dir() or f(path)"
    ),
    "the journal goes first": (
        "import experiments.scenarios as s; w = s.write_a_run\n"
        "def first(directory, seed=0):\n"
        "    (directory.parent / 'run.journal').unlink(missing_ok=True)\n"
        "    w(directory, seed)\n"
        "s.write_a_run = first"
    ),
}


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("how", SPOILED)
def test_a_wrong_order_is_detected(how: str, tmp_path: Path) -> None:
    spoiled = tmp_path / "sitecustomize.py"
    spoiled.write_text(SPOILED[how])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        assert power_cuts(range(100)).lost > 0


# The same of what a failed write may leave.
SPOILED_WRITES = {
    "what was begun stays": (
        "import types, laminabench.runs.replace as r\n"
        "r.shutil = types.SimpleNamespace(rmtree=lambda *_, **__: None)"
    ),
    "a journal says nothing": (
        "import contextlib, laminabench.runs.journal as j\n"
        "j.Journal._writing = lambda self: contextlib.suppress(OSError)"
    ),
}


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("how", SPOILED_WRITES)
def test_a_failed_write_that_is_not_mended_is_detected(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPOILED_WRITES[how])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    tally = failing_writes(range(24))
    assert tally.lost + tally.wrong + tally.leaked > 0


def test_a_leaked_descriptor_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "read_profile", lambda _: os.dup(0))
    before = set(Path("/proc/self/fd").iterdir())
    tally = fuzzed_files(range(1100), ("profile",))
    for leaked in set(Path("/proc/self/fd").iterdir()) - before:
        with contextlib.suppress(OSError):
            os.close(int(leaked.name))
    assert [failure.kind for failure in tally.failures] == ["leaked"]


def test_a_broken_reader_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "read_profile", lambda path: 1 / (path.stat().st_size % 2))
    assert fuzzed_files(range(200), ("profile",)).crashed > 10


def test_a_run_without_its_checksum_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laminabench.runs.documents.unsealed", lambda document: document)
    assert flipped_bits(range(300)).wrong > 0


@pytest.mark.outside
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_system_calls_are_in_the_right_order(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from experiments.scenarios import journalled; "
        f"journalled(Path({str(tmp_path)!r}), [[1]])"
    )
    trace = tmp_path / "told"
    calls = "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"
    strace = ["strace", "-f", "-y", "-o", trace, "-e", f"trace={calls}"]
    subprocess.run([*strace, sys.executable, "-c", program], env=child_environment(), check=True)
    lines = trace.read_text().splitlines()

    def at(pattern: str, after: int = 0) -> int:
        numbers = (number for number, line in enumerate(lines) if number > after and re.search(pattern, line))
        return next(numbers)

    folder = re.escape(str(tmp_path))
    journal = at(rf'rename\(.*"{folder}/run.journal"\)')
    # The journal, the files, their names, the name of the Run; and only then the journal goes.
    at(rf"fsync\(\d+<{folder}>\)", journal)
    partial = rf"{folder}/\.run\.\w+\.partial"
    parts = [at(rf"fsync\(\d+<{partial}/{name}") for name in ("requests", "iterations", "run.json")]
    names = at(rf"fsync\(\d+<{partial}>\)", max(parts))
    renamed = at(rf'rename\(.*, "{folder}/run"\)', names)
    forced = at(rf"fsync\(\d+<{folder}>\)", renamed)
    assert journal < min(parts)
    removed = at(rf'unlink\("{folder}/run.journal"\)', forced)
    assert removed > forced
