"""Measured decode steps of disaggregated attention beside what is predicted of the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from laminabench.cli.main import main
from laminabench.util.errors import UserError
from laminabench.workflows.validate.disaggregation import (
    Measured,
    Predicted,
    described,
    kv_capacities,
    order,
    packaged_rows,
    predicted,
    predictions,
    read_rows,
    summaries,
)

HEAD = "id,system,model,attention_side,model_side,expert_kernel,batch,context,step_ms_cuda,step_ms_wall\n"
VLLM = "a,vllm,Qwen3-235B-A22B-FP8,16xgb200:dp16ep16,,deepgemm-masked,8,1024,14.0,\n"
LAMINA = "b,lamina,Qwen3-235B-A22B-FP8,28xgb200,4xgb200:dp4ep4,megamoe-fp8,6,131072,28.0,\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def step(name: str, system: str, ms: float, guess: float, batch: int = 6) -> Predicted:
    """A step of 8 devices in all, with its prediction."""
    sides = ("8xgb200:dp8ep8", "") if system == "vllm" else ("4xgb200", "4xgb200:dp4ep4")
    row = Measured(name, system, "m", *sides, "", batch, 1024, 1024, {"cuda": ms, "wall": None})
    return Predicted(row, {"cuda": guess, "wall": guess})


def test_packaged_rows_have_what_the_source_has() -> None:
    rows = packaged_rows()
    assert len(rows) == 72
    assert sum(row.system == "vllm" for row in rows) == 64
    assert sum(row.ms["wall"] is None for row in rows) == 9


def test_contexts_are_spread_evenly_from_the_shortest_to_the_longest(tmp_path: Path) -> None:
    (row,) = read_rows(written(tmp_path, HEAD + VLLM.replace("1024", "1000-2000").replace(",8,", ",5,")))
    assert row.contexts.tolist() == [1000, 1250, 1500, 1750, 2000]


def test_a_span_costs_what_its_mean_does_where_attention_is_linear(tmp_path: Path) -> None:
    text = HEAD + VLLM.replace("1024", "8000-16000") + VLLM.replace("1024", "12000")
    spread, even = predicted(read_rows(written(tmp_path, text)))
    assert spread.ms["cuda"] == pytest.approx(even.ms["cuda"], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id,system\n", "line 1 lacks the columns model"),
        (HEAD, "has no rows"),
        (HEAD + VLLM + VLLM.replace("vllm", "sglang"), "line 3: system is 'sglang'"),
        (HEAD + VLLM.replace("deepgemm-masked", "cutlass"), "line 2: expert_kernel is 'cutlass'"),
        (HEAD + VLLM.replace(",8,", ",0,"), "line 2: batch is '0'"),
        (HEAD + VLLM.replace("1024", "9-3"), "line 2: context is '9-3'"),
        (HEAD + VLLM.replace("14.0", "nan"), "line 2: step_ms_cuda is 'nan'"),
        (HEAD + VLLM.replace("14.0", "1e-300"), "line 2: step_ms_cuda is '1e-300'"),
        (HEAD + VLLM.replace("14.0,", "14.0,,9"), "line 2: it has more cells"),
        (HEAD + LAMINA.replace("4xgb200:dp4ep4", ""), "line 2: lamina has devices on both sides"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        read_rows(written(tmp_path, text))
    assert refused.value.code == "validation-bad-rows"


@pytest.mark.parametrize(
    ("was", "now", "code"),
    [
        ("Qwen3-235B-A22B-FP8", "Qwen9", "catalogue-unknown-name"),
        ("16xgb200:dp16ep16", "16xgb900:dp16ep16", "catalogue-unknown-name"),
        ("16xgb200:dp16ep16", "7xgb200:dp7ep7", "model-cannot-split"),
    ],
)
def test_unknown_names_say_in_which_row(tmp_path: Path, was: str, now: str, code: str) -> None:
    with pytest.raises(UserError, match="row a") as refused:
        predicted(read_rows(written(tmp_path, HEAD + VLLM.replace(was, now))))
    assert refused.value.code == code


def test_steps_of_more_requests_than_are_simulated_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row b.*are simulated at most") as refused:
        predicted(read_rows(written(tmp_path, HEAD + LAMINA.replace(",6,", ",65536,"))))
    assert refused.value.code == "validation-bad-rows"


def test_terms_sum_up_to_wall_and_less_the_host_to_cuda(tmp_path: Path) -> None:
    for each in predicted(read_rows(written(tmp_path, HEAD + VLLM + LAMINA))):
        assert sum(each.terms.values()) == pytest.approx(each.ms["wall"])
        assert each.ms["wall"] - each.terms["host"] == pytest.approx(each.ms["cuda"])


def test_rows_are_not_padded_as_the_very_batch_was_captured(tmp_path: Path) -> None:
    """vLLM's own graphs are of 24 and 32 rows, and one of 28 would be as long as of 32."""
    text = HEAD + "".join(VLLM.replace(",8,", f",{batch},") for batch in (24, 28, 32))
    least, between, most = (each.ms["cuda"] for each in predicted(read_rows(written(tmp_path, text))))
    assert least < between < 0.999 * most


@pytest.mark.parametrize("layout", [4, 8, 32, 64])
def test_any_degree_batch_and_context_is_predicted(tmp_path: Path, layout: int) -> None:
    side = f"{layout}xgb200:dp{layout}ep{layout}"
    rows = [
        VLLM.replace("16xgb200:dp16ep16", side).replace(",8,1024", f",{batch},{context}")
        for batch in (1, 512)
        for context in (1, 131072)
    ]
    times = [each.ms["cuda"] for each in predicted(read_rows(written(tmp_path, HEAD + "".join(rows))))]
    assert 0 < times[0] < times[1] < times[3]
    assert times[0] < times[2]


def test_summaries_have_medians_and_the_worst() -> None:
    made = [step(str(n), "vllm", 10.0, guess) for n, guess in enumerate((9.0, 10.2, 13.0))]
    assert summaries(made)["vllm"]["wall"] == {"n": 0}
    cuda = summaries(made)["vllm"]["cuda"]
    assert cuda["n"] == 3
    assert cuda["median_absolute_percent"] == pytest.approx(10)
    assert cuda["signed_median_percent"] == pytest.approx(2)
    assert cuda["worst_percent"] == pytest.approx(30)


def test_order_needs_the_sign_of_large_differences_and_the_size_of_small_ones() -> None:
    # By device lamina's 4 of 8 devices hold requests: half of vLLM's rate at the same step.
    pairs = [
        [step("v", "vllm", 20.0, 20.0), step("l", "lamina", 8.0, 9.0)],
        [step("v", "vllm", 20.0, 20.0), step("l", "lamina", 8.0, 11.0)],
        [step("v", "vllm", 20.0, 20.0), step("l", "lamina", 10.2, 9.6)],
        [step("v", "vllm", 20.0, 20.0), step("l", "lamina", 10.2, 8.0)],
    ]
    assert [order(each)["right"] for each in pairs] == [1, 0, 1, 0]
    assert order([step("v", "vllm", 9, 9), step("l", "lamina", 9, 9, batch=7)])["pairs"] == 0


def test_vllm_is_within_the_targets_on_the_packaged_rows() -> None:
    errors = described(predictions(None, None), None)["summaries"]["vllm"]
    assert errors["cuda"]["median_absolute_percent"] < 6
    assert errors["cuda"]["p90_percent"] < 12
    assert errors["wall"]["median_absolute_percent"] < 10


def test_kv_capacity_is_within_3_percent_of_what_the_engine_printed() -> None:
    for each in kv_capacities():
        assert abs(each["error_percent"]) < 3, each["deployment"]


def test_the_command_prints_rows_as_json(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + VLLM)
    done = CliRunner().invoke(main, ["validate", "disaggregation", "--rows", str(path), "--json"])
    (row,) = json.loads(done.stdout)["rows"]
    assert row["id"] == "a"
    assert row["measured_ms_cuda"] == 14.0
    assert row["measured_ms_wall"] is None
    assert np.isclose(row["predicted_ms_wall"] - row["predicted_ms_cuda"], row["terms"]["host"])
