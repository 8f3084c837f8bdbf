"""The accuracy board, and the sentence that goes with a modelled number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.catalog.accuracy import board, known_accuracy
from laminabench.workflows.validate import serving
from laminabench.workflows.validate.board import Sample, board_of, samples_of

WHERE = ("vllm", "h200", "llama3-70b", "tpot", "vllm-0.24", "loads of vLLM servers", "")


def test_a_cell_has_the_errors_of_its_loads() -> None:
    days = ("2026-01-02", "-", "2026-01-01", "2026-01-03")
    samples = [Sample(*WHERE, error, day) for error, day in zip((1.0, -3.0, 2.0, 10.0), days, strict=True)]
    other = Sample("vllm", "h100", *WHERE[2:], -5.0, "2026-02-01")
    h100, h200 = board_of([*samples, other])
    assert (h100.device, h100.loads, h100.median, h100.signed) == ("h100", 1, 5.0, -5.0)
    assert (h200.loads, h200.median, h200.signed) == (4, 2.5, 1.5)
    assert h200.p90 == pytest.approx(7.9)
    assert (h200.measured, h100.measured) == ("2026-01-01 to 2026-01-03", "2026-02-01")


def test_loads_that_are_off_or_were_fitted_to_are_in_no_cell() -> None:
    sound = next(each for each in serving.points() if not each.off and not each.fit)
    fit = next(each for each in serving.points() if each.fit)
    off = replace(sound, server={**sound.server, "off": "its settings are not known"})
    judged = [serving.Judged(each, each.ttft_ms, 2 * each.tpot_ms) for each in (sound, fit, off)]
    samples = list(samples_of([], [], judged, []))
    assert {(each.metric, round(each.error)) for each in samples} == {("tpot", 100), ("ttft", 0)}
    assert len(samples) == 2


def test_an_answer_names_the_cell_that_it_is_in() -> None:
    (cell,) = (
        each
        for each in board().cells
        if (each.system, each.device, each.model, each.metric) == ("vllm", "h200", "llama3-70b", "tpot")
    )
    same = known_accuracy("vllm-0.24", "vllm", ["h200"], "llama3-70b")
    assert same.error == pytest.approx(cell.median / 100)
    assert f"{cell.median:.1f} % in the median of {cell.loads} loads" in str(same)


def largest(*devices: str, model: str = "") -> float:
    """The largest median of TPOT over the board's cells of vllm-0.24."""
    cells = (each for each in board().cells if (each.costs, each.metric) == ("vllm-0.24", "tpot"))
    medians = (each.median for each in cells if each.device in devices and model in ("", each.model))
    return max(medians) / 100


def test_an_answer_without_a_cell_names_the_closest() -> None:
    here = known_accuracy("vllm-0.24", "vllm", ["h200"], "qwen3-32b")
    assert (here.error, "models on h200" in str(here)) == (largest("h200"), True)
    elsewhere = known_accuracy("vllm-0.24", "vllm", ["h100"], "llama3-70b")
    assert elsewhere.error == largest("h200", "b200", model="llama3-70b")
    assert "no load on h100" in str(elsewhere)


def test_a_split_system_has_its_own_error_too() -> None:
    (own,) = (each for each in board().cells if (each.system, each.metric) == ("lamina", "step"))
    split = known_accuracy("vllm-0.24", "lamina", ["h200", "h20"], "llama3-70b")
    assert split.error == pytest.approx(max(own.median / 100, largest("h200", "b200", model="llama3-70b")))
    assert "measured decode steps (qwen3-235b-a22b on gb200)" in str(split)


def test_what_was_never_measured_has_no_error() -> None:
    boards = known_accuracy("vllm-0.24", "h2m2", [], "llama3-70b")
    assert (boards.error, str(boards)) == (None, "h2m2 was never compared with hardware")
    roofline = known_accuracy("roofline", "vllm", ["h200"], "llama3-70b")
    assert (roofline.error, str(roofline)) == (None, "roofline was never compared with a server")
