"""Command lines in short; and that what they look for is noticed where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import command_lines, isolated
from experiments.tally import Tally
from laminabench.cli import main

SEEDS = range(300)
FEW = range(60)


def test_in_short() -> None:
    # In a process of its own, as it changes folder and limits, and takes signals.
    tally = isolated.run("command_lines:command_lines", SEEDS)
    assert not tally.failures
    assert tally.attempts == tally.survived == len(SEEDS)


def test_every_command_is_drawn() -> None:
    drawn = {command_lines.drawn_line(command_lines.random.Random(seed))[0].words for seed in range(2000)}
    assert drawn == {command.words for command in command_lines.commands()}


def _internal(*_: Any) -> None:
    raise KeyError("x")


def _partial(*_: Any) -> None:
    Path(".o.1234.partial").touch()


def _half(*_: Any) -> None:
    Path("o.html").touch()
    raise command_lines.click.UsageError("too late")


def _no_number(*_: Any) -> None:
    np.float64(0) / np.float64(0)


@pytest.mark.parametrize(
    ("spoiled", "kind"),
    [(_internal, "crashed"), (_partial, "lost"), (_half, "lost"), (_no_number, "crashed")],
)
def test_what_goes_wrong_is_noticed(
    spoiled: Callable[..., None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = main._call

    def spoiled_call(arguments: list[str], command: Any) -> int:
        code = call(arguments, command)
        if "--no-out" in arguments:  # of the drawn ones, and not of those that prepare them
            spoiled()
        return code

    monkeypatch.setattr(main, "_call", spoiled_call)
    tally: Tally = command_lines.command_lines(FEW)
    assert getattr(tally, kind) > 2
    assert tally.attempts == len(FEW)
