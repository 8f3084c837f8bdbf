"""Workers killed and stopped, and a server soaked, in short."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from experiments import child_environment
from experiments.kills_http import kills_http
from experiments.soak import soak
from experiments.tally import Tally


def require_none_failed(tally: Tally, least: int) -> None:
    assert not tally.failures
    assert tally.attempts == tally.survived >= least


# All workers of a process are struck, and this one's may be another test's.
SHORT = """
import sys, msgspec
from experiments import kills
kills.LAYOUTS = (("1xcpu+1xcpu", "model"),)
sys.stdout.buffer.write(msgspec.json.encode(kills.{}([1], strikes=4)))
"""


@pytest.mark.long
@pytest.mark.parametrize("experiment", ["kills_replay", "kills_copies"])
def test_a_replay_has_the_same_tokens(experiment: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", SHORT.format(experiment)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    require_none_failed(msgspec.json.decode(child.stdout, type=Tally), 2)


@pytest.mark.long
def test_streams_have_the_same_tokens() -> None:
    require_none_failed(kills_http([1], strikes=6, connections=200), 200)


@pytest.mark.long
def test_a_soak() -> None:
    tally = soak([1, 2], minute_s=12, peak_s=3)
    # Half of those that were due at the rate that it found: a busy machine answers few.
    require_none_failed(tally, max(6, round(tally.facts["requests_per_s"] * 24 / 2)))
    assert tally.facts["stops"] >= 1
