"""Both H20s in the default set: one as SGLang's kernels were measured there, the other scaled from it."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_keys import CollectiveKey, GemmKey
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.importing.vllm_mixtures import latent_kernel
from laminabench.catalog.importing.vllm_tables import vllm_gemm
from laminabench.catalog.models import DTYPE_BYTES
from laminabench.catalog.provenance import provenance, step_sources

COSTS = load_costs("vllm-0.24")
H20, H20_3E, H100 = device("h20"), device("h20-3e"), device("h100")
FORMATS = ("bf16", "fp8", "fp8_block")
ROWS = np.array([1, 16, 64, 256, 2048])


@pytest.mark.parametrize("on", [H20, H20_3E], ids=str)
@pytest.mark.parametrize("dtype", FORMATS)
def test_no_product_is_above_the_data_sheet(on, dtype):
    curves = COSTS.measured.of(on.name, dtype)
    assert len(curves) > 90
    for (n, k), curve in curves.items():
        # Weights that the last-level cache (60 MB) cannot hold.
        if n * k * DTYPE_BYTES[dtype] > 60e6:
            assert (n * k * DTYPE_BYTES[dtype] / curve.seconds < on.bandwidth_bytes_per_s).all()
        assert (2 * n * k * curve.rows / curve.seconds < on.flops_for(dtype)).all()
    for n, k in ((4096, 16384), (57344, 8192), (6000, 7000)):
        seconds = COSTS.gemm_seconds(on, ROWS, n, k, dtype)
        assert (n * k * DTYPE_BYTES[dtype] / seconds < on.bandwidth_bytes_per_s).all()
        assert (2 * n * k * ROWS / seconds < on.flops_for(dtype)).all()


@pytest.mark.parametrize(("n", "k"), [(8192, 8192), (57344, 8192), (6000, 7000)])
def test_memory_counts_in_bf16_at_small_batches_alone(n, k):
    for dtype in FORMATS:
        ratio = COSTS.gemm_seconds(H20, ROWS, n, k, dtype) / COSTS.gemm_seconds(H20_3E, ROWS, n, k, dtype)
        if dtype == "bf16":
            assert 1.1 < ratio[0] <= 4.8 / 4.0
            assert (np.diff(ratio) < 0).all()
            assert ratio[3] < 1.01
        else:
            assert ratio == pytest.approx(1, abs=1e-3)


def test_fp8_is_slow_at_small_batches():
    """Tiles of 64 rows read 1.0 to 1.3 TB/s; by H100's efficiencies it would be 2 to 3 times as much."""
    by_h100 = COSTS.gemm_cost(H100, "fp8").seconds(H20, ROWS[:2], 57344, 8192, "fp8")
    seconds = COSTS.gemm_seconds(H20, ROWS[:2], 57344, 8192, "fp8")
    assert 57344 * 8192 / seconds == pytest.approx([1.2e12, 1.2e12], rel=0.08)
    assert (seconds > 2.2 * by_h100).all()


def test_errors_on_left_out_layers_are_those_of_measured_devices():
    errors = {dtype: COSTS.gemm["h20-3e", dtype].origin.errors for dtype in FORMATS}
    assert max(each["held_out_layer_nearest"] for each in errors.values()) < 4
    assert max(each["held_out_layer"] for each in errors.values()) < 8


def test_what_computing_or_links_bind_is_the_same_on_both():
    llama, deepseek = model("llama3-70b"), model("deepseek-v3")
    for of in (llama, deepseek):
        assert COSTS.prompt_terms(of, H20, 4) == COSTS.prompt_terms(of, H20_3E, 4)
    assert COSTS.prompt_attention["h20"].flops_efficiency == pytest.approx(0.745, abs=0.005)
    for op in ("all_gather", "reduce_scatter", "alltoall"):
        ours, theirs = (COSTS.collective_cost(on, op, 8) for on in (H20, H20_3E))
        assert ours.latency_s == theirs.latency_s
        assert COSTS.collectives[CollectiveKey("h20", op, 8)].origin.kind == "scaled"


def test_scaled_terms_say_so_and_whose_kernels_they_are():
    rows = {row["term"]: row for row in provenance(COSTS, H20, 4, prompts=True)}
    for term in ("gemm", "prompts"):
        assert rows[term]["kind"] == "scaled"
        assert "SGLang" in rows[term]["source"]
        assert "H20-3e" in rows[term]["source"]
    measured = {row["term"]: row for row in provenance(COSTS, H20_3E, 4, prompts=True)}
    assert (measured["gemm"]["kind"], "SGLang" in measured["gemm"]["source"]) == ("fitted", True)
    by = {row["term"]: row["priced_by"] for row in step_sources(COSTS, model("llama3-70b"), H20, 4)}
    assert by["down 8192x7168"] == "scaled times"
    assert "h20-3e" in COSTS.describe()["measured"]
    assert "h20" not in COSTS.describe()["measured"]
    assert COSTS.scaled("h20")
    assert not COSTS.scaled("h20-3e")


def test_what_the_tables_lack_is_borrowed_by_term():
    for on in (H20, H20_3E):
        rows = {row["term"]: row for row in provenance(COSTS, on, 4, model=model("mixtral-8x7b"))}
        borrowed = {term for term, row in rows.items() if row.get("borrowed_from") == "h100"}
        assert borrowed == {"allreduce over 4", "elementwise", "experts in bf16"}
        # Heads of 64 and windows are not in the tables of prompts.
        small = COSTS.prompt_attention_cost(on, 64, "bf16", 128)
        assert small == COSTS.prompt_attention_cost(H100, 64, "bf16", 128)


def test_flashinfer_has_no_other_kernel_s_overhead():
    ours, theirs = COSTS.attention_cost(H20), COSTS.attention_cost(H100)
    assert (ours.kernel, ours.overhead_s) == ("flashinfer", theirs.overhead_s)
    slow = load_costs("vllm-0.24", ("h20=fa3-128",)).attention_cost(H20)
    assert slow.overhead_s > ours.overhead_s


@pytest.mark.parametrize("dtype", FORMATS)
def test_products_are_the_table_s(dtype, real_profiles):
    folder = real_profiles / "aiconfigurator" / "h20_3e" / "gemm" / "sglang" / "0.5.1.post1"
    samples = vllm_gemm(folder / "gemm_perf.parquet", dtype)
    few = samples.where(np.isin(samples["m"], (1, 16, 32, 64)))
    curves = 0
    for n, k in sorted(set(zip(few["n"].astype(int), few["k"].astype(int), strict=True))):
        if GemmKey("h20-3e", dtype, n, k) in COSTS.measured.gemm:
            part = few.where((few["n"] == n) & (few["k"] == k))
            assert COSTS.gemm_seconds(H20_3E, part["m"], n, k, dtype) == pytest.approx(part.seconds, rel=1e-3)
            curves += 1
    assert curves > 90


@pytest.mark.parametrize("heads", [8, 16])
def test_mla_of_few_heads_is_the_table_s(heads, real_profiles):
    """Three times as slow as without tiles: few heads take as long as 64."""
    folder = real_profiles / "aiconfigurator" / "h20_3e" / "mla" / "sglang" / "0.5.1.post1"
    samples = latent_kernel(folder / "generation_mla_perf.parquet")
    samples = samples.where((samples["heads"] == heads) & (samples.seconds >= 50e-6))
    terms = COSTS.latent_cost(H20_3E).terms(H20_3E, heads, "bf16")
    predicted = terms.seconds(samples["batch"] * samples["context"], samples["batch"])
    assert 100 * np.mean(np.abs(predicted / samples.seconds - 1)) < 8
