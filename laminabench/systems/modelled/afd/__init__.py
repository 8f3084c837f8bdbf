"""Attention-FFN disaggregation: the cut is outside attention's matrix products, and hidden states travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.deployment import Workers
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.layout import NODE_DEVICES, Layout
from laminabench.catalog.models import ModelShape
from laminabench.catalog.provenance import attention_sources, provenance, step_sources
from laminabench.catalog.split_kernels import WIRE_BYTES
from laminabench.catalog.step import lm_head_seconds
from laminabench.requests.replay import taken_by
from laminabench.sim.spec import Pipelining, Spec, Timing
from laminabench.systems.modelled.afd.workers import (
    attention_bytes,
    attention_seconds,
    copies,
    exchange_degrees,
    feed_bytes,
    feed_slices,
    fused_layout,
    fused_seconds,
)
from laminabench.systems.modelled.setup import (
    ATTENTION_WORKING_BYTES,
    PREFILL_ROWS,
    WORKING_BYTES,
    Limits,
    Modelled,
    Setup,
    Slices,
    device_timing,
    kv_tokens,
    limits_of,
    link_rate,
    prompt_timing,
    spec_of,
    split_by_size,
    split_facts,
    split_rows,
    with_split_kernels,
)
from laminabench.systems.modelled.system import (
    ATTENTION_COUNTS,
    EVERY,
    PROMPTS,
    SplitSystem,
    worth_trying,
)
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

MAX_REQUESTS = 8192
BATCHES = 2
# Of a cost set's terms, those of attention workers alone, and those that both sides have.
ATTENTION_TERMS = ("attention", "windows", "prompts", "batched")


def default_deployment(model: ModelShape) -> str:
    """Return lamina's for dense models; for experts, as few H200 as fit them, and as many H20."""
    if model.experts is None:
        return split_by_size(model)
    h200, expert_parallel = device("h200"), [each for each in feed_layouts(model) if each.ep == each.devices]
    enough = [each for each in expert_parallel if feed_bytes(model, each) <= 0.9 * h200.memory_bytes]
    layout = (enough or expert_parallel[-1:])[0]
    return f"{Workers(h200, layout.devices, layout)}+{layout.devices}xh20"


def feed_layouts(model: ModelShape) -> list[Layout]:
    """Return the layouts worth trying: tensor parallelism in a node, with and without expert parallelism."""
    return [each for each in worth_trying(model) if each.tp == min(each.devices, NODE_DEVICES)]


def build(setup: Setup) -> Modelled:
    """Return the deployment as the simulator takes it."""
    model, deployment = setup.model, setup.deployment
    if deployment.attention is None:
        raise UserError(
            "deployment-no-attention",
            f"deployment {deployment} has no attention workers; afd takes FEED_FORWARD+ATTENTION workers, "
            f"such as {default_deployment(model)}",
        )
    setup = with_split_kernels(setup)
    model, layout = setup.model, feed_layout(setup)
    groups = attention_layout(setup, deployment.attention)
    # Every group has its part of an iteration's prompts.
    setup = replace(setup, prompt_budget=groups.dp * setup.prompt_budget)
    batches, pipelining = batches_of(setup)
    tokens = pool_tokens(setup, deployment.attention, groups)
    limits = limits_of(setup, MAX_REQUESTS, batches)
    timing = timing_of(setup, deployment.attention.device, layout, groups, limits)
    spec = replace(
        spec_of(setup, timing, tokens, limits.requests),
        pools=groups.dp,
        batches=batches,
        pipelining=pipelining,
        replica_names=(f"{replace(deployment.model, layout=layout)} (feed-forward)",),
        attention_name=str(replace(deployment.attention, layout=groups)),
    )
    return Modelled(spec, facts(setup, spec, layout, groups), coefficients(setup, layout, groups))


def batches_of(setup: Setup) -> tuple[int, Pipelining]:
    """Return how many micro-batches go to and fro between the workers, or one that has both in turn."""
    batches = setup.batches or (1 if setup.pipelining == "serial" else BATCHES)
    pipelining: Pipelining = "serial" if batches == 1 else "pingpong"
    if batches > Afd.MOST_BATCHES or setup.pipelining not in (None, pipelining):
        flags = f"--batches {batches}" + (f" --pipelining {setup.pipelining}" if setup.pipelining else "")
        raise UserError(
            "deployment-batches",
            f"{flags}: afd has one batch, serial, or 2 to {Afd.MOST_BATCHES} that go to and fro, pingpong",
        )
    return batches, pipelining


def feed_layout(setup: Setup) -> Layout:
    """Return how feed-forward workers share their part of the model; raise a UserError if it does not fit."""
    model, workers = setup.model, setup.deployment.model
    layout = workers.shared()
    if layout.pp > 1:
        raise UserError(
            "deployment-bad-layout",
            f"{workers}: feed-forward workers of afd have no pipeline stages; write tp, dp and ep alone",
        )
    model.check_split(layout)
    usable = workers.device.memory_bytes - WORKING_BYTES
    _require_room(setup, "feed-forward part", workers, feed_bytes(model, layout), usable)
    return layout


def attention_layout(setup: Setup, workers: Workers) -> Layout:
    """Return how attention workers form groups that share out requests and share their heads.

    As few as leave half of their memory to KV, unless given.
    """
    model, given = setup.model, workers.layout
    if given and (given.ep > 1 or given.pp > 1):
        raise UserError(
            "deployment-bad-layout",
            f"{workers}: attention workers have no experts and no pipeline stages; write tp and dp alone",
        )
    if given:
        return given
    legal = [tp for tp in model.attention_degrees(workers.device.link_domain) if workers.count % tp == 0]
    usable = _usable(setup, workers)
    enough = [tp for tp in legal if attention_bytes(model, tp) <= usable / 2]
    tp = min(enough) if enough else max(legal)
    return Layout(tp, dp=workers.count // tp)


def _usable(setup: Setup, workers: Workers) -> float:
    return setup.gpu_memory_utilization * workers.device.memory_bytes - ATTENTION_WORKING_BYTES


def _require_room(setup: Setup, part: str, workers: Workers, weights: float, usable: float) -> None:
    if weights > usable:
        raise UserError(
            "model-does-not-fit",
            f"the {part} of {setup.model.name} does not fit on {workers}: {weights / 1e9:.1f} GB of weights "
            f"for each is {(weights - usable) / 1e9:.1f} GB more than the {usable / 1e9:.1f} GB usable; "
            "take more of them, or more in a group",
        )


def pool_tokens(setup: Setup, workers: Workers, groups: Layout) -> int:
    """Return the tokens of one group, each of whose workers has its heads' part, or all of a latent KV."""
    model, usable = setup.model, _usable(setup, workers)
    weights = attention_bytes(model, groups.tp)
    _require_room(setup, "attention part", workers, weights, usable)
    per_token = model.kv_bytes_per_token * model.kv_share(groups.tp)
    reserved = workers.device.memory_bytes - usable
    return kv_tokens(usable - weights, per_token, setup, str(workers), reserved, pools=groups.dp)


def timing_of(setup: Setup, on: Device, layout: Layout, groups: Layout, limits: Limits) -> Timing:
    """Return the times of an iteration; docs/simulator.md has every line of it."""
    model, costs, device = setup.model, setup.costs, setup.deployment.model.device
    head = not setup.prompt_budget
    fused = setup.expert_kernel is not None
    if fused:
        mid = fused_seconds(costs, model, device, layout, limits.rows, setup.routing)
        last = mid + (lm_head_seconds(costs, model, on, groups, np.arange(limits.rows + 1)) if head else 0.0)
    else:
        mid, last = feed_slices(costs, model, device, layout, limits.rows, setup.routing, head=head)
    # What makes q, k and v is the attention workers'.
    nothing = np.zeros(limits.rows + 1)
    per_group = -(-np.arange(limits.requests + 1) // groups.dp)
    rows = np.arange(limits.rows + 1)
    most = -(-limits.rows // groups.dp)
    products = attention_seconds(costs, model, on, groups.tp, most, router=fused)
    if setup.wire == "fp8":
        # Hidden states are sent, and results received, by a kernel each.
        products = products + 2 * setup.kernels(on).publish_s * (np.arange(most + 1) > 0)
    hidden = hidden_seconds(setup, layout, rows)
    cut = Slices(nothing, mid, last, nothing)
    timing = device_timing(setup, on, groups.tp, cut, per_group, recompute_seconds(setup, on, layout, groups))
    return replace(
        timing,
        q_transfer=hidden,
        out_transfer=hidden,
        attention_rows=products[-(-rows // groups.dp)],
        prompts=prompt_timing(setup, on, limits.requests, layout, groups.tp),
    )


def hidden_seconds(setup: Setup, layout: Layout, rows: np.ndarray) -> Float64:
    """Return the time of hidden states from one side to the other: half a round trip, and the bytes."""
    sent = copies(setup.model, setup.deployment.model.device, layout)
    size = WIRE_BYTES[setup.wire] * setup.model.hidden * sent * rows
    seconds: Float64 = setup.network.rtt_s / 2 + size / link_rate(setup, layout.devices)
    return seconds


def recompute_seconds(setup: Setup, on: Device, layout: Layout, groups: Layout) -> float:
    """Return what one token of a prefill costs both kinds of workers: the price of a preempted token."""
    costs, model, device = setup.costs, setup.model, setup.deployment.model.device
    feed, _ = feed_slices(costs, model, device, layout, PREFILL_ROWS, setup.routing, head=False)
    layer = attention_seconds(costs, model, on, groups.tp, PREFILL_ROWS)[-1] + feed[-1]
    step = model.layers * layer + lm_head_seconds(costs, model, device, layout, PREFILL_ROWS)
    return float(step) / PREFILL_ROWS


def facts(setup: Setup, spec: Spec, layout: Layout, groups: Layout) -> JsonObject:
    return {
        "tensor_parallel": layout.tp,
        **({} if layout.plain else {"layout": str(layout)}),
        "attention_layout": str(groups),
        "copies_of_a_token": copies(setup.model, setup.deployment.model.device, layout),
        "weight_bytes_per_worker": feed_bytes(setup.model, layout),
        "attention_weight_bytes_per_worker": attention_bytes(setup.model, groups.tp),
        **split_facts(setup, spec),
    }


def coefficients(setup: Setup, layout: Layout, groups: Layout) -> list[JsonObject]:
    """Return every coefficient used and its source, of both kinds of workers."""
    model, costs = setup.model, setup.costs
    feed, on = setup.deployment.model.device, setup.attention.device
    # Neither side needs what the other one's part of the model takes.
    without_attention = replace(model, latent=None, window=None)
    feed_rows = {
        row["term"]: row
        for degree in (
            [fused_layout(layout)] if setup.expert_kernel else exchange_degrees(model, feed, layout)
        )
        for row in provenance(costs, feed, degree, model.dtype, model=without_attention)
    }
    attention_rows = provenance(
        costs,
        *(on, groups.tp, model.dtype),
        prompts=setup.prompt_budget > 0,
        model=replace(model, experts=None),
    )
    sources = step_sources(costs, model, on, groups.tp, "attention")
    return split_rows(
        setup,
        (
            feed,
            step_sources(costs, model, feed, layout, "feed"),
            [row for row in feed_rows.values() if row["term"] not in ATTENTION_TERMS],
        ),
        (
            on,
            sources + attention_sources(costs, model, on, groups.tp),
            [row for row in attention_rows if row["term"] != "host"],
        ),
    )


class Afd(SplitSystem):
    """Attention and feed-forward layers on workers of their own (afd)."""

    NAME = "afd"
    COLOUR, MARKER = "#e69f00", "cross"
    TAKES = EVERY | PROMPTS | taken_by("afd")
    ANYWAY: ClassVar[dict[str, object]] = {"kv_overcommit": 1.0, "pipeline_parallel": 1, "overlap": True}
    MAX_REQUESTS = MAX_REQUESTS
    # Two or three micro-batches, as in the papers; three hide more of the network.
    MOST_BATCHES = 3
    PULLS_KV = False

    def default_deployment(self, model: ModelShape) -> str:
        return default_deployment(model)

    def attention_counts(self, model: ModelShape) -> Sequence[int]:
        """Return every number of attention workers: requests are distributed, so any will do."""
        del model
        return ATTENTION_COUNTS

    def model_workers(self, model: ModelShape, devices: Sequence[Device], replicas: int) -> list[Workers]:
        """Return model workers for one replica, whatever the number of batches."""
        del replicas
        kinds = [each for each in devices if self.runs_on(each)]
        layouts = feed_layouts(model)
        return [Workers(kind, layout.devices, layout) for kind in kinds for layout in layouts]

    def _build(self, setup: Setup) -> Modelled:
        self.require_runs_on(setup.deployment)
        return build(setup)


SYSTEM = Afd()
