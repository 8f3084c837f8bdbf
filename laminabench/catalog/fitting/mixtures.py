"""Experts, latent KV and exchanges, fitted to measurements, with errors on what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from laminabench.catalog.cost_terms import (
    AttentionTerms,
    BatchedCost,
    CollectiveCost,
    DispatchCost,
    ExpertCost,
    Float64,
    LatentCost,
    LatentPromptCost,
    Origin,
)
from laminabench.catalog.fitting import terms
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import Cost, Fit
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import AttentionLines

# A model by its experts: hidden size, width of an expert, experts of a token, all experts.
Experts = tuple[int, int, int, int]
EXPERTS = {"hidden": "hidden_size", "inter": "inter_size", "top_k": "topk", "experts": "num_experts"}

MAX_EXPERT_ROWS, MAX_EXPERT_SPLIT = 2048, 8


def experts(on: Device, dtype: str, samples: Samples, source: str) -> ExpertCost:
    """Fit all gated models, over 1 to 8 devices; held out is each model in turn."""
    usual = (samples["rows"] <= MAX_EXPERT_ROWS) & (samples["tp"] * samples["ep"] <= MAX_EXPERT_SPLIT)
    samples = samples.where(usual)

    def times(of: Samples) -> Callable[[ExpertCost], Float64]:
        hidden, inter = cast(Any, of["hidden"]), cast(Any, of["inter"] / of["tp"])
        return lambda cost: cost.seconds(on, hidden, inter, dtype, of["active"], of["pairs"], of["rows"])

    start = {
        "overhead_s": 30.0,
        "per_expert_s": 20.0,
        "bandwidth_efficiency": 0.85,
        "flops_efficiency": 0.45,
        "activation": 2.0,
    }
    fit, models = Fit(ExpertCost, start, times), models_of(samples)
    cost = fit.to(samples)
    unsplit = samples.where((samples["ep"] == 1) & (samples["rows"] >= 8) & (samples["rows"] <= 512))
    errors = {
        "op_tp_8_to_512_tokens": fit.error(cost, unsplit),
        **(
            _held_out(fit, samples, [of_model(samples, model) for model in models]) if len(models) > 1 else {}
        ),
    }
    held_out = f"; held out: each of {len(models)} models in turn" if len(models) > 1 else ""
    source = f"{source}; skewed loads, the busiest rank{held_out}"
    covered = "1-2048 tokens; over 1-8 devices, split or dealt out; gated experts"
    return fit.sourced(samples, source, covered, errors, cost)


def latent(on: Device, kv_dtype: str, overhead_s: float, samples: Samples, source: str) -> LatentCost:
    """Fit what the KV adds, where that is 20 us and more; `overhead_s` is in no table by itself."""
    samples = samples.where(samples.seconds >= 20e-6)

    def times(of: Samples) -> Callable[[LatentCost], Float64]:
        sizes, which = np.unique(of["heads"].astype(int), return_inverse=True)
        tokens = of["batch"] * of["context"]

        def seconds(cost: LatentCost) -> Float64:
            per_token: Float64 = np.array([cost.per_token_s(on, each, kv_dtype) for each in sizes.tolist()])
            added: Float64 = tokens * per_token[which]
            return cost.overhead_s - overhead_s + added

        return seconds

    start = {"overhead_s": 5.0, "bandwidth_efficiency": 0.8, "flops_efficiency": 0.7}
    fit = Fit(LatentCost, start, times, {"overhead_s": overhead_s})
    covered = "1-128 heads, 1-1024 requests, context 256-131072: what the KV adds, from 20 us"
    return _by_heads(fit, samples, source, covered)


def latent_prompts(
    on: Device,
    overhead_s: float,
    projections: Callable[[float, float], float],
    samples: Samples,
    source: str,
) -> LatentPromptCost:
    """Fit what is left of the module without its projections, where that is most of it."""
    kernel = samples.seconds - np.array(
        [projections(heads, rows) for heads, rows in zip(samples["heads"], samples["rows"], strict=True)]
    )
    samples = Samples(samples.columns, kernel).where(kernel >= 0.5 * samples.seconds)

    def times(of: Samples) -> Callable[[LatentPromptCost], Float64]:
        return lambda cost: cost.overhead_s + cost.terms(on, 1).per_pair_s * of["heads"] * of["pairs"]

    fit = Fit(LatentPromptCost, {"flops_efficiency": 0.6}, times, {"overhead_s": overhead_s})
    covered = "8-128 heads; whole prompts, of which attention is most of the module"
    return _by_heads(fit, samples, source, covered)


def batched(on: Device, samples: Samples, source: str) -> BatchedCost:
    def times(of: Samples) -> Callable[[BatchedCost], Float64]:
        heads, m, n, k = (cast(Any, of[name]) for name in ("heads", "m", "n", "k"))
        return lambda cost: cost.seconds(on, heads, m, n, k)

    start = {"overhead_s": 5.0, "flops_efficiency": 0.6, "bandwidth_efficiency": 0.8}
    return _by_heads(Fit(BatchedCost, start, times), samples, source, "1-128 heads, m 1-4096")


def collective(on: Device, degree: int, samples: Samples, source: str) -> CollectiveCost:
    return terms.collective(CollectiveCost, on, degree).sourced(samples, source, "512 B to 128 MiB")


def dispatch(samples: Samples, source: str) -> DispatchCost:
    fit = Fit(
        DispatchCost,
        {"latency_s": 12.0, "per_byte_s": 5.0},
        lambda of: lambda cost: cost.seconds(of["bytes"]),
    )
    errors = _held_out(fit, samples, _each(samples["hidden"]))
    if errors:
        source += "; held out: each hidden size in turn"
    return fit.sourced(samples, source, "1-1024 tokens of a rank", errors)


def _by_heads(fit: Fit[Cost], samples: Samples, source: str, covered: str) -> Cost:
    errors = _held_out(fit, samples, _each(samples["heads"]))
    return fit.sourced(samples, f"{source}; held out: each number of heads in turn", covered, errors)


def _held_out(fit: Fit[Cost], samples: Samples, parts: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the error on each part of a fit to the others: the mean, and that of the worst part."""
    if len(parts) < 2:
        return {}
    errors = fit.held_out(samples, parts)
    return {"held_out_op": float(np.mean(errors)), "held_out_op_worst": float(np.max(errors))}


def _each(column: Float64) -> list[np.ndarray]:
    return [column == value for value in np.unique(column)]


# Lines of attention: for each number of requests, the least squares of relative errors


def attention_lines(samples: Samples, origin: Origin) -> AttentionLines | None:
    """Fit a worker's attention by requests; None if no number of requests was measured at two lengths."""
    lines, errors = [], []
    for requests in np.unique(samples["batch"]):
        part = samples.where(samples["batch"] == requests)
        tokens = requests * part["context"]
        if len(np.unique(tokens)) < 2:
            continue
        fixed, per_token = line(tokens, part.seconds)
        lines.append((requests, fixed, per_token))
        errors.append(np.abs((fixed + per_token * tokens) / part.seconds - 1))
    if not lines:
        return None
    every = np.concatenate(errors)
    about = replace(origin, errors={"lines": 100 * float(every.mean())}, samples=len(every))
    requests, fixed_s, per_token_s = np.array(lines, np.float64).T
    return AttentionLines(requests, fixed_s, per_token_s, about)


def latent_lines(samples: Samples, terms: AttentionTerms, origin: Origin) -> AttentionLines | None:
    """Fit the time that KV adds for one number of heads, on top of `terms`, which are without KV."""
    least = terms.seconds(np.zeros(len(samples)), samples["batch"])
    return attention_lines(Samples(samples.columns, samples.seconds + least), origin)


def line(tokens: Float64, seconds: Float64) -> tuple[float, float]:
    """Fit (fixed, per token), neither negative, by the least squares of relative errors."""
    ones, slopes = 1 / seconds, tokens / seconds
    (fixed, per_token), *_ = np.linalg.lstsq(np.stack([ones, slopes], axis=1), np.ones(len(ones)))
    if per_token < 0:
        return float(ones.sum() / (ones**2).sum()), 0.0
    if fixed < 0:
        return 0.0, float(slopes.sum() / (slopes**2).sum())
    return float(fixed), float(per_token)


def models_of(samples: Samples) -> list[Experts]:
    """Return the models in a table of experts."""
    keys = zip(*(samples[name].astype(int).tolist() for name in EXPERTS), strict=True)
    return sorted({(hidden, inter, top_k, experts) for hidden, inter, top_k, experts in keys})


def of_model(samples: Samples, model: Experts) -> np.ndarray:
    """Select the samples of this model."""
    same = [samples[name] == size for name, size in zip(EXPERTS, model, strict=True)]
    selected: np.ndarray = np.logical_and.reduce(same)
    return selected
