"""The accuracy board, and the sentence that goes with a modelled number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.catalog.accuracy import board, held_against
from laminabench.catalog.cost_file import load_costs
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
    costs = load_costs("vllm-0.24")
    (cell,) = (
        each
        for each in board().cells
        if (each.system, each.device, each.model, each.metric) == ("vllm", "h200", "llama3-70b", "tpot")
    )
    same = held_against(costs, "vllm", ["h200"], "llama3-70b")
    assert f"{cell.loads} loads" in same
    assert f"{cell.median:.1f} %" in same
    assert "other models on h200" in held_against(costs, "vllm", ["h200"], "qwen3-32b")
    assert "measured decode steps on gb200" in held_against(costs, "lamina", ["h200", "h20"], "llama3-70b")
    assert "never held against hardware" in held_against(costs, "h2m2", ["h200"], "llama3-70b")
    roofline = load_costs("roofline")
    assert held_against(roofline, "vllm", ["h200"], "llama3-70b") == roofline.held_against
