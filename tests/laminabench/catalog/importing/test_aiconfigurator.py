"""Sets from aiconfigurator's tables: a made-up GPU, and the real ones where they are."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pandas as pd
import pytest

from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.cost_terms import (
    DISPATCH_BYTES,
    AllReduceCost,
    AttentionCost,
    BatchedCost,
    CollectiveCost,
    DispatchCost,
    ExpertCost,
    GemmCost,
    LatentCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import imported
from laminabench.catalog.importing.kernels import Kernels, in_tiles
from laminabench.catalog.importing.tables import GpuTables
from laminabench.catalog.routing import skewed
from laminabench.catalog.step import model_step_seconds
from laminabench.util.errors import UserError

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
        for m, n, k in itertools.product((1, 8, 64, 512), (2560, 5888, 6144), (4096, 8192))
    ]
    _write(folder / "gemm" / "vllm" / version / "gemm_perf.parquet", rows)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return tmp_path / "h200_sxm"


def _kernels(folder: Path) -> Kernels:
    result = Kernels()
    result.read(GpuTables(folder, device("h200")), ATTENTION, GEMM)
    return result


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
        terms = ATTENTION.terms(on, h, kv)
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
    # Qwen3-8B has a matrix of 6144 x 4096, Llama-2-70B over 4 one of 2560 x 8192; none has 5888 x 8192.
    assert {(n, k) for *_, n, k in costs.measured.gemm} >= {(6144, 4096), (2560, 8192)}
    assert ("h200", "bf16", 5888, 8192) not in costs.measured.gemm
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
    small, default = costs.elementwise["h200"], load_costs("vllm-0.14").elementwise["h100"]
    assert (small.kernel_s, small.bandwidth_efficiency) == (default.kernel_s, default.bandwidth_efficiency)
    assert small.origin.kind == "assumed"
    assert (costs.measured.graph_rows, costs.measured.nearest) == (512, 4)


def test_a_table_of_launches_is_refused_for_an_older_one(gpu: Path) -> None:
    """300 us whatever the size, as products in fp8 by blocks once were timed, are no kernel's times."""
    launches = GemmCost(300e-6, 0, 1, 1, 2, TRUTH)
    _gemm(gpu, "0.25.0", launches)
    slow = GemmCost(8e-6, 0, 0.3, 0.3, 2, TRUTH)
    _gemm(gpu, "0.26.0", launches, "fp8_block")
    costs = imported("aiconfigurator", [gpu], "mine")
    assert "0.19.0" in costs.gemm["h200", "bf16"].origin.source
    assert ("h200", "fp8_block") not in costs.gemm
    _gemm(gpu, "0.27.0", slow)
    assert "0.27.0" in imported("aiconfigurator", [gpu], "mine").gemm["h200", "bf16"].origin.source


def _expert_rows(cost: ExpertCost) -> list[dict[str, object]]:
    """Two gated models and one that is not; of the first also loads that are not read."""
    rows: list[dict[str, object]] = []
    models = ((2048, 768, 8, 128), (4096, 1536, 8, 128), (2688, 1856, 6, 128))
    for (hidden, inter, top_k, count), (tp, ep) in itertools.product(models, ((1, 1), (4, 1), (1, 4))):
        for tokens in (1, 8, 64, 512, 2048):
            routed = skewed(count, top_k, ep, tokens, 1.2)
            of = (hidden, inter // tp, "fp8_block", routed.active, routed.pairs, tokens)
            about = {
                "moe_dtype": "fp8_block",
                "num_tokens": tokens,
                "hidden_size": hidden,
                "inter_size": inter,
                "topk": top_k,
                "num_experts": count,
                "moe_tp_size": tp,
                "moe_ep_size": ep,
            }
            seconds = 7.0 if hidden == 2688 else float(cost.seconds(device("h200"), *of))
            rows.append({**about, "distribution": "power_law_1.2", "latency": 1e3 * seconds})
            rows.append({**about, "distribution": "balanced", "latency": 7.0})
            rows.append({**about, "moe_dtype": "fp8", "distribution": "power_law_1.2", "latency": 7.0})
    return rows


def test_experts_are_read_with_the_loads_that_they_were_measured_with(bare: Path) -> None:
    truth = ExpertCost(30e-6, 0.1e-6, 0.8, 0.5, 2.0, TRUTH)
    _write(bare / "moe" / "vllm" / "0.24.0" / "moe_perf.parquet", _expert_rows(truth))
    result = _kernels(bare)
    cost = result.terms["experts"]["h200", "fp8_block"]
    assert cost.bandwidth_efficiency == pytest.approx(0.8, rel=0.05)
    assert cost.overhead_s == pytest.approx(30e-6, rel=0.05)
    assert cost.origin.errors["held_out_op"] < 5
    curve = result.measured["experts"]["h200", "fp8_block", 4096, 1536, 8, 128, 1, 4]
    assert curve.rows.tolist() == [1, 8, 64, 512, 2048]
    assert {key[2] for key in result.measured["experts"]} == {2048, 4096}
    # By tensor it is another kernel, which was slow in this version.
    by_tensor = result.terms["experts"]["h200", "fp8"]
    assert (by_tensor.overhead_s, by_tensor.origin.kind) == (cost.overhead_s, "assumed")


def test_latent_kv_is_what_the_module_takes_beyond_short_contexts(bare: Path) -> None:
    on, truth = device("h200"), LatentCost(15e-6, 0.8, 0.7, TRUTH)
    decode = [
        {
            "kv_cache_dtype": "bfloat16",
            "gemm_type": "bfloat16",
            "num_heads": heads,
            "batch_size": batch,
            "step": step,
            "latency": 0.09
            + 1e3 * (0 if step <= 16 else 5e-6 + batch * step * truth.per_token_s(on, heads, "bf16")),
        }
        for heads, batch, step in itertools.product((16, 64, 128), (8, 64), (2, 16, 1024, 8192, 65536))
    ]
    _write(bare / "mla" / "vllm" / "0.24.0" / "mla_generation_module_perf.parquet", decode)
    product = BatchedCost(5e-6, 0.6, 0.8, TRUTH)
    products = [
        {
            "op_name": f"mla_gen_{op}",
            "num_tokens": m,
            "num_heads": heads,
            "latency": 1e3 * float(product.seconds(on, heads, m, n, 640 - n)),
        }
        for (op, n), m, heads in itertools.product((("pre", 512), ("post", 128)), (1, 64, 4096), (16, 128))
    ]
    _write(bare / "mla_bmm" / "vllm" / "0.24.0" / "mla_bmm_perf.parquet", products)
    result = _kernels(bare)
    cost = result.terms["latent"]["h200", "bf16"]
    assert cost.bandwidth_efficiency == pytest.approx(0.8, rel=0.02)
    assert cost.flops_efficiency == pytest.approx(0.7, rel=0.02)
    # No table has the kernel alone with no context: attention's overhead, and what the first tokens add.
    assert cost.overhead_s == pytest.approx(ATTENTION.overhead_s + 5e-6, rel=0.05)
    lines = result.measured["latent"]["h200", 64, "bf16"]
    assert lines.requests.tolist() == [8, 64]
    assert lines.per_token_s == pytest.approx(2 * [truth.per_token_s(on, 64, "bf16")], rel=1e-6)
    assert result.terms["batched"]["h200"].overhead_s == pytest.approx(5e-6, rel=0.05)


def test_what_ranks_exchange_in_a_node_and_between_nodes(bare: Path) -> None:
    on, gather, send = device("h200"), CollectiveCost(10e-6, 0.5, TRUTH), DispatchCost(12e-6, 4e-12, TRUTH)
    nccl = [
        {
            "op_name": "all_gather",
            "nccl_dtype": dtype,
            "num_gpus": 8,
            "message_size": size // 2,
            "latency": 1e3 * float(gather.seconds(on, 8, size)) * (1 if dtype == "half" else 5),
        }
        for size, dtype in itertools.product((2**10, 2**16, 2**20, 2**26), ("half", "int8"))
    ]
    _write(bare / "comm" / "nccl" / "2.29.2" / "nccl_perf.parquet", nccl)

    def sent(nodes: int, slower: float) -> list[dict[str, object]]:
        return [
            {"node_num": nodes, "hidden_size": hidden, "num_token": tokens, "num_topk": 8, "num_experts": 256}
            | {
                f"{op}_avg_t_us": slower * 1e6 * float(send.seconds(tokens * 8 * DISPATCH_BYTES[op](hidden)))
                for op in ("dispatch", "combine")
            }
            for hidden, tokens in itertools.product((2048, 7168), (1, 16, 256))
        ]

    _write(
        bare / "comm" / "sglang" / "0.5.6.post2" / "wideep_deepep_ll_perf.parquet", sent(1, 9) + sent(4, 3)
    )
    _write(bare / "comm" / "sglang" / "0.5.12" / "wideep_deepep_ll_perf.parquet", sent(1, 1))
    result = _kernels(bare)
    assert result.terms["collectives"]["h200", "all_gather", 8].link_efficiency == pytest.approx(
        0.5, rel=0.02
    )
    assert result.terms["dispatch"]["h200", "combine", 1].latency_s == pytest.approx(12e-6, rel=0.02)
    assert result.terms["dispatch"]["h200", "dispatch", 4].latency_s == pytest.approx(36e-6, rel=0.02)


def test_attention_is_a_line_for_each_number_of_requests_and_survives_the_file(
    gpu: Path, tmp_path: Path
) -> None:
    costs, on = imported("aiconfigurator", [gpu], "mine", links=["h200=20us,16GB/s"]), device("h200")
    lines = costs.measured.lines["h200", 32, 8, 128, "bf16", 0]
    terms = ATTENTION.terms(on, 32, 8)
    assert lines.seconds(32 * 3000, 32) == pytest.approx(float(terms.seconds(32 * 3000, 32)), rel=1e-6)
    assert lines.origin.errors["lines"] == pytest.approx(0, abs=1e-6)
    assert ("h200", 32, 8, 128, "fp8", 0) in costs.measured.lines
    assert costs.attention_of.keys() == {("h200", 128, "fp8", 0)}
    write_costs(costs, tmp_path / "mine.toml")
    again = load_costs(str(tmp_path / "mine.toml"))
    assert again.measured.lines.keys() == costs.measured.lines.keys()
    assert again.measured.gemm.keys() == costs.measured.gemm.keys()
    assert (again.measured.graph_rows, again.measured.nearest) == (512, 4)


def test_a_model_of_ones_own_adds_its_matrices(gpu: Path, tmp_path: Path) -> None:
    shutil.rmtree(gpu / "attention")
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8192, "num_attention_heads": 32,'
        '"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2944, "vocab_size": 100}'
    )
    costs = imported("aiconfigurator", [gpu.parent], "mine", models=[str(config)])
    assert ("h200", "bf16", 5888, 8192) in costs.measured.gemm  # gate and up


def test_what_was_not_measured_is_the_default_set_s(gpu: Path, tmp_path: Path) -> None:
    shutil.rmtree(gpu / "attention")
    shutil.rmtree(gpu / "comm")
    costs, default = (
        imported("aiconfigurator", [gpu], "mine", links=["h200=20us,16GB/s"]),
        load_costs("vllm-0.14"),
    )
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
        for each in (costs, load_costs("vllm-0.14"))
    )
    assert ours == pytest.approx(default, rel=0.1)


def test_another_framework_s_tables_are_read_with_their_own_names(gpu: Path) -> None:
    shutil.rmtree(gpu / "gemm" / "vllm" / "0.9.0")
    for table in sorted(gpu.rglob("vllm/*/*.parquet")):
        moved = table.parents[2] / "sglang" / "0.5.1.post1" / table.name
        moved.parent.mkdir(parents=True, exist_ok=True)
        frame = pd.read_parquet(table)
        if "gemm_dtype" in frame:
            frame["gemm_dtype"] = frame["gemm_dtype"].replace("bfloat16", "float16")
        if "kv_cache_dtype" in frame and table.name.startswith("context"):
            # Queries in another format than the KV's are another kernel.
            other = frame.assign(kv_cache_dtype="fp8", attn_dtype="bfloat16", latency=99.0)
            frame = pd.concat([frame.assign(attn_dtype="bfloat16"), other, other.assign(attn_dtype="fp8")])
        frame.to_parquet(moved)
        table.unlink()
    with pytest.raises(UserError, match="--framework"):
        imported("aiconfigurator", [gpu], "mine")
    costs = imported("aiconfigurator", [gpu], "mine", framework="sglang")
    assert costs.gemm["h200", "bf16"].bandwidth_efficiency == pytest.approx(0.85, rel=0.05)
    assert "SGLang 0.5.1.post1" in costs.gemm["h200", "bf16"].origin.source
    assert costs.title.startswith("SGLang's kernels")
    assert costs.prompt_attention["h200"].flops_efficiency == pytest.approx(0.6, rel=0.05)
    # An H200 has the FLOPS for tiles of 128 rows: bandwidth binds.
    assert costs.attention["h200"].tile_rows == 0
    with pytest.raises(UserError, match="costs-bad-flag"):
        imported("vidur", [gpu], "mine", framework="sglang")


def test_mla_s_kernel_alone_is_in_tiles_of_64_rows(bare: Path) -> None:
    on, truth = device("h200"), LatentCost(15e-6, 0.9, 0.7, TRUTH, tile_rows=64)
    decode = [
        {
            "kv_cache_dtype": "bfloat16",
            "num_heads": heads,
            "batch_size": batch,
            "step": step,
            "latency": 1e3 * (15e-6 + batch * step * truth.per_token_s(on, heads, "bf16")),
        }
        for heads, batch, step in itertools.product((16, 64, 128), (8, 64), (1024, 8192, 65536))
    ]
    _write(bare / "mla" / "vllm" / "0.24.0" / "generation_mla_perf.parquet", decode + decode)
    cost = _kernels(bare).terms["latent"]["h200", "bf16"]
    assert (cost.tile_rows, cost.overhead_s) == (64, pytest.approx(15e-6, rel=0.05))
    assert cost.per_token_s(on, 16, "bf16") == pytest.approx(truth.per_token_s(on, 64, "bf16"), rel=0.02)


def test_attention_that_computing_binds_is_fitted_in_tiles() -> None:
    # On an H20-3e 0.2 of the bandwidth are 0.83 of the FLOPS of tiles of 128 rows.
    fit = AttentionCost(18e-6, 3.7e-9, 0.2, 0.0, TRUTH)
    of = GpuTables(Path("h20_3e"), device("h20-3e"), "sglang")
    cost = in_tiles(fit, of)
    assert (cost.tile_rows, cost.flops_efficiency) == (128, pytest.approx(128 * 0.2 * 4.8e12 / 148e12))
    assert cost.terms(of.device, 64, 8).per_kv_token_s == pytest.approx(
        fit.terms(of.device, 64, 8).per_kv_token_s
    )
    assert in_tiles(fit, GpuTables(Path("h20_3e"), of.device)) is fit
