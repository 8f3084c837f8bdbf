"""The sentence about a verdict that another attention kernel changes."""

from __future__ import annotations

import pytest
from made_outcome import trace_of

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployments
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices, priced
from laminabench.workflows.compare.cells import Grid, View, grid_cells
from laminabench.workflows.compare.kernels import kernel_flips
from laminabench.workflows.compare.spec import ComparisonSpec

TRACE = trace_of(*zip(*[(16_000, 40), (30_000, 60)] * 100, strict=True), name="long")


def flips(h20_usd: float, kernels: tuple[str, ...] = (), attention: str = "4xh20") -> list[str]:
    known = priced(load_devices(), {"h20": h20_usd})
    texts = {"lamina": f"2xh100+{attention}", "vllm": "4xh100"}
    given = {name: parse_deployments(text, None, known) for name, text in texts.items()}
    spec = ComparisonSpec(("lamina", "vllm"), given=given, catalogue=known)
    grid = Grid([View(load_costs("vllm-0.24", kernels), (spec,))], [model("llama3-70b")], [TRACE])
    return list(kernel_flips(grid, grid_cells(grid, jobs=1), "vllm", 1))


def test_a_verdict_that_vllm_s_own_kernel_changes_is_one_sentence() -> None:
    # At $8.10 an H20 lamina's tokens a dollar are between those with FlashInfer and with fa3-64.
    (sentence,) = flips(8.1)
    assert sentence.startswith("with h20=fa3-64, as vLLM takes without a flag")
    assert "in 1 of 1 cells" in sentence
    assert "lamina +" in sentence
    assert ", then -" in sentence


@pytest.mark.parametrize(
    ("usd", "kernels", "attention"),
    [(4.63, (), "4xh20"), (8.1, ("h20=fa3-64",), "4xh20"), (8.1, (), "4xh100")],
    ids=["far-from-even", "chosen-already", "without-h20"],
)
def test_no_sentence_where_nothing_changes(usd: float, kernels: tuple[str, ...], attention: str) -> None:
    assert flips(usd, kernels, attention) == []
