"""The picture of a replay over time says what happened to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_outcome import outcome_of

from laminabench.render.static.drawn import drawn
from laminabench.render.static.replay_over_time import panels, picture
from laminabench.runs.summary import FaultCost, Struck
from laminabench.sim.outcome import Outcome
from laminabench.util.errors import UserError


def outcome(iterations: int) -> Outcome:
    """One batch of ten, 10 ms each, and one of half a second."""
    lasts = np.full(iterations, 0.01)
    lasts[iterations // 2 : iterations // 2 + 1] = 0.5
    return outcome_of(lasts)


def draw(outcome: Outcome, target: Path, **how: Any) -> None:
    drawn(lambda: picture(outcome, **how), target)


def test_it_marks_faults_and_interruptions(tmp_path: Path) -> None:
    untold = dict.fromkeys(("detection_s", "normal_again_s", "tbt_worst_ms", "goodput_lost_tokens"))
    struck = [Struck(worker="model 0", how="kill", at_s=0.5)]
    fault = FaultCost(workers=[], why="", struck=struck, noticed_s=0.6, recovery_s=0.3, **untold)
    unstruck = FaultCost(workers=[], why="", struck=[], noticed_s=1.2, recovery_s=0.1, **untold)
    target = tmp_path / "one.svg"
    draw(
        outcome(100),
        target,
        title="a $name$ [of] somebody's",
        slo_tbt_ms=100,
        faults=[fault, unstruck],
        resumed_s=[0.3],
    )
    text = target.read_text()
    for label in (
        "a $name$ [of] somebody's",
        "TBT p99",
        "limit, 100 ms",
        "fault, until iterations go on",
        "resumed",
    ):
        assert text.count(label) == 1
    draw(outcome(100), tmp_path / "two.svg", title="calm", slo_tbt_ms=100)
    assert "fault" not in (tmp_path / "two.svg").read_text()


def test_of_nothing_there_is_a_picture_too(tmp_path: Path) -> None:
    draw(outcome(0), tmp_path / "none.png", title="nothing", slo_tbt_ms=100)
    assert (tmp_path / "none.png").stat().st_size > 1000


def test_a_kind_of_picture_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="picture-suffix"):
        draw(outcome(3), tmp_path / "one.txt", title="one", slo_tbt_ms=100)


def test_boards_have_two_more_panels(tmp_path: Path, on_boards: Callable[..., Outcome]) -> None:
    draw(on_boards(outcome(3000)), tmp_path / "boards.svg", title="boards", slo_tbt_ms=100)
    text = (tmp_path / "boards.svg").read_text()
    for label in ("HBM: KV", "HBM: QKV weights", "HBM: FC weights", "HBM: free", "moved, GB/s", "TBT p99"):
        assert text.count(f">{label}<") == 1
    assert len(text) < 300_000  # slices of time, however many iterations
    draw(outcome(100), tmp_path / "others.svg", title="others", slo_tbt_ms=100)
    assert "HBM" not in (tmp_path / "others.svg").read_text()


def test_panels_add_up_to_the_boards_hbm(on_boards: Callable[..., Outcome]) -> None:
    from matplotlib.figure import Figure

    held, moved = Figure().subplots(2, 1)
    panels((held, moved), on_boards(outcome(500)))
    tops = np.array([patch.get_data().values for patch in held.patches])
    assert (np.diff(tops, axis=0) >= 0).all()
    assert tops[-1] == pytest.approx(96)
    assert held.get_ylim() == (0, pytest.approx(96))
