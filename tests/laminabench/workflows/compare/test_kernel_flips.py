"""The sentence about a verdict that another attention kernel changes."""

from __future__ import annotations

import dataclasses

import pytest
from made_outcome import trace_of

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployments
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices, priced
from laminabench.workflows.compare.cells import Cell, Grid, View, grid_cells
from laminabench.workflows.compare.spec import ComparisonSpec
from laminabench.workflows.compare.systems import kernel_flips, sentences_on, verdict_on

TRACE = trace_of(*zip(*[(16_000, 40), (30_000, 60)] * 100, strict=True), name="long")


def only_cell(h20_usd: float, kernels: tuple[str, ...] = (), attention: str = "4xh20") -> Cell:
    known = priced(load_devices(), {"h20": h20_usd})
    texts = {"lamina": f"2xh100+{attention}", "vllm": "4xh100"}
    given = {name: parse_deployments(text, None, known) for name, text in texts.items()}
    spec = ComparisonSpec(("lamina", "vllm"), given=given, catalogue=known)
    grid = Grid([View(load_costs("vllm-0.24", kernels), (spec,))], [model("llama3-70b")], [TRACE])
    return grid_cells(grid, jobs=1)[0]


def test_a_verdict_that_vllm_s_own_kernel_changes_is_one_sentence() -> None:
    # At $8.10 an H20 lamina's tokens a dollar are between those with FlashInfer and with fa3-64.
    cell = only_cell(8.1)
    (sentence,) = kernel_flips([cell], "vllm")
    assert sentence.startswith(
        "with vLLM's default kernel (--attention-kernel h20=fa3-64) the better of vllm"
    )
    assert "in 1 of 1 cells" in sentence
    assert "lamina +" in sentence
    assert ", then -" in sentence
    assert verdict_on(cell).depends == (
        "The kernel decides: with vLLM's default on h20 (--attention-kernel h20=fa3-64) this lamina makes "
        "2.8% fewer tokens for the same money than vllm."
    )


def test_the_answer_about_two_loads_has_what_decides_each() -> None:
    cells = [dataclasses.replace(only_cell(8.1), load=load) for load in ("own arrivals", "saturated")]
    decides = verdict_on(cells[0]).depends
    assert sentences_on(cells).count(decides) == 2


def test_only_what_decodes_on_h20_is_replayed_again() -> None:
    cell = only_cell(8.1)
    assert cell.other.kernels == ("h20=fa3-64",)
    assert set(cell.other.tokens_per_s) == {"lamina"}
    assert cell.other.tokens_per_s["lamina"] < cell.throughput_tokens_per_s["lamina"]
    assert only_cell(8.1, attention="4xh100").other.tokens_per_s == {}


@pytest.mark.parametrize(
    ("usd", "kernels", "attention"),
    [(4.63, (), "4xh20"), (8.1, ("h20=fa3-64",), "4xh20"), (8.1, (), "4xh100")],
    ids=["far-from-even", "chosen-already", "without-h20"],
)
def test_no_sentence_where_nothing_changes(usd: float, kernels: tuple[str, ...], attention: str) -> None:
    assert list(kernel_flips([only_cell(usd, kernels, attention)], "vllm")) == []
