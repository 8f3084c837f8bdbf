"""Fitting: the minimiser, and made-up measurements with a known answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import AllReduceCost, AttentionCost, GemmCost, Origin
from laminabench.catalog.fitting import terms
from laminabench.catalog.fitting.formulas import hold_out, layer_errors, layers_in_grid
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import minimise
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import error_rows
from laminabench.catalog.importing.vllm_tables import vllm_allreduce, vllm_gemm

TRUTH = Origin("assumed", "made up")
GEMM = terms.gemm(device("h100"), "bf16")


def test_the_minimiser_finds_the_bottom_of_a_bent_valley():
    def rosenbrock(x):
        return float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)

    result = minimise(rosenbrock, np.array([-1.2, 1.0]), rounds=3)
    assert result == pytest.approx([1, 1], abs=1e-3)
    assert np.array_equal(result, minimise(rosenbrock, np.array([-1.2, 1.0]), rounds=3))


def _grid(**axes):
    columns = np.meshgrid(*axes.values(), indexing="ij")
    return {name: column.ravel().astype(np.float64) for name, column in zip(axes, columns, strict=True)}


def _gemm_samples(cost, noise=0.0):
    columns = _grid(
        m=[1, 8, 64, 256, 1024], n=[512, 1024, 2048, 3072, 4096, 6144], k=[1024, 2048, 4096, 6144]
    )
    clean = GEMM.times(Samples(columns, columns["m"]))(cost)
    jitter = np.random.default_rng(1).normal(0, noise, len(clean))
    return Samples(columns, clean * np.exp(jitter))


def test_a_gemm_fit_recovers_what_made_the_times():
    truth = GemmCost(4e-6, 0.3e-9, 0.7, 0.85, 2.5, TRUTH)
    exact = _gemm_samples(truth)
    assert GEMM.error(GEMM.to(exact), exact) < 1
    noisy = _gemm_samples(truth, 0.05)
    result = GEMM.to(noisy)
    assert result.flops_efficiency == pytest.approx(0.7, rel=0.1)
    assert result.bandwidth_efficiency == pytest.approx(0.85, rel=0.1)
    assert result.per_input_s == 0


def test_an_attention_fit_recovers_what_made_the_times():
    truth = AttentionCost(10e-6, 1.5e-9, 0.8, 4.0, TRUTH)
    columns = _grid(batch=[8, 32, 128, 512], context=[256, 1024, 4096], heads=[8, 64], kv_heads=[1, 8])
    columns["token_bytes"] = np.full(len(columns["batch"]), 512.0)
    samples = Samples(columns, columns["batch"])
    samples = Samples(columns, terms.attention(device("h100")).times(samples)(truth))
    result = terms.attention(device("h100")).to(samples)
    assert result.bandwidth_efficiency == pytest.approx(0.8, rel=0.03)
    assert result.overhead_s == pytest.approx(10e-6, rel=0.1)


def test_an_all_reduce_fit_recovers_what_made_the_times():
    sizes = 2.0 ** np.arange(8, 26)
    truth = AllReduceCost(5e-6, 0.5, TRUTH)
    samples = Samples({"bytes": sizes}, truth.seconds(device("h100"), 4, sizes))
    result = terms.collective(AllReduceCost, device("h100"), 4).to(samples)
    assert result.latency_s == pytest.approx(5e-6, rel=0.01)
    assert result.link_efficiency == pytest.approx(0.5, rel=0.01)


def test_held_out_layers_are_whole_and_unseen():
    truth = GemmCost(4e-6, 0.0, 0.7, 0.85, 2.5, TRUTH)
    samples = _gemm_samples(truth)
    layers = {layer.name: layer for layer in layers_in_grid(samples)}
    # The fused gate-and-up matrix (12288 rows) is not in the grid: it counts as two halves.
    assert layers["qwen3-8b over 2"].shapes == (
        (3072, 4096),
        (4096, 2048),
        (6144, 4096),
        (6144, 4096),
        (4096, 6144),
    )
    stored = set(layers["qwen3-8b over 2"].shapes)
    observed, unseen = hold_out(samples, stored)
    assert len(observed) + len(unseen) == len(samples)
    assert {(int(n), int(k)) for n, k in zip(unseen["n"], unseen["k"], strict=True)} == stored
    assert not stored & {(int(n), int(k)) for n, k in zip(observed["n"], observed["k"], strict=True)}
    mean, worst = layer_errors([layers["qwen3-8b over 2"]], unseen, unseen.seconds * 1.1)
    assert mean == pytest.approx(10)
    assert worst == pytest.approx(10)


def test_error_rows_name_every_fitted_term():
    rows = error_rows(load_costs("vllm-0.14"))
    assert {row["term"] for row in rows} == {*("gemm", "attention", "prompts", "allreduce", "elementwise")}
    assert all(row["samples"] > 0 and 0 < row["op"] < 20 for row in rows)


def test_all_reduce_messages_are_read_as_bf16_elements(tmp_path):
    pd.DataFrame(
        {
            "backend": ["vllm_graph", "vllm_graph", "vllm_eager", "vllm_graph", "vllm_graph"],
            "num_gpus": [2, 2, 2, 4, 2],
            "message_size": [128, 1024, 128, 128, 2**25],
            "latency": [0.005, 0.006, 0.05, 0.007, 0.5],
        }
    ).to_parquet(tmp_path / "custom_allreduce_perf.parquet")
    samples = vllm_allreduce(tmp_path / "custom_allreduce_perf.parquet", 2)
    assert samples["bytes"].tolist() == [256, 2048]  # not the eager one, not the 64 MiB one
    assert samples.seconds == pytest.approx([5e-6, 6e-6])


def test_gemm_rows_are_those_of_a_decode_step(tmp_path):
    rows = [
        (1, 512, 512),
        (4096, 512, 512),
        (1, 256, 512),
        (1, 512, 64),
        (1, 65536, 65536),
        (2048, 65536, 512),
    ]
    table = pd.DataFrame(rows, columns=["m", "n", "k"]).assign(gemm_dtype="bfloat16", latency=0.25)
    table.loc[len(table)] = [8, 512, 512, "fp8", 0.5]
    path = tmp_path / "gemm_perf.parquet"
    table.to_parquet(path)
    samples = vllm_gemm(path, "bf16")
    saved = list(zip(samples["m"], samples["n"], samples["k"], strict=True))
    assert saved == [(1, 512, 512), (2048, 65536, 512)]
    assert samples.seconds == pytest.approx([0.25e-3, 0.25e-3])
    assert vllm_gemm(path, "fp8")["m"].tolist() == [8]
