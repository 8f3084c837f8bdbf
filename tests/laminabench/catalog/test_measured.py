"""What a cost set holds as it was measured: curves, grids, and where they hand over to the formulas."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs, to_toml, write_costs
from laminabench.catalog.cost_keys import ExpertsKey, GemmKey, LatentKey, LinesKey, OperatorKey
from laminabench.catalog.cost_terms import Origin
from laminabench.catalog.find_model import model, modelled
from laminabench.catalog.hardware import device
from laminabench.catalog.measured import AttentionLines, Curve, Measured
from laminabench.catalog.measured_tables import packed, unpacked
from laminabench.catalog.model_parts import Window
from laminabench.catalog.provenance import step_sources
from laminabench.catalog.step import model_step
from laminabench.util.errors import UserError

HERE = Origin("measured", "made up")
ROWS = np.array([1.0, 8.0, 512.0])
SOURCE = Origin("measured", "made up", "1-512", {"held_out_op": 2.5}, 3, True)
LINES = AttentionLines(
    ROWS, np.array([1e-5, 2e-5, 3e-5]), np.array([2e-9, 1e-9, 1.5e-9]), Origin("measured", "lines")
)
EXPERTS = ExpertsKey("h100", "fp8_block", 4096, 1536, 8, 128, 1, 8)
MANY = Measured(
    gemm={GemmKey("h100", "bf16", 4096, 512): Curve(ROWS, np.array([1e-5, 1.2346e-5, 1e-3]), SOURCE)},
    operators={OperatorKey("h100", "norm", 4096): Curve(ROWS, np.array([1e-6, 2e-6, 1e-3]), SOURCE)},
    experts={EXPERTS: Curve(ROWS, np.array([3e-5, 4e-5, 1e-3]), SOURCE)},
    lines={LinesKey("h100", 8, 1, 128, "bf16", 0): LINES},
    latent={LatentKey("h100", 16, "fp8"): LINES},
)
CURVE = Curve(np.array([1.0, 4.0, 8.0]), np.array([10e-6, 12e-6, 20e-6]), HERE)
NAME, ON = "vllm-0.19", "rtx-4090"


def test_a_curve_is_linear_between_its_points_flat_below_and_grows_as_the_formula_above():
    assert CURVE.at([0, 1, 2.5, 8]) == pytest.approx([10e-6, 10e-6, 11e-6, 20e-6])
    assert CURVE.at(16) == pytest.approx(40e-6)
    formula = np.array([1e-6, 3e-6])
    assert CURVE.at([8, 24], formula, last=1e-6) == pytest.approx([20e-6, 60e-6])


def test_rows_are_padded_to_the_sizes_that_vllm_captures():
    rows = np.array([1, 2, 3, 4, 5, 8, 9, 250, 256, 257, 272, 511, 512, 513, 2048], np.float64)
    padded = Measured(graph_rows=512).padded(rows)
    assert padded.tolist() == [1, 2, 4, 4, 8, 8, 16, 256, 256, 272, 272, 512, 512, 513, 2048]
    assert Measured().padded(rows) is rows


def test_a_step_is_the_sum_of_what_was_measured():
    costs, shape, on = load_costs(NAME), model("llama3.1-8b"), device(ON)
    step = model_step(costs, shape, on, 1, [8])
    gemm, operators = costs.measured.gemm, costs.measured.operators
    matrices = [gemm[ON, "bf16", each.n, each.k].at(8) for each in shape.layer_gemms(1)]
    assert float(step.gemm_s[0]) == pytest.approx(32 * float(sum(matrices)))
    norm, act, rotary = (
        operators[ON, name, width].at(8)
        for name, width in (("norm", 4096), ("activation", 14336), ("rotary", 5120))
    )
    once = operators[ON, "embedding", 4096].at(8)
    assert float(step.elementwise_s[0]) == pytest.approx(float(65 * norm + 32 * (act + rotary) + once))
    head = gemm[ON, "bf16", 128256, 4096].at(8) + operators[ON, "sampler", 128256].at(8)
    assert float(step.lm_head_s[0]) == pytest.approx(float(head))


def test_what_no_table_has_is_priced_by_the_formula():
    costs, on = load_costs(NAME), device(ON)
    bare = replace(costs, measured=Measured())
    other = model("qwen3-8b")  # other widths, but for a few matrices
    sources = {row["term"]: row["priced_by"] for row in step_sources(costs, other, on, 1)}
    assert sources["qkv 6144x4096"] == "measurements"
    assert sources["gate_up 24576x4096"] == "formula"
    assert {name: by for name, by in sources.items() if name.startswith(("norm", "qk_norm"))} == {
        "norm 4096": "formula",
        "qk_norm 5120": "formula",
    }
    n, k = 24576, 4096
    assert costs.gemm_seconds(on, 8, n, k) == bare.gemm_seconds(on, 8, n, k)
    assert costs.measured_attention(other, on, 3) is None
    assert costs.measured_attention(modelled("llama3.1-8b@fp8"), on) is None
    assert costs.measured_attention(model("llama3.1-8b"), on) is not None


def test_measured_attention_does_not_price_a_model_with_sliding_windows():
    costs, shape, on = load_costs(NAME), model("llama3.1-8b"), device(ON)
    assert costs.measured_attention(shape, on) is not None
    assert costs.measured_attention(dataclasses.replace(shape, window=Window(4096, 32)), on) is None


def test_the_nearest_matrices_correct_the_formula_the_less_the_further_they_are(tmp_path: Path) -> None:
    bare, on, rows = load_costs("vllm-0.14"), device("h100"), np.array([1.0, 64.0, 512.0])
    slower = Curve(rows, 1.2 * bare.gemm_seconds(on, rows, 4096, 4096), HERE)
    costs = replace(bare, measured=Measured({GemmKey("h100", "bf16", 4096, 4096): slower}, nearest=4))

    def ratio(n: int, k: int, at=on, dtype="bf16", m: float = 8) -> float:
        return float(costs.gemm_seconds(at, m, n, k, dtype) / bare.gemm_seconds(at, m, n, k, dtype))

    assert ratio(4096, 4097) == pytest.approx(1.2, rel=1e-4)
    weight = 1 / np.log(2) ** 2
    assert ratio(8192, 4096) == pytest.approx(1.2 ** (weight / (1 + weight)))
    assert ratio(8192, 4096) == pytest.approx(ratio(4096, 16384))  # n counts twice
    assert ratio(8192, 4096, m=4096) == pytest.approx(ratio(8192, 4096, m=512))
    assert 1 < ratio(4096 * 500, 4096) < 1.01
    assert ratio(8192, 4096, dtype="fp8") == 1  # of other kernels nothing was measured
    fast = dataclasses.replace(on, flops={name: 2 * rate for name, rate in on.flops.items()})
    assert ratio(8192, 4096, at=fast) == pytest.approx(ratio(8192, 4096))
    sources = {row["term"]: row["priced_by"] for row in step_sources(costs, model("llama3-8b"), on, 1)}
    assert (sources["o 4096x4096"], sources["qkv 6144x4096"]) == ("measurements", "formula, nearest")
    write_costs(costs, tmp_path / "near.toml")
    assert load_costs(str(tmp_path / "near.toml")).measured.nearest == 4


def test_beyond_the_largest_size_a_matrix_goes_on_without_a_jump():
    costs, on = load_costs(NAME), device(ON)
    before, last, after = costs.gemm_seconds(on, [2047, 2048, 2049], 4096, 4096)
    assert before == pytest.approx(last, rel=0.01)
    assert last < after < last * 1.01


def test_a_device_thought_faster_is_faster_in_the_ratio_of_the_formula():
    from dataclasses import replace as changed

    costs, on = load_costs(NAME), device(ON)
    faster = changed(on, bandwidth_bytes_per_s=2 * on.bandwidth_bytes_per_s)
    bare = replace(costs, measured=Measured())
    ratio = bare.gemm_seconds(faster, 8, 4096, 4096) / bare.gemm_seconds(on, 8, 4096, 4096)
    assert costs.gemm_seconds(faster, 8, 4096, 4096) == pytest.approx(
        ratio * costs.gemm_seconds(on, 8, 4096, 4096)
    )
    assert ratio < 0.7


@pytest.mark.parametrize("on", ["rtx-4090", "rtx-pro-6000"])
def test_interpolation_on_shapes_that_a_table_has_is_within_two_percent(on):
    """Every other point from its neighbours, which are then twice as far apart as in use."""
    stored = [
        curve.origin.errors["held_out_op"]
        for (name, *_), curve in load_costs(NAME).measured.gemm.items()
        if name == on
    ]
    assert np.mean(stored) < 2


def test_unseen_models_layers_are_within_five_percent():
    assert load_costs(NAME).gemm["rtx-pro-6000", "bf16"].origin.errors["held_out_layer"] < 5


def test_a_set_with_grids_is_written_and_read_back(tmp_path):
    path = tmp_path / "mine.toml"
    write_costs(load_costs(NAME), path)
    again = load_costs(str(path))
    assert to_toml(again) == path.read_text()
    assert again == load_costs(str(path))
    assert again != replace(again, measured=Measured())


def test_curves_and_lines_are_read_back():
    text = packed(MANY)
    result = unpacked(text)
    assert packed(Measured(**result)) == text
    curve = result["experts"][EXPERTS]
    assert curve.origin == SOURCE
    assert curve.at([8, 1024]) == pytest.approx([4e-5, 2e-3])
    assert float(result["gemm"]["h100", "bf16", 4096, 512].at(8)) == pytest.approx(1.235e-5)  # four digits
    lines = result["lines"]["h100", 8, 1, 128, "bf16", 0]
    assert lines.per_token_s == pytest.approx(LINES.per_token_s)
    assert lines.origin == LINES.origin


def test_lines_between_two_numbers_of_requests_and_beyond_the_last():
    assert LINES.seconds(1000, 1) == pytest.approx(1e-5 + 2e-6)
    assert LINES.seconds(1000, 4.5) == pytest.approx(1.5e-5 + 1.5e-6)
    assert LINES.seconds([0, 1e6], 1024) == pytest.approx([6e-5, 6e-5 + 1.5e-3])
    assert LINES.seconds(0, 0) == 0


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("[1,8,512]", "[8,1,512]", "costs-file-incomplete"),
        ("30,40,1000", "30,40", "costs-file-incomplete"),
        ("30,40,1000", "30,-40,1000", "costs-file-incomplete"),
        ("\nheads = 32", "", "costs-file-incomplete"),
        ('axes = ["1 2 4', 'axes = ["1 2', "costs-file-incomplete"),
        ('axes = ["1 2 4', 'axes = ["1", "1 2 4', "costs-file-incomplete"),
        ('axes = ["1 2 4', 'axes = ["1 2 2', "costs-file-incomplete"),
        ('values = """\n', 'values = """\n-', "costs-not-a-number"),
        ('values = """\n', 'values = """\n1e308 ', "costs-not-a-number"),
        ("\nerrors_percent = {", "\nerrors_percent = 7 #", "costs-file-incomplete"),
        ("\nsource = ", "\nsource = 7 #", "costs-file-incomplete"),
        ('\nkind = "', '\nkind = "x', "costs-file-incomplete"),
    ],
)
def test_broken_measurements_are_refused(tmp_path: Path, old: str, new: str, code: str):
    path = tmp_path / "broken.toml"
    costs = load_costs(NAME)
    text = to_toml(replace(costs, measured=replace(MANY, attention=costs.measured.attention)))
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=code):
        load_costs(str(path))


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('rows = "1 ', 'rows = "9999 ', "costs-file-incomplete"),
        ('rows = "1 2', 'rows = "1', "costs-file-incomplete"),
        ('us = "', 'us = "-', "costs-not-a-number"),
        ('us = "', 'us = "nan ', "costs-not-a-number"),
    ],
)
def test_broken_tables_of_curves_are_refused(tmp_path: Path, old: str, new: str, code: str):
    """Sets of earlier versions have a table of TOML for each curve."""
    path = tmp_path / "broken.toml"
    text = Path("results/h200/kernels.toml").read_text()
    path.write_text(text)
    assert len(load_costs(str(path)).measured.gemm) == 5
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=code):
        load_costs(str(path))


def test_the_least_time_of_a_kv_token_is_below_every_measurement_and_what_lies_beyond():
    result = load_costs(NAME).measured_attention(model("llama3.1-8b"), device(ON))
    assert result is not None
    least, grid = result.least_per_kv_token(), result.grids.decode
    tokens = grid.axes[0][:, None] * grid.axes[1]
    assert (grid.values >= least * tokens).all()
    # Short contexts of few requests stay in the cache.
    assert 0.5 < least / result.terms.per_kv_token_s < 1.0
