"""The input of every modelled system, and the parts of the model they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from laminabench.catalog.accuracy import accuracy_of_set
from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.layout import Layout
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network
from laminabench.catalog.server_host import ServerHost
from laminabench.catalog.split_kernels import (
    EXPERT_DTYPES,
    ExpertKernel,
    SplitKernels,
    Wire,
    split_kernels,
    with_split_products,
)
from laminabench.catalog.step import (
    Routing,
    decode_attention,
    lm_head_seconds,
    model_step,
    model_step_seconds,
)
from laminabench.sim.spec import Admission, Float64, Pipelining, PromptTiming, ServerTiming, Spec, Timing
from laminabench.util.errors import UserError
from laminabench.util.json import Json, JsonObject

# Share of a device's memory that a serving system uses; the rest is for the driver, fragmentation and spikes.
# vLLM's gpu_memory_utilization has this default.
MEMORY_SHARE = 0.9
# Activations, CUDA graphs and communication buffers, per device. Assumed: they differ between versions.
WORKING_BYTES = 2e9
ATTENTION_WORKING_BYTES = 1e9
# vLLM's default captures as many rows as twice its requests, and no more than these.
MOST_GRAPH_ROWS = 512
# Rows whose activations they cover.
COVERED_ROWS = 8192
# Tokens of a rank that DeepEP's low-latency kernels send in one round, as vLLM sets them up by default.
ROUND_TOKENS = 256
# Enough rows for GEMMs to be as efficient as in a prefill.
PREFILL_ROWS = 2048


# v2 Table 5 gives LLaMA-33B (65 GB) half of the devices that it gives the larger models.
SMALL_WEIGHT_BYTES = 66e9


def by_size(model: ModelShape, small: str, large: str) -> str:
    """Return the papers' deployment for a model of this size."""
    return small if model.weight_bytes <= SMALL_WEIGHT_BYTES else large


def split_by_size(model: ModelShape) -> str:
    """Return v2 Table 5's deployment: LLaMA-33B on (1, 2), larger ones on (2, 4); others likewise."""
    return by_size(model, "1xh100+2xh20", "2xh100+4xh20")


@dataclass(frozen=True, slots=True)
class Setup:
    """The user's choices, resolved."""

    model: ModelShape
    deployment: Deployment
    costs: CostSet = field(repr=False)  # large
    network: Network
    batches: int | None = None
    min_batch: int = 1
    pipelining: Pipelining | None = None
    overlap: bool = True
    partition: Literal["heads", "requests"] | None = None
    stream_chunks: int | None = None
    kv_overcommit: float = 1.0
    kv_copy: Literal["none", "host", "worker", "disk"] = "none"
    pipeline_parallel: int = 1
    stream_along: Literal["requests", "heads"] | None = None
    host_async: bool = False
    admission: Admission = "reserve"
    prefix_sharing: bool = False
    # Most tokens that a batch computes in an iteration, prompts' included; 0 where no prompts are computed.
    prompt_budget: int = 0
    max_num_seqs: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: float = MEMORY_SHARE
    kv_tokens: int | None = None  # tokens, of all workers together; what fits, if None
    mapping: str | None = None  # h2m2: the policy that says what is on which side of a board
    board: str | None = None  # h2m2: another board than the device's, by name or TOML file
    routing: Routing = "skewed"  # how tokens choose experts
    absorb: Literal["model", "attention"] = "model"  # MLA: where queries and outputs are multiplied
    graph_rows: int | None = None  # captured as CUDA graphs; by vLLM's rule, if None
    wire: Wire = "bf16"  # what travels between attention and the rest
    expert_kernel: ExpertKernel | None = None
    # Those of the devices where something needs them, unless others are given.
    split_kernels: SplitKernels | None = None

    @property
    def attention(self) -> Workers:
        """The attention workers of a deployment that has some."""
        assert self.deployment.attention is not None
        return self.deployment.attention

    @property
    def fuses(self) -> bool:
        """Whether kernels of split systems are used."""
        return self.wire != "bf16" or self.expert_kernel is not None

    def kernels(self, on: Device) -> SplitKernels:
        return self.split_kernels or split_kernels(on)

    @property
    def publish_s(self) -> float:
        """Return the time of a kernel that sends: of the model workers."""
        return self.kernels(self.deployment.model.device).publish_s if self.wire == "fp8" else 0.0


def kernel_rows(setup: Setup) -> list[JsonObject]:
    """Return the kernels of split systems that the deployment uses, as rows next to the coefficients."""
    if not setup.fuses:
        return []
    devices = dict.fromkeys(each.device for each in setup.deployment.parts)
    return [row for device in devices for row in setup.kernels(device).rows(device)]


def with_split_kernels(setup: Setup) -> Setup:
    """Return the setup with split systems' products and experts on all devices, if it wants any."""
    if not setup.fuses:
        return setup
    model, kernel, costs = setup.model, setup.expert_kernel, setup.costs
    small, _ = model.elementwise()
    for device in dict.fromkeys(each.device for each in setup.deployment.parts):
        costs = with_split_products(costs, device, setup.kernels(device), kernel, small, model.hidden)
    if kernel and kernel in EXPERT_DTYPES:
        if model.experts is None:
            raise UserError(
                "replay-flag-unused",
                f"--expert-kernel is for mixtures of experts, which {model.name} is not; leave it out",
            )
        model = replace(model, experts=replace(model.experts, dtype=EXPERT_DTYPES[kernel]))
    return replace(setup, costs=costs, model=model)


def with_prompts(
    setup: Setup, budget: int, *, admission: Admission | None = None, prefix_sharing: bool | None = None
) -> Setup:
    """Return the setup with the token budget of an iteration, and with what prompts make the default."""
    return replace(
        setup,
        prompt_budget=budget,
        admission=admission or ("grow" if budget else "reserve"),
        prefix_sharing=budget > 0 if prefix_sharing is None else prefix_sharing,
    )


@dataclass(frozen=True, slots=True)
class Modelled:
    """A deployment ready to be simulated, with what a reader should know of it."""

    spec: Spec
    facts: Mapping[str, Any] = field(default_factory=dict)
    coefficients: Sequence[JsonObject] = ()


class Limits(NamedTuple):
    """Most requests that run at once, and most tokens in an iteration of a batch."""

    requests: int
    rows: int


def limits_of(setup: Setup, most: int, batches: int = 1) -> Limits:
    """Return the user's limits, or so many requests; with prompts, half of the budget is left to these."""
    budget = setup.prompt_budget
    if not budget:
        return Limits(setup.max_num_seqs or most, setup.max_num_seqs or most)
    requests = setup.max_num_seqs or max(1, min(most, batches * budget // 2))
    if -(-requests // batches) > budget:
        raise UserError(
            "replay-prompt-budget",
            f"--max-batched-tokens {budget} is less than the {-(-requests // batches)} requests that a batch "
            "may have, each of which needs one; raise it, or lower --max-num-seqs",
        )
    # Tables are as long as the requests of all batches together, too.
    return Limits(requests, max(budget, requests))


def spec_of(setup: Setup, timing: Timing, tokens: int, requests: int, block_tokens: int = 1) -> Spec:
    """Return what deployments of tables have in common; `tokens` of KV are each pool's."""
    return Spec(
        layers=setup.model.layers,
        timing=timing,
        tokens_per_pool=tokens,
        max_requests=requests,
        block_tokens=setup.block_size or block_tokens,
        admission=setup.admission,
        prefix_sharing=setup.prefix_sharing,
        prompt_budget=setup.prompt_budget,
        request_tokens=setup.model.kv_tokens_per_request,
    )


def split_facts(setup: Setup, spec: Spec) -> JsonObject:
    """Return what a Run says of any deployment with attention workers."""
    return {
        "batches": spec.batches,
        "pipelining": spec.pipelining,
        "attention_partition": "heads" if spec.pools == 1 else "requests",
        "host_async": setup.host_async,
        "network": asdict(setup.network),
        "kv_capacity_tokens": spec.tokens_per_pool * spec.pools,
        **served_facts(setup, spec),
    }


def served_facts(setup: Setup, spec: Spec) -> JsonObject:
    """Return what a Run says of how any deployment serves."""
    facts: dict[str, Json] = {"admission": spec.admission, "max_num_seqs": spec.max_requests}
    if setup.prompt_budget:
        facts |= {"prefill": "colocated", "max_batched_tokens": setup.prompt_budget}
    return facts


class Slices(NamedTuple):
    """Times of a model's slices by rows, and how much of a slice comes after q."""

    first: Float64
    mid: Float64
    last: Float64
    kv_projection: Float64


def slices(setup: Setup, workers: Workers, layout: Layout, most: int) -> Slices:
    """Cut the step that the cost set knows into the pieces between attentions.

    The piece before an attention is what makes q, k and v; what remains of a layer, norms and rotation too,
    is the piece after. K and V come after Q in it, in proportion to their rows (v2 paper 4.2.2), but for
    those of latent attention, which come first. With prompts there are more rows than the LM head has: its
    time is separate.
    """
    head = not setup.prompt_budget
    absorbed = setup.absorb == "model"
    return _slices(
        *(setup.costs, setup.model, workers.device, layout, most, setup.routing), head=head, absorbed=absorbed
    )


# A plan has thousands of candidates, of which many have the same model workers.
@lru_cache(maxsize=256)
def _slices(
    costs: CostSet,
    model: ModelShape,
    device: Device,
    layout: Layout,
    most: int,
    routing: Routing,
    *,
    head: bool,
    absorbed: bool,
) -> Slices:
    batch = np.arange(most + 1)
    step = model_step(costs, model, device, layout, batch, routing)
    layer, before = step.layers_s / model.layers, step.before_s / model.layers
    if not absorbed:
        layer = layer - (step.absorb_s + step.expand_s) / model.layers
        before = before - step.absorb_s / model.layers
    projection = np.minimum(before, layer)
    last = layer - projection + costs.host.gap_s * (batch > 0)
    if layout.pp > 1:
        size = ACTIVATION_BYTES * model.hidden * np.ceil(batch / layout.dp)
        hop = costs.hop_seconds(device, size)
        last = last + (layout.pp - 1) * np.where(batch > 0, hop, 0.0)
    if head:
        last = last + step.lm_head_s
    kv_rows = 0.0
    if model.latent is None:
        qkv = model.products(layout)[0].gemm
        kv_rows = (qkv.n - model.query_size // layout.tp) / qkv.n
    slices = Slices(projection, layer, last, projection * kv_rows)
    for table in slices:
        table.setflags(write=False)
    return slices


def device_timing(
    setup: Setup, on: Device, workers: int, cut: Slices, requests: np.ndarray, recompute_s: float
) -> Timing:
    """Return the times of an iteration without a network, whose attention is on so many workers of a device.

    `requests` is how many of a batch are on one of them, `recompute_s` the price of a preempted token.
    """
    model, host = setup.model, setup.costs.host
    attention = decode_attention(setup.costs, model, on, workers, requests)
    return Timing(
        first_slice=cut.first,
        mid_slice=cut.mid,
        last_slice=cut.last,
        attention_fixed=attention.fixed_s,
        attention_per_token=attention.per_token_s,
        window=model.window.tokens if model.window else None,
        windowed_per_token=attention.windowed_per_token_s,
        host_fixed=host.per_step_s,
        host_per_request=host.per_request_s,
        host_async=setup.host_async,
        server=server_timing(setup, len(requests) - 1),
        recompute_per_token=recompute_s,
        measured=setup.costs.measured_attention(model, on, workers),
    )


def server_timing(setup: Setup, most: int) -> ServerTiming:
    """Return the front end and the launches of a server of no more than so many requests."""
    host = setup.costs.host
    if not isinstance(host, ServerHost):
        return ServerTiming()
    captured = min(2 * most, MOST_GRAPH_ROWS) if setup.graph_rows is None else setup.graph_rows
    return ServerTiming(
        host.request_in_s,
        host.request_serial_s,
        host.out_s,
        host.gap_per_request_s,
        launch=host.launch_s(setup.model) * setup.model.layers,
        graph_rows=captured,
    )


def prompt_timing(setup: Setup, on: Device, most: int, layout: Layout, workers: int) -> PromptTiming | None:
    """Return the times that prompts add, with attention on so many workers; None where there are none."""
    if not setup.prompt_budget:
        return None
    model = setup.model
    head = _head(setup.costs, model, setup.deployment.model.device, layout, most)
    fixed, per_row, per_pair, windowed = setup.costs.prompt_terms(model, on, workers)
    return PromptTiming(
        head,
        fixed,
        per_row,
        per_pair,
        setup.costs.prompt_token_seconds(model, on, workers),
        windowed_per_pair=windowed,
    )


@lru_cache(maxsize=128)
def _head(costs: CostSet, model: ModelShape, device: Device, layout: Layout, most: int) -> Float64:
    seconds = lm_head_seconds(costs, model, device, layout, np.arange(most + 1))
    seconds.setflags(write=False)
    return seconds


def recompute_seconds(setup: Setup, workers: Workers, layout: Layout) -> float:
    """Return what one token of a prefill costs the model workers: the price of a preempted token."""
    return _recompute_seconds(setup.costs, setup.model, workers.device, layout, setup.routing)


@lru_cache(maxsize=256)
def _recompute_seconds(
    costs: CostSet, model: ModelShape, device: Device, layout: Layout, routing: Routing
) -> float:
    step = model_step_seconds(costs, model, device, layout, PREFILL_ROWS, routing)
    return float(step) / PREFILL_ROWS


def working_bytes(setup: Setup, layout: Layout) -> float:
    """Return what an engine that computes prompts too has on each device next to weights and KV.

    Activations of more rows than usual, and DeepEP's buffers: two sets, each to send and to receive the
    results in bf16 of every expert for all tokens of a rank in a round.
    """
    model, device = setup.model, setup.deployment.model.device
    row = 2 * model.hidden + (2 * (model.query_size + model.stored_size) + model.output_size) / layout.tp
    activations = ACTIVATION_BYTES * row * max(0, setup.prompt_budget - COVERED_ROWS)
    rounds = 0.0
    if layout.dispatches and model.experts and device.own_working_bytes:
        rounds = 4 * model.experts.count * ROUND_TOKENS * ACTIVATION_BYTES * model.hidden
    return (device.own_working_bytes or WORKING_BYTES) + activations + rounds


def check_weights(setup: Setup, workers: Workers, layout: Layout, usable: float) -> float:
    """Return the bytes of weights on each worker; raise a UserError if they are more than the usable ones."""
    model, device = setup.model, workers.device
    weights = model.weight_bytes_per_worker(layout)
    if weights > usable:
        larger = (Layout(degree, pp=layout.pp) for degree in model.tp_degrees() if degree > layout.tp)
        fitting = [each for each in larger if model.weight_bytes_per_worker(each) <= usable]
        advice = (
            f"{fitting[0].devices}x{device.name} would fit" if fitting else "no number of this device fits"
        )
        raise UserError(
            "model-does-not-fit",
            f"{model.name} does not fit on {layout.devices}x{device.name}: {weights / 1e9:.1f} GB of weights "
            f"for each is {(weights - usable) / 1e9:.1f} GB more than the {usable / 1e9:.1f} GB usable; "
            f"{advice}",
        )
    return weights


def kv_tokens(
    bytes_free: float,
    bytes_per_token: float,
    setup: Setup,
    where: str,
    reserved: float = 0.0,
    *,
    pools: int = 1,
) -> int:
    """Return the tokens of one of so many pools: what fits or was requested; raise a UserError for too few.

    `reserved` bytes are for other uses by default. A request for a fixed number accounts for them itself.
    """
    tokens = int(bytes_free // bytes_per_token)
    if tokens < 1:
        raise UserError(
            "model-does-not-fit",
            f"no memory is left for the KV cache of {setup.model.name} on {where}; use more devices",
        )
    if setup.kv_tokens is None:
        return tokens
    tokens = int((bytes_free + reserved) // bytes_per_token)
    if not pools <= setup.kv_tokens <= tokens * pools:
        raise UserError(
            "kv-tokens-too-many",
            f"--kv-tokens {setup.kv_tokens}: {where} holds {pools:,} to {tokens * pools:,} tokens of "
            f"{setup.model.name}",
        )
    return setup.kv_tokens // pools


def link_rate(setup: Setup, model_workers: int) -> float:
    """Return bytes a second between so many model workers and the attention workers.

    Every worker has a NIC of its own, and a transfer uses as many links as the smaller side has.
    """
    nic = min(setup.deployment.model.device.nic_bytes_per_s, setup.attention.device.nic_bytes_per_s)
    return min(model_workers, setup.attention.count) * setup.network.on(nic).bandwidth_bytes_per_s


def measured_rows(sources: Sequence[JsonObject], on: Device) -> list[JsonObject]:
    """Return a cost set's sources that are times of their own, as rows next to the coefficients."""
    return [{**row, "device": on.name} for row in sources if not str(row["priced_by"]).startswith("formula")]


def split_rows(
    setup: Setup, *sides: tuple[Device, Sequence[JsonObject], Sequence[JsonObject]]
) -> list[JsonObject]:
    """Return the rows of a deployment of two sides: of each its device, sources, and coefficients."""
    return [
        *(row for on, sources, _ in sides for row in measured_rows(sources, on)),
        *({**row, "device": on.name} for on, _, rows in sides for row in rows),
        *kernel_rows(setup),
        {"term": "network", **asdict(setup.network)},
        *assumptions(setup),
    ]


def assumptions(setup: Setup) -> list[JsonObject]:
    """Return the assumptions that no measurement covers, as rows next to the coefficients."""
    memory = {
        "share_in_use": setup.gpu_memory_utilization,
        "working_bytes": WORKING_BYTES,
        "attention_working_bytes": ATTENTION_WORKING_BYTES,
    }
    rows: list[dict[str, Any]] = []
    if not isinstance(setup.routing, str):
        source = setup.routing.source
        rows.append({"term": "routing", "kind": "measured", "source": source, "coefficients": {}})
    return [
        *rows,
        {"term": "memory", "kind": "assumed", "source": "see docs/replay.md", "coefficients": memory},
        {
            "term": "recompute",
            "kind": "derived",
            "source": "a step of so many rows, by token; LM head included, sending the KV is not",
            "coefficients": {"prefill_rows": PREFILL_ROWS},
        },
        {
            "term": "validation",
            "set": setup.costs.name,
            "source": accuracy_of_set(setup.costs.name),
            "coefficients": {},
        },
    ]
