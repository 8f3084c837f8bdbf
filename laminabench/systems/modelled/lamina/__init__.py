"""Lamina (v2 paper): model workers and attention workers, heads split, batches in rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from laminabench.catalog.cost_terms import ACTIVATION_BYTES, Float64
from laminabench.catalog.deployment import Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.layout import Layout
from laminabench.catalog.models import ModelShape, Product
from laminabench.catalog.provenance import attention_sources, provenance, step_sources
from laminabench.catalog.step import priced, summed
from laminabench.requests.replay import taken_by
from laminabench.sim.spec import Pipelining, Spec, Timing
from laminabench.systems.modelled.lamina.transfers import (
    PCIE_BYTES_PER_S,
    migration_seconds,
    require_copies,
    transfers,
)
from laminabench.systems.modelled.setup import (
    ATTENTION_WORKING_BYTES,
    WORKING_BYTES,
    Limits,
    Modelled,
    Setup,
    Slices,
    check_weights,
    device_timing,
    kv_tokens,
    limits_of,
    prompt_timing,
    recompute_seconds,
    slices,
    spec_of,
    split_by_size,
    split_facts,
    split_rows,
    with_split_kernels,
)
from laminabench.systems.modelled.system import EVERY, PROMPTS, SplitSystem, of_today
from laminabench.systems.modelled.vllm import Vllm
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

# What the v2 paper measured.
NETWORK = "fhbn"
MAX_REQUESTS = 8192
BATCHES = 2
# Of a cost set's terms, those of attention workers.
ATTENTION_TERMS = ("attention", "windows", "prompts", "batched")


def default_deployment(model: ModelShape) -> str:
    """Return v2 Table 5's deployment; of experts H200, and as many H20."""
    if model.experts:
        workers = of_today(model, 0.9)
        return f"{workers}+{workers.count}xh20"
    return split_by_size(model)


def build(setup: Setup) -> Modelled:
    """Return the deployment as the simulator takes it."""
    setup = with_split_kernels(setup)
    model, deployment = setup.model, setup.deployment
    if deployment.attention is None:
        raise UserError(
            "deployment-no-attention",
            f"deployment {deployment} has no attention workers; lamina takes MODEL+ATTENTION workers, "
            f"such as {default_deployment(model)}",
        )
    if (layout := deployment.attention.layout) and not layout.plain:
        raise UserError(
            "deployment-bad-layout",
            f"{deployment.attention}: attention workers of lamina have no layout; --partition says what is "
            "distributed to them",
        )
    require_copies(setup)
    if deployment.model.layout and deployment.model.layout.pp > 1:
        setup = replace(setup, pipeline_parallel=deployment.model.layout.pp)
    batches, pipelining = batches_of(setup)
    replicas = replica_count(pipelining, batches)
    layout = layout_of_replica(setup, replicas)
    if setup.expert_kernel and not layout.dispatches:
        raise UserError(
            "deployment-bad-layout",
            f"{deployment.model}: --expert-kernel {setup.expert_kernel} takes model workers that send "
            "tokens to experts; write 4xgb200:dp4ep4ll",
        )
    # Model workers hold weights and activations only: all of their memory is theirs.
    check_weights(
        *(setup, deployment.model, replace(layout, pp=setup.pipeline_parallel)),
        deployment.model.device.memory_bytes - WORKING_BYTES,
    )
    pools = deployment.attention.count if partition_of(setup) == "requests" else 1
    if pools == 1:
        check_heads(model, deployment.attention.count)
    tokens = pool_tokens(setup, pools)
    limits = limits_of(setup, MAX_REQUESTS, batches)
    part = "replica" if setup.pipeline_parallel == 1 else "stage"
    timing = timing_of(setup, layout, limits, pools, setup.stream_chunks or 1, tokens)
    spec = replace(
        spec_of(setup, timing, int(tokens * setup.kv_overcommit), limits.requests),
        pools=pools,
        batches=batches,
        min_batch=setup.min_batch,
        pipelining=pipelining,
        replica_names=tuple(
            f"{Workers(deployment.model.device, layout.devices, layout)}{part}"
            for part in ([f" {part} {r}" for r in range(replicas)] if replicas > 1 else [""])
        ),
        attention_name=str(deployment.attention),
    )
    return Modelled(spec, facts(setup, spec, layout, replicas), coefficients(setup, layout, pools))


def batches_of(setup: Setup) -> tuple[int, Pipelining]:
    """Return how many batches there are, and how they take turns.

    Pipeline parallelism in the steady state is fixed pipelining: every stage works on the batch that is with
    it, in the time that a replica of its tensor-parallel degree would take, and holds its part of weights.
    """
    stages = setup.pipeline_parallel
    if stages > setup.model.layers:
        raise UserError(
            "deployment-too-many-stages",
            f"{setup.model.name} has {setup.model.layers} layers, too few for {stages} stages",
        )
    if stages > 1:
        if setup.batches not in (None, stages) or setup.pipelining not in (None, "fixed"):
            raise UserError(
                "deployment-batches",
                f"{stages} pipeline stages take {stages} batches, fixed; leave out --batches, --pipelining",
            )
        return stages, "fixed"
    batches = setup.batches or BATCHES
    if setup.pipelining == "pingpong":
        raise UserError(
            "deployment-batches",
            "--pipelining pingpong is of afd; of lamina batches are serial, rotational or fixed",
        )
    return batches, setup.pipelining or ("serial" if batches == 1 else "rotational")


def replica_count(pipelining: str, batches: int) -> int:
    """Return one replica if serial, one less than batches if rotational, one a batch if fixed."""
    if pipelining == "serial" and batches != 1:
        raise UserError(
            "deployment-batches",
            f"serial execution has one batch, not {batches}; use --pipelining rotational or fixed",
        )
    return {"serial": 1, "rotational": max(1, batches - 1), "fixed": batches}[pipelining]


def layout_of_replica(setup: Setup, replicas: int) -> Layout:
    """Return how the model workers of one replica, or of a pipeline stage, share the model."""
    workers = setup.deployment.model
    if workers.count % replicas:
        raise UserError(
            "deployment-replicas",
            f"{workers.count} model workers do not divide into the {replicas} replicas that this many "
            f"batches rotate over; use a multiple of {replicas}, or other --batches",
        )
    if workers.layout and setup.pipeline_parallel == workers.layout.pp:
        return replace(workers.layout, pp=1)
    return workers.shared(replicas)


def partition_of(setup: Setup) -> Literal["heads", "requests"]:
    """Return what attention workers share out; of latent attention, with its one KV head, requests.

    By default that also holds where mixtures of experts have fewer KV heads than workers.
    """
    if setup.model.latent is None:
        few = setup.model.experts and setup.attention.count not in setup.model.head_splits()
        return setup.partition or ("requests" if few else "heads")
    if setup.partition == "heads":
        raise UserError(
            "deployment-heads",
            f"{setup.model.name} stores one vector a token for all heads, which every attention worker would "
            "have to hold; leave --partition out, or take requests",
        )
    return "requests"


def check_heads(model: ModelShape, workers: int) -> None:
    splits = model.head_splits()
    if workers not in splits:
        raise UserError(
            "deployment-heads",
            f"the {model.kv_heads} KV heads of {model.name} do not split over {workers} attention workers; "
            f"possible: {', '.join(map(str, splits))} (or --partition requests)",
        )


def pool_tokens(setup: Setup, pools: int) -> int:
    """Return a pool's tokens: of all workers together when heads are split, of one when requests are."""
    attention = setup.attention
    usable = setup.gpu_memory_utilization * attention.device.memory_bytes - ATTENTION_WORKING_BYTES
    usable -= absorbing_bytes(setup)
    share = attention.count if pools == 1 else 1
    reserved = (attention.device.memory_bytes - usable) * share
    per_token = setup.model.kv_bytes_per_token * (2 if setup.kv_copy == "worker" else 1)
    return kv_tokens(usable * share, per_token, setup, str(attention), reserved, pools=pools)


def timing_of(
    setup: Setup, layout: Layout, limits: Limits, pools: int, chunks: int, device_tokens: int
) -> Timing:
    model, deployment = setup.model, setup.deployment
    cut = published(setup, slices(setup, deployment.model, layout, limits.rows))
    batch, rows = np.arange(limits.requests + 1), np.arange(limits.rows + 1)
    # A worker that has whole requests has its share of them; one that has heads has a part of each.
    per_worker = batch if pools == 1 else -(-batch // pools)
    device, workers = setup.attention.device, setup.attention.count if pools == 1 else 1
    moved = transfers(setup, layout.stage, rows)
    hops = migration_seconds(setup, layout.stage, rows)
    recompute = recompute_seconds(setup, deployment.model, layout)
    timing = device_timing(setup, device, workers, cut, per_worker, recompute)
    outputs = setup.kernels(device).publish_output_s if setup.wire == "fp8" else 0.0
    overlap = overlaps(setup)
    by_request = setup.stream_along != "heads"
    return replace(
        timing,
        # Between stages the residual stream crosses the network once an iteration and stage.
        last_slice=cut.last + (setup.pipeline_parallel > 1) * hops * setup.pipeline_parallel,
        q_lead=cut.kv_projection if overlap else 0.0,
        q_transfer=moved.q if overlap else moved.qkv,
        kv_transfer=moved.kv if overlap else 0.0,
        out_transfer=moved.out,
        migration=hops,
        stream_chunks=chunks if by_request else min(chunks, model.kv_heads),
        stream_by_request=by_request,
        attention_rows=absorbing_seconds(setup, device, -(-rows // pools)) + outputs * (rows > 0),
        chunk_overhead=setup.costs.layer_attention(model, device, workers).fixed_s,
        transfer_latency=moved.latency,
        device_tokens=device_tokens if setup.kv_overcommit > 1 else 2**62,
        paged_per_token=paged_seconds(setup, pools),
        prompts=prompt_timing(setup, device, limits.requests, layout, workers),
    )


def published(setup: Setup, cut: Slices) -> Slices:
    """Return slices with the kernel that sends q, k and v, as part of what comes before each attention."""
    sends = setup.publish_s * (cut.mid > 0)
    return cut._replace(first=cut.first + sends, mid=cut.mid + sends, kv_projection=cut.kv_projection + sends)


def absorbing(setup: Setup) -> list[Product]:
    """Return the matrices that attention workers multiply queries and outputs by, if they do."""
    return [] if setup.absorb == "model" else [each for each in setup.model.products() if each.heads]


def absorbing_bytes(setup: Setup) -> float:
    """Return the bytes of absorbed matrices on each attention worker."""
    return ACTIVATION_BYTES * sum(each.elements for each in absorbing(setup))


def absorbing_seconds(setup: Setup, device: Device, rows: np.ndarray) -> Float64:
    """Return the seconds that absorbed matrices take in a layer."""
    seconds = summed(priced(setup.costs, device, absorbing(setup), np.maximum(rows, 1)))
    return np.where(rows > 0, seconds / setup.model.layers, 0.0)


def overlaps(setup: Setup) -> bool:
    """Return whether q leaves before k and v exist: with streaming, entire mini-batches leave together."""
    return setup.overlap and (setup.stream_chunks or 1) == 1


def paged_seconds(setup: Setup, pools: int) -> float:
    """Return one layer's seconds of a token in host memory, on every attention worker's own link."""
    links = setup.attention.count if pools == 1 else 1
    return setup.model.kv_bytes_per_token / setup.model.layers / (links * PCIE_BYTES_PER_S)


def facts(setup: Setup, spec: Spec, layout: Layout, replicas: int) -> dict[str, object]:
    return {
        "tensor_parallel": layout.tp,
        **({} if layout.plain else {"layout": str(layout)}),
        **({"absorb": setup.absorb} if setup.model.latent else {}),
        "replicas": 1 if setup.pipeline_parallel > 1 else replicas,
        "pipeline_parallel": setup.pipeline_parallel,
        **({"min_batch": spec.min_batch} if spec.min_batch > 1 else {}),
        **copy_facts(setup, spec),
        "overlap": overlaps(setup),
        "stream_chunks": setup.stream_chunks or 1,
        "weight_bytes_per_worker": setup.model.weight_bytes_per_worker(layout) / setup.pipeline_parallel,
        **split_facts(setup, spec),
    }


def copy_facts(setup: Setup, spec: Spec) -> dict[str, object]:
    """Return what a Run says of the second copy of KV, if there is one."""
    if setup.kv_copy == "none":
        return {}
    nbytes = spec.tokens_per_pool * spec.pools * setup.model.kv_bytes_per_token
    return {"kv_copy": setup.kv_copy, "kv_copy_bytes_per_worker": nbytes / setup.attention.count}


def coefficients(setup: Setup, layout: Layout, pools: int) -> list[JsonObject]:
    """Return every coefficient used and its source, of the model workers and the attention workers."""
    costs, model, prompts = setup.costs, setup.model, setup.prompt_budget > 0
    on, attention = setup.deployment.model.device, setup.attention.device
    workers = setup.attention.count if pools == 1 else 1
    model_rows = provenance(costs, on, layout, model.dtype, model=model)
    # Attention workers run no GEMM: a data type they have no units for is no matter.
    attention_rows = provenance(costs, attention, 1, prompts=prompts, model=replace(model, experts=None))
    return [
        *split_rows(
            setup,
            (
                on,
                step_sources(costs, model, on, layout),
                [row for row in model_rows if row["term"] not in ATTENTION_TERMS],
            ),
            (
                attention,
                attention_sources(costs, model, attention, workers),
                [row for row in attention_rows if row["term"] in ATTENTION_TERMS],
            ),
        ),
        {
            "term": "paging",
            "kind": "assumed",
            "source": "PCIe 4.0 x16 at the rate its copies usually reach",
            "coefficients": {"bytes_per_s": PCIE_BYTES_PER_S},
        },
    ]


class Lamina(SplitSystem):
    """Attention on workers of its own, as the paper of lamina describes it."""

    NAME = "lamina"
    COLOUR, MARKER = "#0072b2", "circle"
    # v2 6.1, over 3 models and 4 traces.
    PUBLISHED: ClassVar[Mapping[str, str]] = {
        Vllm.NAME: "the paper measured +16.1% to +90.1% and a mean batch ratio of 2.39 over 12 cells; "
        "nothing here is tuned to it"
    }
    TAKES = EVERY | PROMPTS | taken_by("lamina")
    NETWORK = NETWORK
    MAX_REQUESTS = MAX_REQUESTS

    def default_deployment(self, model: ModelShape) -> str:
        return default_deployment(model)

    def _build(self, setup: Setup) -> Modelled:
        self.require_runs_on(setup.deployment)
        return build(setup)


SYSTEM = Lamina()
