"""Fit a cost set to public measurements, and say how far off it is on shapes it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_file import COST_SETS, assumed_borrowing, assumed_host, load_costs
from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.costs import CostSet
from laminabench.catalog.find_model import model
from laminabench.catalog.fit_terms import (
    attention_times,
    elementwise_times,
    fit_allreduce,
    fit_attention,
    fit_elementwise,
    fit_gemm,
    fit_prompt_attention,
    gemm_times,
    mape,
    prompt_attention_times,
)
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.importing import llmservingsim
from laminabench.catalog.models import released_models
from laminabench.catalog.profiles import (
    PROFILED,
    PROMPTS,
    Samples,
    vidur_allreduce,
    vidur_elementwise,
    vidur_gemm,
    vllm_allreduce,
    vllm_attention,
    vllm_gemm,
    vllm_prompt_attention,
)
from laminabench.errors import UserError

DEGREES = (2, 4, 8)

AICONFIGURATOR = "ai-dynamo/aiconfigurator (Apache-2.0), vLLM 0.14.0"
VIDUR = "microsoft/vidur (MIT), data/profiling"
VIDUR_MODEL = "llama2-70b"
VIDUR_RANGE = "m 1-2048; tensor parallelism 1-8 of Llama-2-70B"


def fit(profiles: Path, set_name: str) -> CostSet:
    """Refit `set_name` from the measurement files in `profiles`; the same files give the same numbers."""
    fitters: dict[str, Callable[[Path], CostSet]] = {
        "vllm-0.14": _vllm,
        "vidur-2024": _vidur,
        "vllm-0.19": _measured,
    }
    if set_name not in fitters:
        fixed = " (roofline has nothing to fit)" if set_name in COST_SETS else ""
        raise UserError("costs-cannot-fit", f"cannot fit {set_name!r}{fixed}; can fit: {', '.join(fitters)}")
    # How it was held against measurements is not in these files.
    return replace(fitters[set_name](profiles), held=load_costs(set_name).held)


def error_rows(costs: CostSet) -> list[dict[str, object]]:
    """The fit errors that a set carries, one row an operation and device."""
    tables: tuple[tuple[str, Iterable[tuple[Any, Any]]], ...] = (
        ("gemm", costs.gemm.items()),
        ("attention", costs.attention.items()),
        ("prompts", costs.prompt_attention.items()),
        ("allreduce", costs.allreduce.items()),
        ("elementwise", costs.elementwise.items()),
    )
    return [
        {
            "term": term,
            "for": key if isinstance(key, str) else " ".join(map(str, key)),
            "samples": cost.origin.samples,
            **cost.origin.errors,
        }
        for term, table in tables
        for key, cost in table
    ]


def _vllm(folder: Path) -> CostSet:
    return _cost_set(
        folder,
        "vllm-0.14",
        "vLLM 0.14 kernels: GEMM, decode attention and all-reduce from one measured source",
        gemm={
            (name, dtype): _vllm_gemm(folder, device(name), dtype)
            for name, dtype in (("h100", "bf16"), ("h100", "fp8"), ("a100-80g-sxm", "bf16"))
        },
        read_allreduce=vllm_allreduce,
        allreduce_source=f"{AICONFIGURATOR}, custom all-reduce in a CUDA graph",
    )


def _vidur(folder: Path) -> CostSet:
    return _cost_set(
        folder,
        "vidur-2024",
        "Vidur's 2024 profile: GEMM and NCCL all-reduce; attention is vLLM 0.14's",
        gemm={(name, "bf16"): _vidur_gemm(folder, device(name)) for name in PROFILED},
        read_allreduce=vidur_allreduce,
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
        {(on, degree): cost},
    )


def _cost_set(
    folder: Path,
    name: str,
    title: str,
    *,
    gemm: dict[tuple[str, str], GemmCost],
    read_allreduce: Callable[[Path, str, int], Samples],
    allreduce_source: str,
) -> CostSet:
    """The parts that the sets share: neither source alone measured both attention and small operators."""
    return CostSet(
        name=name,
        title=title,
        gemm=gemm,
        attention={on: _attention(folder, device(on)) for on in PROFILED},
        prompt_attention={on: _prompt_attention(folder, on) for on in PROMPTS},
        allreduce={
            (on, degree): _allreduce(device(on), degree, read_allreduce(folder, on, degree), allreduce_source)
            for on in PROFILED
            for degree in DEGREES
        },
        elementwise={on: _elementwise(folder, device(on)) for on in PROFILED},
        host=assumed_host(),
        borrowed=assumed_borrowing(),
    )


def _vllm_gemm(folder: Path, on: Device, dtype: str) -> GemmCost:
    samples = vllm_gemm(folder, on.name, dtype)
    layers = layers_in_grid(samples)
    seen, unseen = hold_out(samples, {shape for layer in layers for shape in layer.shapes})
    trial = fit_gemm(on, dtype, seen)
    layer_error, worst = layer_errors(layers, unseen, gemm_times(trial, on, dtype, unseen))
    cost = fit_gemm(on, dtype, samples)
    errors = {
        "op": mape(gemm_times(cost, on, dtype, samples), samples.seconds),
        "held_out_op": mape(gemm_times(trial, on, dtype, unseen), unseen.seconds),
        "held_out_layer": layer_error,
        "held_out_layer_worst": worst,
    }
    held = f"held out: {len(layers)} layers of the catalogue's models"
    source = f"{AICONFIGURATOR}, {PROFILED[on.name][0]}/gemm; {held}"
    return replace(cost, origin=Origin("fitted", source, "m 1-2048; n, k 512-65536", errors, len(samples)))


def _vidur_gemm(folder: Path, on: Device) -> GemmCost:
    shape = model(VIDUR_MODEL)
    every = vidur_gemm(folder, on.name, shape)
    held = []
    for tp in map(int, np.unique(every["tp"])):
        # All four shapes of a degree are left out together: a whole layer nothing of which was seen.
        trial = fit_gemm(on, "bf16", every.where(every["tp"] != tp))
        unseen = every.where(every["tp"] == tp)
        times = gemm_times(trial, on, "bf16", unseen)
        layer = Layer(f"{VIDUR_MODEL} over {tp}", tuple((gemm.n, gemm.k) for gemm in shape.layer_gemms(tp)))
        held.append((mape(times, unseen.seconds), *layer_errors([layer], unseen, times)))
    cost = fit_gemm(on, "bf16", every)
    op, layer_error, worst = np.array(held).T
    errors = {
        "op": mape(gemm_times(cost, on, "bf16", every), every.seconds),
        "held_out_op": float(op.mean()),
        "held_out_layer": float(layer_error.mean()),
        "held_out_layer_worst_degree": float(layer_error.max()),
        "held_out_layer_worst": float(worst.max()),
    }
    source = f"{VIDUR}/compute/{PROFILED[on.name][1]}; held out: each tensor-parallel degree in turn"
    return replace(cost, origin=Origin("fitted", source, VIDUR_RANGE, errors, len(every)))


def _attention(folder: Path, on: Device) -> AttentionCost:
    samples = vllm_attention(folder, on.name)
    held = _held_out_heads(samples, fit_attention, attention_times, on)
    cost = fit_attention(on, samples)
    times = attention_times(cost, on, samples)
    busy = samples["batch"] * samples["kv_heads"] >= 64
    errors = {
        "op": mape(times, samples.seconds),
        "op_from_64_kv_heads": mape(times[busy], samples.seconds[busy]),
        "held_out_op": held,
    }
    where = f"{PROFILED[on.name][0]}/attention, FlashAttention"
    source = f"{AICONFIGURATOR}, {where}; held out: a fifth of the head counts"
    heads = "1-8 KV heads of size 128, up to 16 query heads each, at least 8 of them in a batch"
    covered = f"{heads}; context 256-32768"
    return replace(cost, origin=Origin("fitted", source, covered, errors, len(samples)))


def _prompt_attention(folder: Path, name: str) -> PromptAttentionCost:
    samples, (measured, gpu, version) = vllm_prompt_attention(folder, name), PROMPTS[name]
    on = device(measured)
    held = _held_out_heads(samples, fit_prompt_attention, prompt_attention_times, on)
    cost = fit_prompt_attention(on, samples)
    times = prompt_attention_times(cost, on, samples)
    errors = {"op": mape(times, samples.seconds), "held_out_op": held}
    where = f"ai-dynamo/aiconfigurator (Apache-2.0), vLLM {version}, {gpu}/attention"
    source = f"{where}; held out: a fifth of the head counts"
    if measured != name:
        source += f"; {measured}'s stands for {name}'s"
    covered = "4-64 heads of size 128; whole prompts of 16-16384 tokens, 65536 in all; no chunk after others"
    return replace(cost, origin=Origin("fitted", source, covered, errors, len(samples)))


def _held_out_heads(
    samples: Samples,
    fit_cost: Callable[[Device, Samples], Any],
    times: Callable[[Any, Device, Samples], Float64],
    on: Device,
) -> float:
    """The error on a fifth of the head counts of a fit to the others, on average."""
    _, group = np.unique(samples["heads"] * 1000 + samples["kv_heads"], return_inverse=True)
    held = []
    for fold in range(5):
        trial = fit_cost(on, samples.where(group % 5 != fold))
        unseen = samples.where(group % 5 == fold)
        held.append(mape(times(trial, on, unseen), unseen.seconds))
    return float(np.mean(held))


def _allreduce(on: Device, degree: int, samples: Samples, source: str) -> AllReduceCost:
    cost = fit_allreduce(on, degree, samples)
    errors = {"op": mape(cost.seconds(on, degree, samples["bytes"]), samples.seconds)}
    return replace(cost, origin=Origin("fitted", source, "256 B to 32 MiB", errors, len(samples)))


def _elementwise(folder: Path, on: Device) -> ElementwiseCost:
    shape, samples = model(VIDUR_MODEL), vidur_elementwise(folder, on.name)
    held = []
    for tp in np.unique(samples["tp"]):
        trial = fit_elementwise(on, shape, samples.where(samples["tp"] != tp))
        unseen = samples.where(samples["tp"] == tp)
        held.append(mape(elementwise_times(trial, on, shape, unseen), unseen.seconds))
    cost = fit_elementwise(on, shape, samples)
    errors = {
        "op": mape(elementwise_times(cost, on, shape, samples), samples.seconds),
        "held_out_op": float(np.mean(held)),
    }
    source = f"{VIDUR}/compute/{PROFILED[on.name][1]}: norms, rotation, activation, one add a layer"
    return replace(cost, origin=Origin("fitted", source, VIDUR_RANGE, errors, len(samples)))


Shape = tuple[int, int]  # (n, k)

# One node's devices. Odd degrees such as 5 are kept: they are legal splits of real layers.
MAX_TP = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """The GEMMs of a layer; a shape may occur twice."""

    name: str
    shapes: tuple[Shape, ...]


def layers_in_grid(samples: Samples) -> list[Layer]:
    """Layers of the catalogue's released models of which every GEMM was measured.

    A fused gate-and-up matrix that is not in the grid counts as two of half the width. Layers with the
    same shapes (LLaMA3-8B and Mistral-7B) count once.
    """
    measured = {(int(n), int(k)) for n, k in zip(samples["n"], samples["k"], strict=True)}
    found: dict[tuple[Shape, ...], Layer] = {}
    for name, shape in released_models().items():
        for tp in shape.tp_degrees(MAX_TP):
            shapes: list[Shape] = []
            for gemm in shape.layer_gemms(tp):
                whole = (gemm.n, gemm.k)
                half = (gemm.n // 2, gemm.k)
                shapes += [half, half] if gemm.name == "gate_up" and whole not in measured else [whole]
            if measured.issuperset(shapes):
                found.setdefault(tuple(shapes), Layer(f"{name} over {tp}", tuple(shapes)))
    return list(found.values())


def hold_out(samples: Samples, shapes: set[Shape]) -> tuple[Samples, Samples]:
    """(the samples of other shapes, the samples of these)."""
    held = np.array([(int(n), int(k)) in shapes for n, k in zip(samples["n"], samples["k"], strict=True)])
    return samples.where(~held), samples.where(held)


def layer_errors(layers: Sequence[Layer], samples: Samples, predicted: Float64) -> tuple[float, float]:
    """Mean and largest absolute error of layer sums, in percent, over layers and batch sizes."""
    times = {
        (int(m), int(n), int(k)): (true, guess)
        for m, n, k, true, guess in zip(
            samples["m"], samples["n"], samples["k"], samples.seconds, predicted, strict=True
        )
    }
    errors = []
    for layer in layers:
        for m in _rows(samples, layer.shapes):
            true, guess = np.sum([times[m, n, k] for n, k in layer.shapes], axis=0)
            errors.append(abs(guess / true - 1))
    return 100 * float(np.mean(errors)), 100 * float(np.max(errors))


def _rows(samples: Samples, shapes: Iterable[Shape]) -> list[int]:
    rows = [
        set(samples["m"][(samples["n"] == n) & (samples["k"] == k)].astype(int).tolist())
        for n, k in set(shapes)
    ]
    return sorted(set.intersection(*rows))
