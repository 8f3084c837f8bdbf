"""Sets from aiconfigurator's tables: a made-up GPU, and the real ones where they are."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pandas as pd
import pytest

from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.cost_terms import AllReduceCost, AttentionCost, GemmCost, Origin, PromptAttentionCost
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import imported
from laminabench.catalog.step import model_step_seconds
from laminabench.errors import UserError

TRUTH = Origin("assumed", "made up")
GEMM = GemmCost(4e-6, 0.3e-9, 0.7, 0.85, 2.5, TRUTH)
ATTENTION = AttentionCost(10e-6, 1.5e-9, 0.8, 4.0, TRUTH)
PROMPTS = PromptAttentionCost(8e-6, 0.5e-9, 0.6, TRUTH)
REDUCE = AllReduceCost(5e-6, 0.5, TRUTH)


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(path)


def _gemm(folder: Path, version: str, gemm: GemmCost, name: str = "bfloat16") -> None:
    on = device("h200")
    rows = [
        {"gemm_dtype": name, "m": m, "n": n, "k": k, "latency": 1e3 * float(gemm.seconds(on, m, n, k))}
        for m, n, k in itertools.product((1, 8, 64, 512), (2560, 4096, 6144), (4096, 8192))
    ]
    _write(folder / "gemm" / "vllm" / version / "gemm_perf.parquet", rows)


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """An H200 whose kernels take exactly what formulas say."""
    folder, on = tmp_path / "tables" / "h200_sxm", device("h200")
    _gemm(folder, "0.9.0", GemmCost(1, 0, 0.5, 0.5, 2, TRUTH))
    _gemm(folder, "0.19.0", GEMM)
    heads = [{"num_heads": h, "num_key_value_heads": kv, "head_dim": 128} for h, kv in ((8, 2), (32, 8))]
    heads += [{"num_heads": 16, "num_key_value_heads": kv, "head_dim": 128} for kv in (1, 2, 4)]
    decode, prompts = [], []
    for shape, size, length in itertools.product(heads, (8, 32, 128), (256, 1024, 4096)):
        about = {**shape, "batch_size": size, "kv_cache_dtype": "bfloat16", "window_size": 0}
        h, kv = shape["num_heads"], shape["num_key_value_heads"]
        terms = ATTENTION.terms(on.bandwidth_bytes_per_s, h, kv, 4 * kv * 128)
        seconds = float(terms.seconds(size * length, size))
        decode.append({**about, "isl": 1, "step": length - 1, "latency": 1e3 * seconds})
        # A window and other KV are other kernels.
        decode.append({**about, "isl": 1, "step": length - 1, "window_size": 128, "latency": 9.0})
        decode.append({**about, "isl": 1, "step": length - 1, "kv_cache_dtype": "fp8", "latency": 9.0})
        seconds = float(PROMPTS.terms(on, h, 128).seconds(size * length, size * length * (length + 1) / 2))
        prompts.append({**about, "isl": length, "step": 0, "latency": 1e3 * seconds})
    at = folder / "attention" / "vllm" / "0.24.0"
    _write(at / "generation_attention_perf.parquet", decode)
    pd.DataFrame(prompts).to_parquet(at / "context_attention_perf.parquet")
    reduce = [
        {
            "backend": "vllm_graph",
            "num_gpus": 4,
            "message_size": size // 2,
            "latency": 1e3 * float(REDUCE.seconds(on, 4, size)),
        }
        for size in (2**10, 2**14, 2**18, 2**22)
    ]
    _write(folder / "comm" / "vllm" / "0.24.0" / "custom_allreduce_perf.parquet", reduce)
    return folder


def test_a_gpu_becomes_curves_and_formulas(gpu: Path) -> None:
    costs = imported("aiconfigurator", [gpu], "mine", links=["h200=20us,16GB/s"])
    # Qwen3-8B has a matrix of 6144 x 4096, Llama-2-70B over 4 one of 2560 x 8192; none has 4096 x 8192.
    assert {(n, k) for *_, n, k in costs.measured.gemm} >= {(6144, 4096), (2560, 8192)}
    assert ("h200", "bf16", 4096, 8192) not in costs.measured.gemm
    on = device("h200")
    curve = costs.measured.gemm["h200", "bf16", 6144, 4096]
    assert curve.at([1, 64]) == pytest.approx(GEMM.seconds(on, [1, 64], 6144, 4096))
    assert costs.gemm["h200", "bf16"].bandwidth_efficiency == pytest.approx(0.85, rel=0.05)
    assert costs.attention["h200"].bandwidth_efficiency == pytest.approx(0.8, rel=0.02)
    assert costs.prompt_attention["h200"].flops_efficiency == pytest.approx(0.6, rel=0.05)
    assert costs.allreduce["h200", 4].latency_s == pytest.approx(5e-6, rel=0.02)
    assert set(costs.allreduce) == {("h200", 4), ("h200", 2)}
    assert "0.19.0" in costs.gemm["h200", "bf16"].origin.source
    # No table has small operators: H100's of the default set, which H200 borrows.
    small, default = costs.elementwise["h200"], load_costs().elementwise["h100"]
    assert (small.kernel_s, small.bandwidth_efficiency) == (default.kernel_s, default.bandwidth_efficiency)
    assert small.origin.kind == "assumed"
    assert (costs.measured.graph_rows, costs.measured.nearest) == (512, 4)


def test_a_model_of_ones_own_adds_its_matrices(gpu: Path, tmp_path: Path) -> None:
    shutil.rmtree(gpu / "attention")
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8192, "num_attention_heads": 32,'
        '"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2048, "vocab_size": 100}'
    )
    costs = imported("aiconfigurator", [gpu.parent], "mine", models=[str(config)])
    assert ("h200", "bf16", 4096, 8192) in costs.measured.gemm  # gate and up


def test_what_was_not_measured_is_the_default_set_s(gpu: Path, tmp_path: Path) -> None:
    shutil.rmtree(gpu / "attention")
    shutil.rmtree(gpu / "comm")
    costs, default = imported("aiconfigurator", [gpu], "mine", links=["h200=20us,16GB/s"]), load_costs()
    assert costs.attention["h200"].origin.kind == costs.prompt_attention["h200"].origin.kind == "assumed"
    assert costs.attention["h200"].bandwidth_efficiency == default.attention["h100"].bandwidth_efficiency
    assert (
        costs.prompt_attention["h200"].flops_efficiency == default.prompt_attention["h100"].flops_efficiency
    )
    write_costs(costs, tmp_path / "mine.toml")
    again = load_costs(str(tmp_path / "mine.toml"))
    step = [model_step_seconds(each, model("llama3-70b"), device("h200"), 4, 64) for each in (costs, again)]
    assert step[0] == pytest.approx(step[1], rel=1e-3)


def test_a_folder_that_is_none_is_refused(gpu: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("aiconfigurator", [tmp_path / "absent"], "mine")
    shutil.rmtree(gpu / "attention")
    other = gpu.rename(gpu.with_name("x100_sxm"))
    with pytest.raises(UserError, match="costs-unknown-device"):
        imported("aiconfigurator", [other], "mine")
    assert imported("aiconfigurator", [other], "mine", devices=["x100_sxm=h200"]).measured.gemm
    (other / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet").unlink()
    newest = other / "gemm" / "vllm" / "0.19.0" / "gemm_perf.parquet"
    pd.read_parquet(newest).assign(gemm_dtype="int4_wo").to_parquet(newest)
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("aiconfigurator", [other], "mine", devices=["x100_sxm=h200"])
    pd.read_parquet(newest).drop(columns="k").to_parquet(newest)
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("aiconfigurator", [other], "mine", devices=["x100_sxm=h200"])


@pytest.mark.long
def test_the_real_tables_of_h100(real_profiles: Path) -> None:
    costs = imported("aiconfigurator", [real_profiles / "aiconfigurator" / "h100_sxm"], "h100")
    errors = costs.gemm["h100", "bf16"].origin.errors
    assert errors["held_out_layer"] == pytest.approx(3.7, abs=0.3)
    assert errors["held_out_layer_nearest"] == pytest.approx(2.5, abs=0.3)
    assert ("h100", "fp8", 8192, 2048) in costs.measured.gemm
    assert {degree for _, degree in costs.allreduce} == {2, 4, 8}
    # Newer kernels than the default set's, and as fast.
    ours, default = (
        model_step_seconds(each, model("llama3-70b"), device("h100"), 4, [32, 256])
        for each in (costs, load_costs())
    )
    assert ours == pytest.approx(default, rel=0.1)
