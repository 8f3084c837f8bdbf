"""Groups of loads: which judge, and what is asked of them."""

from __future__ import annotations

import math

import pytest

from laminabench.workflows.validate.judges import standings
from laminabench.workflows.validate.serving import Judged, ServerLoad


def made(
    ttft_error: float, *, version: str = "0.18.0", prompt: int = 8192, queued: bool = False, off: str = ""
) -> Judged:
    """A load of 100 ms and 10 ms a token, predicted so far off, in percent."""
    about = {
        "model": "m",
        "device": "h200",
        "version": version,
        "precision": "fp8",
        "off": off,
        "fit": [1024],
    }
    load = ServerLoad(about, "2", prompt, 8, 2, 100.0, 10.0, "-")
    return Judged(load, 100.0 + ttft_error, 10.45, queued=queued)


def test_loads_that_constants_were_fitted_to_queue_or_are_off_judge_nothing() -> None:
    given = [made(1.0), made(50.0, prompt=1024), made(50.0, queued=True), made(50.0, off="a reason")]
    result = {(each.role, each.group): each for each in standings(given)}
    assert result["judge", "all"].loads == result["fit", "all"].loads == result["queued", "all"].loads == 1
    assert result["judge", "all"].value("ttft median") == pytest.approx(1.0)
    assert result["fit", "m h200 0.18.0 fp8"].value("ttft median") == pytest.approx(50.0)


def test_targets_are_of_absolute_and_signed_medians_and_of_p90() -> None:
    given = [made(-12.0) for _ in range(10)] + [made(9.0, version="0.10.2") for _ in range(9)]
    result = {each.group: each for each in standings(given)}
    assert result["all"].describe() == {
        "group": "all",
        "role": "judge",
        "loads": 19,
        "ttft": {"median": pytest.approx(12.0), "signed": pytest.approx(-12.0), "p90": pytest.approx(12.0)},
        "tpot": {"median": pytest.approx(4.5), "signed": pytest.approx(4.5), "p90": pytest.approx(4.5)},
        "targets": {"ttft median": 10.0, "tpot median": 5.0, "ttft p90": 25.0},
        "missed": ["ttft median"],
    }
    assert result["vLLM 0.15 and later"].missed == ["ttft median", "tpot median"]
    assert result["m h200 0.18.0 fp8"].missed == ["ttft signed"]
    assert result["m h200 0.10.2 fp8"].targets == {}


def test_loads_without_a_prediction_are_in_no_group() -> None:
    given = [Judged(made(0.0).point, None, None, "no coefficients"), made(math.nan, version="nightly")]
    assert [each.loads for each in standings(given[:1])] == []
    assert "vLLM 0.15 and later" not in {each.group for each in standings(given)}
