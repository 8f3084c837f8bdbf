"""Lamina against vLLM at about equal cost, cell by cell: the layout of v2 Figure 10, for any cost set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laminabench.catalog.costs import CostSet
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network
from laminabench.errors import UserError
from laminabench.replay import Workload, replay
from laminabench.systems.registry import papers_setup, system
from laminabench.systems.setup import Setup
from laminabench.traces.table import Trace

PAIR = ("vllm", "lamina")


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one trace with one cost set: both systems on the same requests."""

    model: str
    trace: str
    costs: str
    dropped: int  # requests that one of the two could never hold, left out for both
    throughput_tokens_per_s: dict[str, float]
    mean_batch: dict[str, float]
    tbt_ms: dict[str, float | None]
    usd_per_hour: dict[str, float]

    @property
    def gain(self) -> float:
        """Lamina's throughput over vLLM's, less one."""
        return self.throughput_tokens_per_s["lamina"] / self.throughput_tokens_per_s["vllm"] - 1

    @property
    def gain_per_dollar(self) -> float:
        return (1 + self.gain) * self.usd_per_hour["vllm"] / self.usd_per_hour["lamina"] - 1

    @property
    def batch_ratio(self) -> float:
        return self.mean_batch["lamina"] / self.mean_batch["vllm"]

    def row(self) -> dict[str, Any]:
        """For --json."""
        return {
            "model": self.model,
            "trace": self.trace,
            "costs": self.costs,
            "dropped": self.dropped,
            "throughput_tokens_per_s": self.throughput_tokens_per_s,
            "mean_batch": self.mean_batch,
            "tbt_ms": self.tbt_ms,
            "usd_per_hour": self.usd_per_hour,
            "gain": self.gain,
            "gain_per_dollar": self.gain_per_dollar,
            "batch_ratio": self.batch_ratio,
        }


def cells(
    models: list[ModelShape],
    traces: list[Trace],
    cost_sets: list[CostSet],
    network: Network,
    *,
    host_async: tuple[str, ...] = (),
) -> Iterator[Cell]:
    """Every combination, on the deployments of v2 Table 5, saturated.

    `host_async` names the systems whose host works behind the devices.
    """
    for costs in cost_sets:
        for model in models:
            setups = {
                name: replace(papers_setup(name, model, costs, network), host_async=name in host_async)
                for name in PAIR
            }
            longest = _longest(setups)
            for trace in traces:
                yield _cell(setups, trace, longest)


def _cell(setups: dict[str, Setup], trace: Trace, longest: int) -> Cell:
    lengths = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    fitting = np.flatnonzero(lengths <= longest)
    dropped = len(trace) - len(fitting)
    if not len(fitting):
        raise UserError(f"no request of {trace.meta.name} fits both {' and '.join(setups)}")
    kept = trace.take(fitting) if dropped else trace
    summaries = {name: replay(kept, name, setup, Workload()).summary for name, setup in setups.items()}
    setup = setups["lamina"]
    return Cell(
        setup.model.name,
        trace.meta.name,
        setup.costs.name,
        dropped,
        {name: summary["throughput_tokens_per_s"] for name, summary in summaries.items()},
        {name: summary["mean_batch"] for name, summary in summaries.items()},
        {name: summary["tbt_ms"]["p50"] for name, summary in summaries.items()},
        {name: _usd_per_hour(each) for name, each in setups.items()},
    )


def _usd_per_hour(setup: Setup) -> float:
    """The papers' deployments are of devices that have a price."""
    price = setup.deployment.usd_per_hour
    assert price is not None
    return price


def _longest(setups: dict[str, Setup]) -> int:
    """What fits in every system, a block to spare: the one that rejects a request has an easier load."""
    return min(
        spec.tokens_per_pool // spec.block_tokens * spec.block_tokens - spec.block_tokens
        for spec in (system(name).build(setup).spec for name, setup in setups.items())
    )
