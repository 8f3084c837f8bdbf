"""A wall clock that jumps: it does, other clocks do not, and what measures with it would be seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import clock_jumps
from experiments.disk import compiled

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
PROGRAM = """
import json, time
began, times = time.monotonic(), []
while time.monotonic() - began < 0.2:
    times.append(time.time())
print(json.dumps([times[0::max(1, len(times) // 1000)], time.monotonic() - began]))
"""


def test_the_clock_jumps_by_hours_and_no_other_does() -> None:
    with compiled(clock_jumps.SOURCE) as library:
        environment = {**os.environ, "LD_PRELOAD": str(library), "LAMINABENCH_CLOCK": "5:10"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True
        )
    times, measured_s = json.loads(done.stdout)
    assert max(times) - min(times) > 3600
    assert 0.2 <= measured_s < 60


def test_an_impossible_time_is_detected(tmp_path: Path) -> None:
    from experiments.scenarios import write_a_run

    write_a_run(tmp_path / "run")
    facts = {"duration_s": 0.5, "wall_s": 1.0}
    assert clock_jumps._times(tmp_path / "run", facts, 1e9)[0] is None
    assert clock_jumps._times(tmp_path / "run", facts | {"duration_s": -3600.0}, 1e9)[0] == "wrong"
    assert clock_jumps._times(tmp_path / "run", facts, 0.1)[0] == "wrong"


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_in_short() -> None:
    tally = clock_jumps.clock_jumps(range(4))
    assert not tally.failures
    assert tally.survived == 4
