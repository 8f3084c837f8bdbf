"""Published decode steps against physical floors: what no kernel can beat on these devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.deployment import Workers
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.util.json import JsonObject
from laminabench.workflows.validate.disaggregation import Measured, model_of

# Bytes of a number that travels between two sides: the least that is sent.
WIRE_BYTES = 1


@dataclass(frozen=True, slots=True)
class Audited:
    """A published step with its floors in ms, for a KV in 8 bits and in 16."""

    row: Measured
    floors: Mapping[str, Mapping[str, float]]  # by format of the KV
    published_ms: float | None

    def least_ms(self, kv_dtype: str) -> float:
        return max(self.floors[kv_dtype].values())

    @property
    def binding(self) -> str:
        """The highest floor with a KV in 8 bits."""
        return max(self.floors["fp8"], key=lambda name: self.floors["fp8"][name])

    @property
    def verdict(self) -> str:
        """Whether the step is above the floors."""
        if self.published_ms is None:
            return "no time"
        if self.published_ms < self.least_ms("fp8"):
            return "impossible"
        return "possible" if self.published_ms >= self.least_ms("bf16") else "only with KV in fp8"

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        row = self.row
        names = ("id", "system", "model", "attention_side", "model_side", "batch")
        return {
            **{name: getattr(row, name) for name in names},
            "published_ms": self.published_ms,
            "floors_ms": {kv_dtype: dict(floors) for kv_dtype, floors in self.floors.items()},
            "binding": self.binding,
            "verdict": self.verdict,
        }


def audited(rows: Sequence[Measured]) -> list[Audited]:
    """Compare each step with the floors of its devices."""
    costs = load_costs(DEFAULT_COSTS)
    results = []
    for row in rows:
        deployed = row.deployment(costs)
        holding = deployed.attention or deployed.model
        floors = {
            kv_dtype: dict(
                _floors(row, replace(model_of(row.model), kv_dtype=kv_dtype), holding, deployed.model)
            )
            for kv_dtype in ("fp8", "bf16")
        }
        results.append(Audited(row, floors, row.ms["cuda"] or row.ms["wall"]))
    return results


def _floors(row: Measured, model: ModelShape, holding: Workers, feed: Workers) -> Iterator[tuple[str, float]]:
    """Yield the floors of a step by name, in ms."""
    share = model.kv_share(holding.shared().tp) if row.system == "vllm" else 1.0
    read = model.kv_bytes_per_token * share * float(row.contexts.sum())
    kv = read / holding.device.bandwidth_bytes_per_s
    weights = _weights_read(row, model, feed) / feed.device.bandwidth_bytes_per_s
    if row.system == "vllm":
        yield "KV and weights over memory bandwidth", 1000 * (kv + weights)
    else:
        yield "KV over memory bandwidth", 1000 * kv
        yield "weights over memory bandwidth", 1000 * weights
        numbers = model.query_size + 2 * model.kv_size if row.system == "lamina" else model.hidden
        moved = WIRE_BYTES * numbers * model.layers * row.batch
        yield "activations over links", 1000 * moved / holding.device.interchip_bytes_per_s
    peak = max(feed.device.flops.values())
    requests = row.batch * holding.count
    yield "operations over peak", 1000 * 2 * model.active_parameters * requests / (feed.count * peak)


def _weights_read(row: Measured, model: ModelShape, feed: Workers) -> float:
    """Return the least bytes of weights that a device reads: no more experts than one token needs."""
    bits = DTYPE_BYTES["mxfp4"] if row.expert_kernel.endswith("fp4") else 1.0
    experts = model.experts
    of_experts = 0.0
    if experts:
        matrices = 3 * model.hidden * experts.intermediate * model.expert_layers
        of_experts = bits * matrices * experts.top_k / feed.count
    rest = model.active_parameters - (of_experts * feed.count / bits if experts else 0.0)
    width = min(1.0, model.dtype_bytes)
    # Of AFD the rest is on the side with the KV, where it is read next to it.
    return of_experts + (0.0 if row.system == "afd" else width * rest / feed.shared().tp)
