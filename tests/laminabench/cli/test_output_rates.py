"""Progress with a rate: seen by a person at a terminal, and by nobody else."""

from __future__ import annotations

import sys

import pytest

from laminabench.cli.output import Output


@pytest.mark.parametrize("watched", [True, False])
def test_rates_are_drawn_where_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    with Output(as_json=False, quiet=False, verbose=False).rates("replaying", "requests", "tokens/s") as told:
        told(3, 7, 100)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert ("3/7" in drawn.err) == ("tokens/s" in drawn.err) == watched
    assert watched or not drawn.err


def test_quiet_means_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Output(as_json=False, quiet=True, verbose=False).rates("replaying", "requests", "tokens/s") as told:
        told(1, 2, 3)
    assert capsys.readouterr().err == ""
