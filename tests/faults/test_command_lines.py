"""The experiment on command lines in short."""

from __future__ import annotations

from experiments import isolated

SEEDS = range(300)


def test_in_short() -> None:
    # In a process of its own, as it changes folder and limits, and takes signals.
    tally = isolated.run("command_lines:command_lines", SEEDS)
    assert not tally.failures
    assert tally.attempts == tally.survived == len(SEEDS)
