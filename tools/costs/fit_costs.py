"""Fit the packaged cost sets to public measurements, and print their errors on shapes that were left out."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import h20
from laminabench.catalog.cost_file import assumed_borrowing, assumed_host
from laminabench.catalog.cost_keys import AllReduceKey, DtypeKey
from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    GemmCost,
    HostCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.fitting import formulas, terms
from laminabench.catalog.fitting.formulas import Layer, layer_errors
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.importing import aiconfigurator, error_rows, llmservingsim
from laminabench.catalog.importing.tables import tables_in
from laminabench.catalog.importing.vidur import VIDUR_OPS, VIDUR_SMALL_OPS, vidur_allreduce, vidur_layers
from laminabench.catalog.importing.vllm_tables import (
    vllm_allreduce,
    vllm_attention,
    vllm_gemm,
    vllm_prompt_attention,
)
from laminabench.catalog.models import ModelShape
from pack_costs import write_packaged

DEGREES = (2, 4, 8)

AICONFIGURATOR = "ai-dynamo/aiconfigurator (Apache-2.0), vLLM 0.14.0"
VIDUR = "microsoft/vidur (MIT), data/profiling"
VIDUR_MODEL = "llama2-70b"
# Catalogue device -> the prefix of aiconfigurator's files, the prefix of Vidur's files.
PROFILED = {"h100": ("h100_sxm", "h100"), "a100-80g-sxm": ("a100_sxm", "a100")}
# Catalogue device -> whose table of prompts' attention stands for it, and of which version. There is none of
# H100; its kernels take as long as H200's, whose peak is the same.
PROMPTS = {"h100": ("h200", "h200_sxm", "0.24.0"), "a100-80g-sxm": ("a100-80g-sxm", "a100_sxm", "0.14.0")}
VIDUR_RANGE = "m 1-2048; tensor parallelism 1-8 of Llama-2-70B"


def fit(profiles: Path, set_name: str) -> CostSet:
    """Refit a packaged set from the measurement files in `profiles`; the same files give the same numbers."""
    return FITTERS[set_name](profiles)


def main() -> None:
    """Fit a set and print the errors of its formulas, held-out shapes included."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--set", required=True, choices=list(FITTERS))
    parser.add_argument("--from", dest="folder", type=Path, required=True, help="the measurement files")
    parser.add_argument("--into", type=Path, help="write NAME.toml and NAME.npz in this folder")
    options = parser.parse_args()
    costs = fit(options.folder, options.set)
    if options.into:
        write_packaged(costs, options.into, "Fitted by tools/costs/fit_costs.py; do not edit.")
    for row in error_rows(costs):
        print(
            " ".join(
                f"{key}={value:.1f}" if isinstance(value, float) else str(value) for key, value in row.items()
            )
        )


def _vllm(folder: Path) -> CostSet:
    return _cost_set(
        folder,
        "vllm-0.14",
        "vLLM 0.14 kernels: GEMM, decode attention and all-reduce from one measured source",
        gemm={
            DtypeKey(name, dtype): _vllm_gemm(folder, device(name), dtype)
            for name, dtype in (("h100", "bf16"), ("h100", "fp8"), ("a100-80g-sxm", "bf16"))
        },
        read_allreduce=lambda on, degree: vllm_allreduce(_vllm_014(folder, on, "custom_allreduce"), degree),
        allreduce_source=f"{AICONFIGURATOR}, custom all-reduce in a CUDA graph",
    )


def _vidur(folder: Path) -> CostSet:
    return _cost_set(
        folder,
        "vidur-2024",
        "Vidur's 2024 profile: GEMM and NCCL all-reduce; attention is vLLM 0.14's",
        gemm={DtypeKey(name, "bf16"): _vidur_gemm(folder, device(name)) for name in PROFILED},
        read_allreduce=lambda on, degree: vidur_allreduce(
            folder / f"{PROFILED[on.name][1]}-dgx-all_reduce.csv", degree
        ),
        allreduce_source=f"{VIDUR}/network, DGX, NCCL, fastest repetition",
    )


PROFILES_OF_019 = ("rtx4090-llama-3.1-8b", "rtxpro6000-llama-3.1-8b", "rtxpro6000-qwen3-32b")
# Two cards on PCIe: what LLMServingSim configures for this machine, in bench/examples/RTXPRO6000. It does not
# say whether that was measured.
PCIE_LINK = (
    "rtx-pro-6000",
    2,
    AllReduceCost(20e-6, 16 / 64, Origin("published", f"{llmservingsim.SOURCE}: link_latency, link_bw")),
)


def _measured(folder: Path) -> CostSet:
    on, degree, cost = PCIE_LINK
    profiles = [
        profile
        for each in PROFILES_OF_019
        for profile in llmservingsim.profiles_in(folder / "llmservingsim" / each, [], {})
    ]
    return llmservingsim.cost_set(
        "vllm-0.19",
        "vLLM 0.19 on workstation GPUs: operators as they were measured, formulas beyond",
        profiles,
        {AllReduceKey(on, degree): cost},
    )


GPUS_OF_024 = ("a100_sxm", "b200_sxm", "gb200", "h100_sxm", "h200_sxm")
HOST_OF_024 = HostCost(
    0.0,
    0.0,
    Origin(
        "published",
        "servers show no host time, as the host works behind the devices: sums of kernels without any are 2 "
        "to 13 % off what records of vLLM 0.18 on H100 and H200 have for a token (gpt-oss-120b, Kimi-K2.5, "
        "Llama-3.1-70B in fp8; silicon_sample.csv of ai-dynamo/aiconfigurator, which does not say where its "
        "rows are from); that sums a little too slow hide some cannot be excluded",
    ),
)


def _vllm_024(folder: Path) -> CostSet:
    tables = [each for gpu in GPUS_OF_024 for each in tables_in(folder / "aiconfigurator" / gpu, {})]
    costs = h20.with_h20(aiconfigurator.cost_set("vllm-0.24", tables, [], {}), folder)
    of_h200 = {
        key._replace(device="h100"): cost
        for key, cost in costs.prompt_attention_of.items()
        if key.device == "h200"
    }
    return replace(
        costs,
        title=(
            "vLLM 0.24 on H100, H200 and B200, 0.19 on GB200, 0.14 on A100: experts and latent KV too; "
            "SGLang 0.5's GEMMs and prompts on H20-3e, scaled to H20"
        ),
        host=HOST_OF_024,
        prompt_attention={
            **costs.prompt_attention,
            "h100": _standing_in(costs.prompt_attention["h200"]),
        },
        prompt_attention_of={
            **{key: _standing_in(cost) for key, cost in of_h200.items()},
            **costs.prompt_attention_of,
        },
    )


def _standing_in(cost: PromptAttentionCost) -> PromptAttentionCost:
    source = f"{cost.origin.source}; h200's stands for h100's"
    return replace(cost, origin=replace(cost.origin, source=source))


def _cost_set(
    folder: Path,
    name: str,
    title: str,
    *,
    gemm: dict[DtypeKey, GemmCost],
    read_allreduce: Callable[[Device, int], Samples],
    allreduce_source: str,
) -> CostSet:
    """Return the parts that the sets share: neither source alone measured both attention and small
    operators.
    """
    return CostSet(
        name=name,
        title=title,
        gemm=gemm,
        attention={on: _attention(folder, device(on)) for on in PROFILED},
        prompt_attention={on: _prompt_attention(folder, on) for on in PROMPTS},
        allreduce={
            AllReduceKey(on, degree): formulas.allreduce(
                device(on), degree, read_allreduce(device(on), degree), allreduce_source
            )
            for on in PROFILED
            for degree in DEGREES
        },
        elementwise={on: _elementwise(folder, device(on)) for on in PROFILED},
        host=assumed_host(),
        borrowed=assumed_borrowing(),
    )


def _vllm_gemm(folder: Path, on: Device, dtype: str) -> GemmCost:
    samples = vllm_gemm(_vllm_014(folder, on, "gemm"), dtype)
    return formulas.grid_gemm(on, dtype, samples, f"{AICONFIGURATOR}, {PROFILED[on.name][0]}/gemm")


def _vidur_gemm(folder: Path, on: Device) -> GemmCost:
    shape = model(VIDUR_MODEL)
    every = vidur_gemm(_vidur_mlp(folder, on), shape)
    fit, deviations = terms.gemm(on, "bf16"), []
    for tp in map(int, np.unique(every["tp"])):
        # All four shapes of a degree are left out together: a whole layer nothing of which was seen.
        trial = fit.to(every.where(every["tp"] != tp))
        unseen = every.where(every["tp"] == tp)
        times = fit.times(unseen)(trial)
        layer = Layer(f"{VIDUR_MODEL} over {tp}", tuple((gemm.n, gemm.k) for gemm in shape.layer_gemms(tp)))
        deviations.append((mape(times, unseen.seconds), *layer_errors([layer], unseen, times)))
    op, layer_error, worst = np.array(deviations).T
    errors = {
        "held_out_op": float(op.mean()),
        "held_out_layer": float(layer_error.mean()),
        "held_out_layer_worst_degree": float(layer_error.max()),
        "held_out_layer_worst": float(worst.max()),
    }
    source = f"{VIDUR}/compute/{PROFILED[on.name][1]}; held out: each tensor-parallel degree in turn"
    return fit.sourced(every, source, VIDUR_RANGE, errors)


def _attention(folder: Path, on: Device) -> AttentionCost:
    samples = vllm_attention(_vllm_014(folder, on, "generation_attention"))
    where = f"{PROFILED[on.name][0]}/attention, FlashAttention"
    return formulas.decode_attention(on, samples, f"{AICONFIGURATOR}, {where}")


def _prompt_attention(folder: Path, name: str) -> PromptAttentionCost:
    measured, gpu, version = PROMPTS[name]
    tables = folder / "aiconfigurator" / gpu / "attention" / "vllm" / version
    samples = vllm_prompt_attention(tables / "context_attention_perf.parquet")
    where = f"ai-dynamo/aiconfigurator (Apache-2.0), vLLM {version}, {gpu}/attention"
    cost = formulas.prompt_attention(device(measured), samples, where)
    if measured == name:
        return cost
    source = f"{cost.origin.source}; {measured}'s stands for {name}'s"
    return replace(cost, origin=replace(cost.origin, source=source))


def _elementwise(folder: Path, on: Device) -> ElementwiseCost:
    source = f"{VIDUR}/compute/{PROFILED[on.name][1]}: norms, rotation, activation, one add a layer"
    samples = vidur_elementwise(_vidur_mlp(folder, on))
    return formulas.elementwise(on, model(VIDUR_MODEL), samples, source, VIDUR_RANGE)


def _vllm_014(folder: Path, on: Device, table: str) -> Path:
    return folder / f"{PROFILED[on.name][0]}-vllm-0.14-{table}_perf.parquet"


def _vidur_mlp(folder: Path, on: Device) -> Path:
    return folder / f"{PROFILED[on.name][1]}-llama-2-70b-mlp.csv"


def vidur_gemm(path: Path, model: ModelShape) -> Samples:
    """Return the GEMM times of the layers of `model`, whose file it is, by rows and tensor parallelism."""
    parts = [
        (layer["rows"], tp, model.layer_gemms(tp)[place], layer[name])
        for place, name in enumerate(VIDUR_OPS)
        for tp, layer in vidur_layers(path).items()
    ]
    columns = {
        "m": [rows for rows, *_ in parts],
        "tp": [np.full(len(rows), tp, np.float64) for rows, tp, *_ in parts],
        "n": [np.full(len(rows), gemm.n, np.float64) for rows, _, gemm, _ in parts],
        "k": [np.full(len(rows), gemm.k, np.float64) for rows, _, gemm, _ in parts],
    }
    seconds = np.concatenate([column for *_, column in parts])
    return Samples({name: np.concatenate(column) for name, column in columns.items()}, seconds)


def vidur_elementwise(path: Path) -> Samples:
    """Sum of a layer's element-wise operators by rows and tensor parallelism."""
    layers = vidur_layers(path)
    columns = {
        "m": np.concatenate([layer["rows"] for layer in layers.values()]),
        "tp": np.concatenate([np.full(len(layer["rows"]), tp, np.float64) for tp, layer in layers.items()]),
    }
    seconds = [np.sum([layer[name] for name in VIDUR_SMALL_OPS], axis=0) for layer in layers.values()]
    return Samples(columns, np.concatenate(seconds))


FITTERS: dict[str, Callable[[Path], CostSet]] = {
    "vllm-0.14": _vllm,
    "vidur-2024": _vidur,
    "vllm-0.19": _measured,
    "vllm-0.24": _vllm_024,
}

if __name__ == "__main__":
    main()
