"""Cost formulas, by hand and by property; the committed sets and their honesty."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.catalog.cost_file import COST_SETS, DEFAULT_COSTS, load_costs, to_toml, write_costs
from laminabench.catalog.cost_terms import GemmCost, Origin, rounded_max
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device, load_devices
from laminabench.errors import UserError

MODELS = ("llama-33b", "llama3-70b", "opt-175b", "qwen3-8b")
sizes = st.integers(1, 65536)


@pytest.mark.parametrize("name", ["vllm-0.14", "vidur-2024"])
@pytest.mark.parametrize("measured", ["h100", "a100-80g-sxm"])
def test_committed_gemm_errors_on_unseen_layers_are_within_ten_percent(name, measured):
    errors = load_costs(name).gemm[measured, "bf16"].origin.errors
    assert errors["held_out_layer"] <= 10
    assert errors.get("held_out_layer_worst_degree", 0) <= 10
    assert errors["op"] <= 11


def test_the_default_set_is_measured_with_one_stack():
    costs = load_costs()
    assert costs.name == DEFAULT_COSTS == "vllm-0.14"
    for table in (costs.gemm, costs.attention, costs.allreduce):
        for term in table.values():
            assert term.origin.kind == "fitted"
            assert "aiconfigurator" in term.origin.source
            assert "vLLM 0.14.0" in term.origin.source
            assert term.origin.samples > 0
            assert term.origin.errors


@pytest.mark.parametrize("name", COST_SETS)
def test_no_set_knows_a_board(name):
    with pytest.raises(UserError, match="costs-device-is-a-board"):
        load_costs(name).attention_terms(model("llama-7b"), device("h2m2"))


@pytest.mark.parametrize("name", COST_SETS)
@pytest.mark.parametrize("on", sorted(load_devices().keys() - {"cpu", "h2m2"}))
def test_every_set_covers_every_device_and_every_number_has_a_source(name, on):
    if name == "vllm-0.19" and (name, on) != ("vllm-0.19", "rtx-pro-6000"):
        # A step over two needs an all-reduce, which no profile of the other has.
        with pytest.raises(UserError, match="costs-no-coefficients"):
            load_costs(name).model_step(model("llama-7b"), device(on), 2, [1])
        return
    costs, found = load_costs(name), device(on)
    step = costs.model_step(model("llama-7b"), found, 2, [0, 1, 64])
    assert step.total_s[0] == 0
    assert 0 < step.total_s[1] <= step.total_s[2] < 10
    assert costs.attention_seconds(model("llama-7b"), found, 64 * 1000, 64) > 0
    for row in costs.provenance(found, tp=2):
        assert row["source"]
        assert row["kind"] in {"fitted", "published", "assumed", "ideal"}
        assert row["coefficients"]


@pytest.mark.parametrize("name", COST_SETS)
def test_a_core_has_the_ideal_set_only_and_the_others_name_it(name):
    costs, core = load_costs(name), device("cpu")
    if name == "roofline":
        step = costs.model_step(model("llama-mini"), core, 1, [1])
        # 0.5 GB of weights at 36.9 GB/s, less the embedding, of which one row is read.
        assert float(step.total_s[0]) == pytest.approx((0.4927 - 0.0655) / 36.9, rel=0.01)
    else:
        with pytest.raises(UserError, match="costs-no-coefficients"):
            costs.model_step(model("llama-mini"), core, 1, [1])


def test_h20_is_h100_s_efficiencies_on_h20_s_specification_and_labelled():
    costs, h20, h100 = load_costs(), device("h20"), device("h100")
    rows = {row["term"]: row for row in costs.provenance(h20, tp=4)}
    for term in ("gemm", "attention", "allreduce over 4", "elementwise"):
        assert rows[term]["kind"] == "assumed"
        assert rows[term]["borrowed_from"] == "h100"
        assert "no public H20 measurement" in rows[term]["reason"]
    assert rows["host"]["kind"] == "assumed"
    assert costs.host.seconds(100) == pytest.approx(4e-3)
    assert {row["kind"] for row in costs.provenance(h100)} == {"fitted", "assumed"}
    ours, theirs = (costs.attention_terms(model("llama3-70b"), each) for each in (h20, h100))
    assert ours.per_kv_token_s / theirs.per_kv_token_s == pytest.approx(3.35 / 4.0)
    assert ours.fixed_s == theirs.fixed_s


def test_the_roofline_is_the_data_sheet():
    costs, h100, shape = load_costs("roofline"), device("h100"), model("llama3-70b")
    assert costs.gemm_seconds(h100, 8192, 8192, 8192) == pytest.approx(2 * 8192**3 / 989e12)
    assert costs.gemm_seconds(h100, 1, 8192, 8192) == pytest.approx(2 * (8192**2 + 2 * 8192) / 3.35e12)
    tokens = 20 * 4096
    assert costs.attention_seconds(shape, h100, tokens, 20) == pytest.approx(
        tokens * shape.kv_bytes_per_token / 3.35e12
    )
    assert costs.allreduce_seconds(h100, 4, 1e9) == pytest.approx(1.5 * 1e9 / 450e9)
    assert costs.host.seconds(100) == 0
    # One token reads the weights once; activations add little.
    weights = shape.weight_bytes_per_worker(2) - 128256 * 8192 * 2 / 2
    assert costs.model_step(shape, h100, 2, 1).total_s == pytest.approx(weights / 3.35e12, rel=0.01)


@pytest.mark.parametrize("name", ["vllm-0.14", "vidur-2024"])
@given(m=sizes, n=sizes, k=sizes, on=st.sampled_from(["h100", "h20", "a100-80g-sxm", "arc-a770"]))
def test_nothing_beats_the_roofline_and_more_work_takes_no_less_time(name, m, n, k, on):
    costs, ideal, found = load_costs(name), load_costs("roofline"), device(on)
    took = costs.gemm_seconds(found, m, n, k)
    assert took > ideal.gemm_seconds(found, m, n, k)
    assert costs.gemm_seconds(found, m + 1, n, k) >= took
    assert costs.gemm_seconds(found, m, n + 1, k) >= took
    assert costs.gemm_seconds(found, m, n, k + 1) >= took


@given(a=st.floats(1e-12, 1e3), b=st.floats(1e-12, 1e3), p=st.floats(1, 50) | st.just(float("inf")))
def test_the_rounded_maximum_lies_between_the_maximum_and_the_sum(a, b, p):
    value = rounded_max(np.float64(a), np.float64(b), p)
    assert max(a, b) <= value * (1 + 1e-12)
    assert value <= (a + b) * (1 + 1e-12)
    assert value == rounded_max(np.float64(b), np.float64(a), p)


def test_a_gemm_by_hand():
    cost = GemmCost(1e-6, 1e-9, 0.5, 0.25, 2.0, Origin("assumed", "a test"), per_input_s=1e-12)
    compute = 2 * 100 * 200 * 300 / (0.5 * 989e12)
    memory = 2 * (300 * 200 + 100 * 300 + 100 * 200) / (0.25 * 3.35e12)
    expected = 1e-6 + 300e-9 + 30000e-12 + np.hypot(compute, memory)
    assert cost.seconds(device("h100"), 100, 200, 300) == pytest.approx(expected)


def test_fp8_reads_half_the_bytes():
    h100 = device("h100")
    costs = load_costs()
    assert costs.gemm_seconds(h100, 16, 16384, 16384, "fp8") < costs.gemm_seconds(h100, 16, 16384, 16384)
    with pytest.raises(UserError, match="costs-no-coefficients"):
        costs.gemm_seconds(device("a100-80g"), 16, 1024, 1024, "fp8")


@pytest.mark.parametrize("name", sorted({*COST_SETS} - {"vllm-0.19"}))
@pytest.mark.parametrize("shape", MODELS)
def test_the_table_is_the_step_and_its_parts_add_up(name, shape):
    costs, h100, found = load_costs(name), device("h100"), model(shape)
    table = costs.model_step_seconds(found, h100, 4, np.arange(301))
    assert table.shape == (301,)
    assert table.dtype == np.float64
    assert table[0] == 0
    assert np.all(np.diff(table) > 0)
    for batch in (1, 77, 300):
        gemms = sum(costs.gemm_seconds(h100, batch, gemm.n, gemm.k) for gemm in found.layer_gemms(4))
        kernels, elements = found.elementwise(4)
        small = costs.elementwise.get("h100", costs.elementwise.get("any")).seconds(
            h100, kernels, 2 * elements * batch
        )
        reduce = 2 * costs.allreduce_seconds(h100, 4, 2 * found.hidden * batch)
        head = found.lm_head_gemm(4)
        expected = found.layers * (gemms + small + reduce) + costs.gemm_seconds(h100, batch, head.n, head.k)
        assert table[batch] == pytest.approx(float(expected))


def test_a_table_of_4096_batches_is_fast():
    costs, h100, found = load_costs(), device("h100"), model("llama3-70b")
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        costs.model_step_seconds(found, h100, 2, np.arange(4097))
        best = min(best, time.perf_counter() - start)
    assert best < 0.02  # about 1 ms; the limit leaves room for a loaded machine


def test_a_degree_that_was_not_measured_uses_the_next_one():
    costs, h100 = load_costs(), device("h100")
    four = costs.allreduce["h100", 4]
    assert costs.allreduce_seconds(h100, 3, 3e6) == pytest.approx(
        four.latency_s + 2 * 2 / 3 * 3e6 / (four.link_efficiency * 450e9)
    )
    assert costs.allreduce_seconds(h100, 16, 1e6) > 0
    # One device needs none.
    assert np.all(costs.model_step(model("llama3-8b"), h100, 1, [1, 2]).allreduce_s == 0)


@given(
    tokens=st.integers(1, 10**7),
    batch=st.integers(1, 4096),
    workers=st.integers(1, 8),
    on=st.sampled_from(MODELS),
)
@settings(max_examples=50)
def test_attention_is_the_sum_of_its_terms(tokens, batch, workers, on):
    costs, h20, found = load_costs(), device("h20"), model(on)
    fixed, request, token, mean = costs.attention_terms(found, h20, workers)
    expected = fixed + request * batch + token * tokens + mean * tokens / batch
    assert costs.attention_seconds(found, h20, tokens, batch, workers) == pytest.approx(expected)
    assert costs.attention_seconds(found, h20, 0, 0, workers) == 0


def test_an_uneven_head_split_costs_what_its_fullest_worker_costs():
    costs, h20, found = load_costs(), device("h20"), model("llama3-70b")
    assert costs.attention_terms(found, h20, 6) == costs.attention_terms(found, h20, 4)
    # Tensor parallelism beyond the KV heads copies them: the bytes stay, the query heads halve.
    eight, sixteen = (costs.attention_terms(found, h20, workers) for workers in (8, 16))
    assert sixteen.per_kv_token_s == eight.per_kv_token_s
    assert sixteen.per_request_s == pytest.approx(eight.per_request_s / 2)


@pytest.mark.parametrize("context", [4096, 8192])
def test_attention_uses_over_70_percent_of_the_bandwidth_at_20_requests_as_v2_says(context):
    shape, h100 = model("llama3-70b"), device("h100")
    took = load_costs().attention_seconds(shape, h100, 20 * context, 20)
    assert 20 * context * shape.kv_bytes_per_token / took / h100.bandwidth_bytes_per_s > 0.7


@pytest.mark.parametrize("name", ["vllm-0.14", "vidur-2024"])
def test_a_set_is_written_and_read_back(tmp_path, name):
    costs = load_costs(name)
    path = tmp_path / "mine.toml"
    write_costs(costs, path, "a comment\nof two lines")
    assert load_costs(str(path)) == costs
    assert to_toml(load_costs(str(path))) == to_toml(costs)


def test_a_broken_file_is_refused(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text('name = "mine"\n')
    with pytest.raises(UserError, match="costs-file-incomplete"):
        load_costs(str(path))
    path.write_text("name = ")
    with pytest.raises(UserError, match="catalogue-file-not-toml"):
        load_costs(str(path))
    with pytest.raises(UserError, match="catalogue-file-unreadable"):
        load_costs(str(tmp_path / "absent.toml"))
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        load_costs("vllm-0.1")


def test_a_set_without_the_device_says_what_it_has(tmp_path):
    path = tmp_path / "mine.toml"
    text = to_toml(load_costs())
    path.write_text("\n\n".join(part for part in text.split("\n\n") if "a100" not in part.split("\n")[0]))
    with pytest.raises(UserError, match="costs-no-coefficients"):
        load_costs(str(path)).model_step_seconds(model("llama-7b"), device("rtx-3090"), 1, 1)
