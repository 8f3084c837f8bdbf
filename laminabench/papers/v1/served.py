"""v1's LLaMA-13B and LLaMA-33B served: throughput by batch (12), by cost (13), real conversations (17)."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from laminabench.catalog.costs import CostSet
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import ends
from laminabench.papers.v1 import experiments
from laminabench.papers.v1.testbed import (
    CASE,
    LAMINA,
    ROTATIONAL,
    VLLM,
    WAYS,
    by_context,
    deployment,
    derived,
    longest_request,
    measured,
    over,
    points_frame,
    setup,
    system_name,
    usd,
)
from laminabench.traces.table import Trace
from laminabench.workflows.compare.spec import without_longer
from laminabench.workflows.replay import Workload, replay

CONTEXTS = (512, 1024, 2048, 4096)
_BATCHES = (1, 4, 16, 64, 129, 256)
# "When the batch size is large (exceeding 128)", section 6.1.
_LARGE = 128
# The smallest that two batches can share as for one.
_SMALL = 4


def fig12(context: Context) -> Result:
    """Compute every way on every context, all sets, batches until memory is full."""
    frame = points_frame(context, WAYS, CONTEXTS, _BATCHES)
    sets, published = context.costs(), context.published("v1-fig12")
    slow, rows = derived(frame), measured(frame)
    kinds = ("batch", "throughput", "rotation")
    measured_ratios = {kind: ratios(rows, kind) for kind in kinds}
    # Memory is the same at any speed.
    implied = {kind: ratios(slow, kind) for kind in kinds[1:]}
    small = rows[rows["batch"] == _SMALL]
    values = {
        "ratios": measured_ratios,
        "implied": {kind: ends(each) for kind, each in implied.items()},
        # What the paper states of batches that vLLM can have too, and of small ones.
        "same_batch": ends(over(rows, "tokens_per_s", LAMINA, VLLM, "batch")),
        "small": over(small, "tbt_ms", ROTATIONAL, LAMINA),
        "small_batch": _SMALL,
        "in_turn": 2,
        **experiments.memory_devices(CONTEXTS, published["batch"][1]),
        **experiments.largest_batches(sets, CONTEXTS[0], CONTEXTS[-1]),
        **experiments.large_batches(sets, CONTEXTS, tuple(batch for batch in _BATCHES if batch > _LARGE)),
        **experiments.small_batches(sets, CONTEXTS, _SMALL),
    }
    frames = {"ratios": by_context(CONTEXTS, measured_ratios), "implied": by_context(CONTEXTS, implied)}
    return Result(frame, values, frames)


def ratios(frame: pd.DataFrame, kind: str) -> pd.Series[float]:
    """Return the ratios of one kind, by costs, model and context."""
    if kind == "rotation":
        return over(frame[frame["batch"] > _LARGE], "tokens_per_s", ROTATIONAL, LAMINA, "batch")
    largest = frame.loc[frame.groupby([*CASE, "system"])["batch"].idxmax()]
    return over(largest, "batch" if kind == "batch" else "tokens_per_s", LAMINA, VLLM)


_PER_USD = "tokens_per_s_per_1000_usd"


def fig13(context: Context) -> Result:
    """Compute the best of all ways that a system has, over the price of its devices."""
    frame = points_frame(context, WAYS, CONTEXTS, ())
    served = zip(frame["system"], frame["model"], strict=True)
    frame["usd"] = [usd(deployment(way, name)) for way, name in served]
    frame[_PER_USD] = 1000 * frame["tokens_per_s"] / frame["usd"]
    frame["system"] = frame["system"].where(frame["system"] != ROTATIONAL, LAMINA)
    best = frame.groupby([*CASE, "system"])[_PER_USD].idxmax()
    columns = ["model", "system", "costs", "context", "batch", "tokens_per_s", "usd", _PER_USD]
    frame = frame.loc[best].reset_index(drop=True)[columns]
    gained = over(measured(frame), _PER_USD, LAMINA, VLLM)
    implied = over(derived(frame), _PER_USD, LAMINA, VLLM)
    by_model = zip(gained.index.get_level_values("model"), gained, strict=True)
    values = {"gained": gained, "implied": ends(implied), **experiments.prices(by_model, context.costs())}
    slow = derived(frame)
    aside = slow["system"].map({VLLM: -0.2, LAMINA: 0.2})
    frames = {
        "derived": slow.assign(at=slow["context"].map(CONTEXTS.index) + aside),
        "ratios": by_context(CONTEXTS, {"": gained}),
        "implied": by_context(CONTEXTS, {"": implied}),
    }
    return Result(frame, values, frames)


_MODEL, _TRACE = "llama-33b", "sharegpt"
# The paper's are not in its text.
_MEMORY_DEVICES = (2, 4, 8, 12)
_LIMITS = (2, 4, 8, 16, 32, 64, 128, 256)
# Enough for a steady state of the largest batch.
_REQUESTS = 1000
_COLUMNS = ["costs", "system", "limit", "batch", "tokens_per_s", "tbt_ms", "usd", _PER_USD]


def fig17(context: Context) -> Result:
    """Replay real conversations with ever larger limits on the batch."""
    trace = context.trace(_TRACE).first(_REQUESTS)
    # Without those that vLLM could never hold.
    fitting = without_longer(trace, longest_request(VLLM, setup(VLLM, _MODEL, context.costs()[0])))
    rows = [
        row
        for costs in context.costs()
        for memory in (None, *_MEMORY_DEVICES)
        for row in _curve(fitting, costs, memory)
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    best = frame.groupby(["costs", "system"], sort=False)[_PER_USD].max()
    by_costs = best.drop(index=VLLM, level="system").groupby("costs")
    values = {
        "source": context.source_of(_TRACE),
        "requests": len(trace),
        "dropped": len(trace) - len(fitting),
        "spread": ends(100 * (by_costs.max() / by_costs.min() - 1)),
    }
    means = frame.groupby(["system", "limit"], sort=False)[["tokens_per_s", "tbt_ms"]].mean().reset_index()
    return Result(frame, values, {"best": best.reset_index(), "means": means})


def _curve(trace: Trace, costs: CostSet, memory_devices: int | None) -> list[tuple[object, ...]]:
    """Return one deployment's points, up to the limit that its memory makes pointless."""
    way = VLLM if memory_devices is None else LAMINA
    chosen = setup(way, _MODEL, costs, memory_devices)
    price = usd(chosen.deployment)
    rows: list[tuple[object, ...]] = []
    for limit in _LIMITS:
        summary = replay(trace, system_name(way), replace(chosen, max_num_seqs=limit), Workload()).summary
        batch, rate = summary.mean_batch, summary.throughput_tokens_per_s
        assert rate is not None
        label = VLLM if memory_devices is None else f"{memory_devices} memory devices"
        rows.append((costs.name, label, limit, batch, rate, summary.tbt_ms.p50, price, 1000 * rate / price))
        if batch < 0.7 * limit:
            break
    return rows
