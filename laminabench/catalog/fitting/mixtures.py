"""Terms of experts, latent KV and exchanges, fitted to measurements, with errors on what they did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

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
from laminabench.catalog.fitting.formulas import sourced
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import UNKNOWN, Vector, fitted_to, logit, mape, positive, share
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import AttentionLines

Cost = TypeVar("Cost", ExpertCost, LatentCost, LatentPromptCost, BatchedCost, CollectiveCost, DispatchCost)
Times = Callable[[Cost, Samples], Float64]
Fit = Callable[[Samples], Cost]

# A model by its experts: hidden size, width of an expert, experts of a token, all experts.
Experts = tuple[int, int, int, int]
EXPERTS = {"hidden": "hidden_size", "inter": "inter_size", "top_k": "topk", "experts": "num_experts"}

MAX_EXPERT_ROWS, MAX_EXPERT_SPLIT = 2048, 8


def experts(on: Device, dtype: str, samples: Samples, source: str) -> ExpertCost:
    """Of all gated models, over 1 to 8 devices; held out is each model in turn."""
    usual = (samples["rows"] <= MAX_EXPERT_ROWS) & (samples["tp"] * samples["ep"] <= MAX_EXPERT_SPLIT)
    samples = samples.where(usual)

    def times(cost: ExpertCost, of: Samples) -> Float64:
        shape = (of["hidden"], of["inter"] / of["tp"], dtype)
        return cost.seconds(on, *shape, of["active"], of["pairs"], of["rows"])  # type: ignore[arg-type]

    def cost(x: Vector) -> ExpertCost:
        us, ns, bandwidth, flops, activation = x
        shares = share(bandwidth), share(flops)
        return ExpertCost(positive(us) * 1e-6, positive(ns) * 1e-9, *shares, positive(activation), UNKNOWN)

    start = np.array([np.log(30), np.log(20), logit(0.85), logit(0.45), np.log(2)])
    fit = partial(_fit, cost, times, start)
    found = fit(samples)
    models = models_of(samples)
    held = _held_out(fit, times, samples, [of_model(samples, model) for model in models])
    whole = (samples["ep"] == 1) & (samples["rows"] >= 8) & (samples["rows"] <= 512)
    errors = {
        "op_tp_8_to_512_tokens": mape(times(found, samples.where(whole)), samples.seconds[whole]),
        **held,
    }
    source = f"{source}; skewed loads, the busiest rank; held out: each of {len(models)} models in turn"
    covered = "1-2048 tokens; over 1-8 devices, split or dealt out; gated experts"
    return sourced(found, times(found, samples), samples, source, covered, **errors)


def latent(on: Device, kv_dtype: str, overhead_s: float, samples: Samples, source: str) -> LatentCost:
    """Of what the KV adds, where that is 20 us and more; `overhead_s` is what no table has apart."""
    samples = samples.where(samples.seconds >= 20e-6)

    def times(cost: LatentCost, of: Samples) -> Float64:
        heads = of["heads"].astype(int)
        per_token = {each: cost.per_token_s(on, each, kv_dtype) for each in np.unique(heads).tolist()}
        each_s: Float64 = np.array([per_token[each] for each in heads.tolist()])
        return cost.overhead_s - overhead_s + of["batch"] * of["context"] * each_s

    def cost(x: Vector) -> LatentCost:
        return LatentCost(overhead_s + positive(x[0]) * 1e-6, share(x[1]), share(x[2]), UNKNOWN)

    fit = partial(_fit, cost, times, np.array([np.log(5), logit(0.8), logit(0.7)]))
    found = fit(samples)
    held = _held_out(fit, times, samples, _each(samples["heads"]))
    source = f"{source}; held out: each number of heads in turn"
    covered = "1-128 heads, 1-1024 requests, context 256-131072: what the KV adds, from 20 us"
    return sourced(found, times(found, samples), samples, source, covered, **held)


def latent_prompts(
    on: Device,
    overhead_s: float,
    projections: Callable[[float, float], float],
    samples: Samples,
    source: str,
) -> LatentPromptCost:
    """Of what is left of the module without its projections, where that is most of it."""
    kernel = samples.seconds - np.array(
        [projections(heads, rows) for heads, rows in zip(samples["heads"], samples["rows"], strict=True)]
    )
    samples = Samples(samples.columns, kernel).where(kernel >= 0.5 * samples.seconds)

    def times(cost: LatentPromptCost, of: Samples) -> Float64:
        per_pair = cost.terms(on, 1).per_pair_s
        return cost.overhead_s + per_pair * of["heads"] * of["pairs"]

    def cost(x: Vector) -> LatentPromptCost:
        return LatentPromptCost(overhead_s, share(x[0]), UNKNOWN)

    fit = partial(_fit, cost, times, np.array([logit(0.6)]))
    found = fit(samples)
    held = _held_out(fit, times, samples, _each(samples["heads"]))
    source = f"{source}; held out: each number of heads in turn"
    covered = "8-128 heads; whole prompts, of which attention is most of the module"
    return sourced(found, times(found, samples), samples, source, covered, **held)


def batched(on: Device, samples: Samples, source: str) -> BatchedCost:
    def times(cost: BatchedCost, of: Samples) -> Float64:
        return cost.seconds(on, of["heads"], of["m"], of["n"], of["k"])  # type: ignore[arg-type]

    def cost(x: Vector) -> BatchedCost:
        return BatchedCost(positive(x[0]) * 1e-6, share(x[1]), share(x[2]), UNKNOWN)

    fit = partial(_fit, cost, times, np.array([np.log(5), logit(0.6), logit(0.8)]))
    found = fit(samples)
    held = _held_out(fit, times, samples, _each(samples["heads"]))
    source = f"{source}; held out: each number of heads in turn"
    return sourced(found, times(found, samples), samples, source, "1-128 heads, m 1-4096", **held)


def collective(on: Device, degree: int, samples: Samples, source: str) -> CollectiveCost:
    def times(cost: CollectiveCost, of: Samples) -> Float64:
        return cost.seconds(on, degree, of["bytes"])

    def cost(x: Vector) -> CollectiveCost:
        return CollectiveCost(positive(x[0]) * 1e-6, share(x[1]), UNKNOWN)

    found = _fit(cost, times, np.array([np.log(10), logit(0.5)]), samples)
    return sourced(found, times(found, samples), samples, source, "512 B to 128 MiB")


def dispatch(samples: Samples, source: str) -> DispatchCost:
    def times(cost: DispatchCost, of: Samples) -> Float64:
        return cost.seconds(of["bytes"])

    def cost(x: Vector) -> DispatchCost:
        return DispatchCost(positive(x[0]) * 1e-6, positive(x[1]) * 1e-12, UNKNOWN)

    fit = partial(_fit, cost, times, np.array([np.log(12), np.log(5)]))
    found = fit(samples)
    sizes = _each(samples["hidden"])
    held = _held_out(fit, times, samples, sizes) if len(sizes) > 1 else {}
    if held:
        source += "; held out: each hidden size in turn"
    return sourced(found, times(found, samples), samples, source, "1-1024 tokens of a rank", **held)


def _fit(cost: Callable[[Vector], Cost], times: Times[Cost], start: Vector, samples: Samples) -> Cost:
    return fitted_to(cost, lambda found: times(found, samples), samples, start)


def _held_out(
    fit: Fit[Cost], times: Times[Cost], samples: Samples, parts: Sequence[np.ndarray]
) -> dict[str, float]:
    """The error on each part of a fit to the others: on average, and of the worst part."""
    if len(parts) < 2:
        return {}
    errors = []
    for part in parts:
        unseen = samples.where(part)
        errors.append(mape(times(fit(samples.where(~part)), unseen), unseen.seconds))
    return {"held_out_op": float(np.mean(errors)), "held_out_op_worst": float(np.max(errors))}


def _each(column: Float64) -> list[np.ndarray]:
    return [column == value for value in np.unique(column)]


# Lines of attention: for each number of requests, the least squares of relative errors


def attention_lines(samples: Samples, origin: Origin) -> AttentionLines | None:
    """Of one worker's heads, by requests; None where no number of requests was measured at two lengths."""
    found, errors = [], []
    for requests in np.unique(samples["batch"]):
        part = samples.where(samples["batch"] == requests)
        tokens = requests * part["context"]
        if len(np.unique(tokens)) < 2:
            continue
        fixed, per_token = line(tokens, part.seconds)
        found.append((requests, fixed, per_token))
        errors.append(np.abs((fixed + per_token * tokens) / part.seconds - 1))
    if not found:
        return None
    every = np.concatenate(errors)
    about = replace(origin, errors={"lines": 100 * float(every.mean())}, samples=len(every))
    requests, fixed_s, per_token_s = np.array(found, np.float64).T
    return AttentionLines(requests, fixed_s, per_token_s, about)


def latent_lines(samples: Samples, terms: AttentionTerms, origin: Origin) -> AttentionLines | None:
    """Of one number of heads: what KV adds, on top of what `terms` have without any."""
    least = terms.seconds(np.zeros(len(samples)), samples["batch"])
    return attention_lines(Samples(samples.columns, samples.seconds + least), origin)


def line(tokens: Float64, seconds: Float64) -> tuple[float, float]:
    """(fixed, per token), neither negative, by the least squares of relative errors."""
    ones, slopes = 1 / seconds, tokens / seconds
    (fixed, per_token), *_ = np.linalg.lstsq(np.stack([ones, slopes], axis=1), np.ones(len(ones)))
    if per_token < 0:
        return float(ones.sum() / (ones**2).sum()), 0.0
    if fixed < 0:
        return 0.0, float(slopes.sum() / (slopes**2).sum())
    return float(fixed), float(per_token)


def models_of(samples: Samples) -> list[Experts]:
    """The models in a table of experts."""
    keys = zip(*(samples[name].astype(int).tolist() for name in EXPERTS), strict=True)
    return sorted({(hidden, inter, top_k, experts) for hidden, inter, top_k, experts in keys})


def of_model(samples: Samples, model: Experts) -> np.ndarray:
    """Which samples are of this model."""
    same = [samples[name] == size for name, size in zip(EXPERTS, model, strict=True)]
    found: np.ndarray = np.logical_and.reduce(same)
    return found
