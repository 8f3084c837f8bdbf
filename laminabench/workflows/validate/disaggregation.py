"""Measured decode steps of disaggregated attention, at a fixed batch and context, and predictions of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import HostCost, Origin
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.entries import Table, packaged_in
from laminabench.catalog.find_model import modelled
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.catalog.routing import RoutingCurve
from laminabench.catalog.split_kernels import ExpertKernel, SplitKernels
from laminabench.catalog.step import decode_attention, model_step
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.modelled.homogeneous import group_memory
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.util.json import Json, JsonObject
from laminabench.workflows.validate.csv_rows import MOST_REQUESTS, parse, read

COLUMNS = ("id", "model", "system", "attention_side", "batch", "context", "step_ms_cuda")
# How the product names what the rows' split systems ran.
KERNEL_OF: Mapping[str, ExpertKernel] = {
    "deepgemm-masked": "deepgemm-masked",
    "deepgemm-masked-fp4": "deepgemm-masked-fp4",
    "megamoe-fp8": "megamoe-fp8",
    "megamoe-fp8-m2n": "megamoe-fp8",
    "megamoe-fp4": "megamoe-fp4",
}
QUANTITIES = ("cuda", "wall")
# Micro-batches of split systems.
BATCHES = 2
# Simulated steps after the first token.
STEPS = 8
# Differences between systems below this share are not expected to have the right sign.
SURE, NEAR = 0.05, 0.10
Ms = Annotated[float, msgspec.Meta(ge=1e-6, lt=3.6e6)]


class Cells(msgspec.Struct):
    """The cells of a row that are read."""

    model: str
    system: Literal["vllm", "afd", "lamina"]
    attention_side: str
    batch: Annotated[int, msgspec.Meta(ge=1, le=65536)]  # requests of a device
    context: Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}(-\d{1,9})?$")]
    id: str = ""
    model_side: str = ""
    expert_kernel: Literal[
        "", "deepgemm-masked", "deepgemm-masked-fp4", "megamoe-fp8", "megamoe-fp4", "megamoe-fp8-m2n"
    ] = ""
    step_ms_cuda: Ms | None = None
    step_ms_wall: Ms | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A decode step as it was measured: `batch` requests on each device that holds KV."""

    id: str
    system: str
    model: str
    attention_side: str
    model_side: str
    expert_kernel: str
    batch: int
    shortest: int
    longest: int
    ms: Mapping[str, float | None]  # by quantity

    @property
    def contexts(self) -> np.ndarray:
        """Return a device's contexts, evenly spread."""
        if self.batch == 1:
            return np.array([(self.shortest + self.longest) // 2])
        return np.linspace(self.shortest, self.longest, self.batch).round().astype(np.int64)

    def deployment(self, costs: CostSet) -> Deployment:
        """Return the devices; those of a data-parallel side send tokens to their experts."""
        holding, model = self.attention_side, self.model_side
        if self.system == "afd" and ":" not in holding:
            holding += f":dp{holding.partition('x')[0]}"
        sides = [each for each in (model, holding) if each]
        if self.expert_kernel and re.search(r":.*dp(?!1\b)\d", sides[0]) and not sides[0].endswith("ll"):
            sides[0] += "ll"
        return parse_deployment("+".join(sides), known_devices([costs]))

    def rate(self, step_ms: float, costs: CostSet) -> float:
        """Return tokens a second of each device."""
        deployed = self.deployment(costs)
        holding = deployed.attention or deployed.model
        devices = deployed.model.count + (deployed.attention.count if deployed.attention else 0)
        return 1000 * self.batch * holding.count / (devices * step_ms)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A measured step with what is predicted of it."""

    row: Measured
    ms: Mapping[str, float]  # by quantity
    terms: Mapping[str, float] = field(default_factory=dict)  # ms

    def error(self, quantity: str) -> float | None:
        """Return the error in percent; None where it was not measured."""
        measured = self.row.ms[quantity]
        return None if measured is None else 100 * (self.ms[quantity] / measured - 1)

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        row = self.row
        span = str(row.shortest) if row.shortest == row.longest else f"{row.shortest}-{row.longest}"
        names = ("id", "system", "model", "attention_side", "model_side", "expert_kernel", "batch")
        known: dict[str, Json] = {name: getattr(row, name) for name in names}
        known["context"] = span
        for quantity in QUANTITIES:
            known[f"predicted_ms_{quantity}"] = self.ms[quantity]
            known[f"measured_ms_{quantity}"] = row.ms[quantity]
            known[f"error_percent_{quantity}"] = self.error(quantity)
        return {**known, "terms": dict(self.terms)}


@cache
def table() -> Table:
    """Return the packaged rows, their source, and what was fitted to them."""
    return packaged_in(__package__, "disaggregation.toml")


def predictions(path: Path | None, costs: str | None) -> list[Predicted]:
    """Predict a file's rows, or the packaged ones."""
    return predicted(read_rows(path) if path else packaged_rows(), costs)


def described(predictions: Sequence[Predicted], costs: str | None) -> JsonObject:
    """Return predictions and their errors, for JSON."""
    split = [each.row for each in predictions if each.row.system == "lamina"]
    own = predicted(split, costs, own_kernels=True)
    return {
        "rows": [each.describe() for each in predictions],
        "summaries": summaries(predictions),
        "with_own_kernels": {"rows": [each.describe() for each in own], "summaries": summaries(own)},
        "order": order(predictions, costs),
        "host_fitted": table()["host"],
        "kv_capacity": kv_capacities(costs),
    }


def kv_capacities(costs: str | None = None) -> list[JsonObject]:
    """Return the KV tokens on a device that vLLM printed, and those of the model of its memory."""
    facts = table()
    about, used = facts["kv"], load_costs(costs or facts["costs"])
    rows: list[JsonObject] = []
    for deployment, printed in about["printed"].items():
        setup = Setup(
            model=model_of(about["model"]),
            deployment=parse_deployment(deployment, known_devices([used])),
            costs=used,
            network=parse_network(facts["network"], used.networks),
            gpu_memory_utilization=about["memory_utilization"],
            prompt_budget=about["max_batched_tokens"],
        )
        tokens = group_memory(setup)[1]
        error = 100 * (tokens / printed - 1)
        rows.append(
            {
                "deployment": deployment,
                "printed_tokens": printed,
                "predicted_tokens": tokens,
                "error_percent": error,
            }
        )
    return rows


def model_of(published: str) -> ModelShape:
    """Return a model by its published name, which may have an owner and the format of the weights."""
    return modelled(published.rpartition("/")[2].lower().removesuffix("-fp8"))


def packaged_rows() -> list[Measured]:
    """Return the rows that were measured on GB200."""
    return parse(table()["rows"].strip(), "disaggregation.toml", Cells, COLUMNS, _measured)


def read_rows(path: Path) -> list[Measured]:
    """Return the rows of a CSV file; raise a UserError for what is wrong with it."""
    try:
        return read(path, Cells, COLUMNS, _measured)
    except ValueError as error:
        raise UserError("validation-bad-rows", f"{error}; name columns as disaggregation.csv does") from error


def _measured(row: Cells) -> Measured:
    split = row.system != "vllm"
    if bool(row.model_side) != split:
        raise ValueError(
            f"{row.system} has devices on {'both sides' if split else 'attention_side alone'}; "
            f"write them as {'4xgb200 and 4xgb200:dp4ep4' if split else '16xgb200:dp16ep16'}"
        )
    shortest, _, longest = row.context.partition("-")
    span = int(shortest), int(longest or shortest)
    if not 1 <= span[0] <= span[1] <= 2**24:
        raise ValueError(f"context is {row.context!r}; write tokens, as 8192 or 1024-8192")
    sides = row.attention_side, row.model_side
    times = {"cuda": row.step_ms_cuda, "wall": row.step_ms_wall}
    return Measured(row.id, row.system, row.model, *sides, row.expert_kernel, row.batch, *span, times)


def predicted(
    rows: Sequence[Measured], costs: str | None = None, *, own_kernels: bool = False
) -> list[Predicted]:
    """Predict each row's step with the packaged cost set of these systems, or another.

    With its own kernels, lamina's cut has the kernel times and the routing of the system that was measured.
    """
    facts = table()
    used = load_costs(costs or facts["costs"])
    # The host is added afterwards: CUDA time has none. The very batch was captured as a CUDA graph.
    used = msgspec.structs.replace(
        used,
        host=HostCost(0.0, 0.0, Origin("given", "a step's kernels alone")),
        measured=msgspec.structs.replace(used.measured, graph_rows=0),
    )
    return [_predicted(row, used, facts, own_kernels) for row in rows]


def _predicted(row: Measured, costs: CostSet, facts: Table, own_kernels: bool) -> Predicted:
    try:
        setup = _setup(row, costs, facts["network"])
        if own_kernels:
            kernels = msgspec.convert(facts["own_kernels"], SplitKernels)
            curve: Table = {name: tuple(values) for name, values in facts["own_routing"].items()}
            setup = replace(setup, split_kernels=kernels, routing=RoutingCurve(**curve))
        terms = _replicated(row, setup) if row.system == "vllm" else _split(row, setup)
    except UserError as error:
        raise error.within(f"row {row.id}") from None
    cuda = sum(terms.values())
    host = facts["host"][row.system]
    extra = host["step_ms"] + host.get("rank_ms", 0.0) * setup.deployment.model.shared().dp
    ms = {"cuda": cuda, "wall": cuda + extra}
    return Predicted(row, ms, {**terms, "host": extra})


def _setup(row: Measured, costs: CostSet, network: str) -> Setup:
    """Return the row's devices and model, without a host."""
    deployment = row.deployment(costs)
    return Setup(
        model=model_of(row.model),
        deployment=deployment,
        costs=costs,
        network=parse_network(network, costs.networks),
        batches=BATCHES if row.system != "vllm" else None,
        partition="requests" if row.system == "lamina" else None,
        wire="fp8" if row.system != "vllm" else "bf16",
        expert_kernel=KERNEL_OF.get(row.expert_kernel) if row.system != "vllm" else None,
        max_num_seqs=row.batch * (deployment.attention or deployment.model).count,
    )


def _replicated(row: Measured, setup: Setup) -> dict[str, float]:
    """Return the terms of a step of data-parallel engines, ms; each has its batch."""
    model, layout = setup.model, setup.deployment.model.shared()
    model.check_split(layout)
    step = model_step(
        *(setup.costs, model, setup.deployment.model.device, layout, row.batch * layout.dp, setup.routing)
    )
    attention = decode_attention(setup.costs, model, setup.deployment.model.device, layout.tp, row.batch)
    # The prompts are there, and the measured steps add a token each.
    contexts = row.contexts + table()["measured_steps"] / 2
    windows = np.minimum(contexts, model.window.tokens) if model.window else contexts
    of_kv = attention.per_token_s * contexts.sum() + attention.windowed_per_token_s * windows.sum()
    seconds = {
        "attention": model.layers * (attention.fixed_s + of_kv),
        "gemm": step.gemm_s,
        "elementwise": step.elementwise_s,
        "exchange": step.allreduce_s,
        "experts": step.experts_s,
        "lm_head": step.lm_head_s,
    }
    return {name: 1000 * float(value) for name, value in seconds.items()}


def _split(row: Measured, setup: Setup) -> dict[str, float]:
    """Return a step of a split system as simulated, ms: where a micro-batch spends its time."""
    spec = system(row.system).build(setup).spec
    assert setup.deployment.attention is not None
    devices = setup.deployment.attention.count
    if row.batch * devices > MOST_REQUESTS:
        raise UserError(
            "validation-bad-rows",
            f"{row.batch} requests on each of {devices} devices; {MOST_REQUESTS:,} are simulated at most",
        )
    contexts = np.repeat(row.contexts, devices)
    # Whether the KV fits is no question where it was measured.
    room = 2 * int(row.contexts.sum() + row.batch * (STEPS + spec.block_tokens))
    spec = replace(spec, tokens_per_pool=max(spec.tokens_per_pool, room * devices))
    trace = make_trace(
        np.zeros(len(contexts)),
        contexts.astype(np.int32),
        np.full(len(contexts), STEPS, np.int32),
        TraceMeta(row.id),
    )
    outcome = simulate(trace, spec, Offered("saturate"))
    times = outcome.requests
    step = float(np.mean(times["finished_s"] - times["first_token_s"])) / (STEPS - 1)
    later = outcome.iterations["iteration"] > 0
    parts = {
        name: 1000 * float(np.mean(outcome.iterations[f"{name}_s"][later]))
        for name in ("model", "attention", "network")
    }
    return {**parts, "waiting": 1000 * step - sum(parts.values())}


def summaries(predictions: Sequence[Predicted]) -> dict[str, JsonObject]:
    """Return the errors of each system's rows, in percent, by quantity."""
    return {
        name: {quantity: _summary(predictions, name, quantity) for quantity in QUANTITIES}
        for name in dict.fromkeys(each.row.system for each in predictions)
    }


def _summary(predictions: Sequence[Predicted], name: str, quantity: str) -> JsonObject:
    known = [each.error(quantity) for each in predictions if each.row.system == name]
    errors = np.array([each for each in known if each is not None])
    if not len(errors):
        return {"n": 0}
    size = np.abs(errors)
    return {
        "n": len(errors),
        "median_absolute_percent": float(np.median(size)),
        "signed_median_percent": float(np.median(errors)),
        "p90_percent": float(np.percentile(size, 90)),
        "worst_percent": float(errors[size.argmax()]),
    }


def order(predictions: Sequence[Predicted], costs: str | None = None) -> JsonObject:
    """Compare systems in pairs of rows with the same model, batch and context, by tokens/s of a device.

    Where the measured difference is 5 % or more, its sign is to be predicted; a smaller one within 10 points.
    """
    used = load_costs(costs or table()["costs"])
    known = [each for each in predictions if each.row.ms["cuda"]]
    pairs, wrong = 0, list[JsonObject]()
    for one, other in combinations(known, 2):
        if one.row.system == other.row.system or _load(one.row) != _load(other.row):
            continue
        devices = one.row.rate(1.0, used) / other.row.rate(1.0, used)
        measured = devices * (other.row.ms["cuda"] or 0.0) / (one.row.ms["cuda"] or 1.0) - 1
        guess = devices * other.ms["cuda"] / one.ms["cuda"] - 1
        pairs += 1
        if not (measured * guess > 0 if abs(measured) >= SURE else abs(guess - measured) <= NEAR):
            ids = [one.row.id, other.row.id]
            wrong.append({"ids": ids, "measured_percent": 100 * measured, "predicted_percent": 100 * guess})
    return {"pairs": pairs, "right": pairs - len(wrong), "wrong": wrong}


def _load(row: Measured) -> tuple[str, int, int, int]:
    return (row.model, row.batch, row.shortest, row.longest)
