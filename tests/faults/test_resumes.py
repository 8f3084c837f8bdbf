"""Replays that are killed and resumed, in short; and that a token too few is seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from experiments import resumes
from experiments.prefork import Warm
from experiments.resumes import Room, Undisturbed, interrupted, undisturbed, write_trace


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_in_short(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    with Warm(tmp_path) as warm:
        expected = undisturbed(warm, tmp_path / "whole")
        write_trace(tmp_path / "cut")
        kind, what, _ = interrupted(warm, tmp_path / "cut", expected, random.Random(2), 2)
        assert kind is None, what
        wrong = Undisturbed(expected.facts | {"tokens_generated": 1}, expected.journal_bytes, expected.took_s)
        assert resumes._same(tmp_path / "cut", wrong)[0] == "wrong"
        swapped = Undisturbed(expected.facts | {"tokens_sha256": "0" * 64}, wrong.journal_bytes, wrong.took_s)
        assert resumes._same(tmp_path / "cut", swapped)[0] == "wrong"
        (tmp_path / "cut" / ".kept.0000.partial").touch()
        assert resumes._same(tmp_path / "cut", expected)[0] == "leaked"
    assert Room(tmp_path, None).filled == 0
