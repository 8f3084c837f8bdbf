"""Lamina (v2 paper): model workers and attention workers, heads split, batches in rotation."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from laminabench.catalog.deployment import Deployment
from laminabench.catalog.models import ModelShape
from laminabench.errors import UserError
from laminabench.sim.spec import Pipelining, Spec, Timing
from laminabench.systems.modelled.lamina.transfers import migration_seconds, transfers
from laminabench.systems.modelled.setup import (
    ATTENTION_WORKING_BYTES,
    WORKING_BYTES,
    Limits,
    Modelled,
    Setup,
    assumptions,
    by_size,
    check_weights,
    device_timing,
    kv_tokens,
    limits_of,
    measured_rows,
    prompt_facts,
    prompt_timing,
    slices,
)
from laminabench.systems.modelled.system import EVERY, PROMPTS, SplitSystem

# What the v2 paper measured.
NETWORK = "fhbn"
MAX_REQUESTS = 8192
BATCHES = 2


def default_deployment(model: ModelShape) -> str:
    """v2 Table 5: LLaMA-33B on (1, 2), the larger ones on (2, 4)."""
    return by_size(model, "1xh100+2xh20", "2xh100+4xh20")


def build(setup: Setup) -> Modelled:
    """The deployment as the simulator takes it."""
    model, deployment = setup.model, setup.deployment
    if deployment.attention is None:
        raise UserError(
            "deployment-no-attention",
            f"deployment {deployment} has no attention workers; lamina takes MODEL+ATTENTION workers, "
            f"such as {default_deployment(model)}",
        )
    batches, pipelining = batches_of(setup)
    replicas = replica_count(pipelining, batches)
    tp = tensor_parallel(deployment, replicas)
    # Model workers hold weights and activations only: all of their memory is theirs.
    check_weights(setup, deployment.model, tp, deployment.model.device.memory_bytes - WORKING_BYTES)
    pools = 1 if (setup.partition or "heads") == "heads" else deployment.attention.count
    if pools == 1:
        check_heads(model, deployment.attention.count)
    tokens = pool_tokens(setup, pools)
    limits = limits_of(setup, MAX_REQUESTS, batches)
    part = "replica" if setup.pipeline_parallel == 1 else "stage"
    timing = timing_of(setup, tp, limits, pools, setup.stream_chunks or 1, tokens)
    spec = Spec(
        layers=model.layers,
        timing=timing,
        tokens_per_pool=int(tokens * setup.overcommit),
        max_requests=limits.requests,
        pools=pools,
        block_tokens=setup.block_tokens or 1,
        batches=batches,
        pipelining=pipelining,
        admission=setup.admission,
        prefix_sharing=setup.prefix_sharing,
        prompt_budget=setup.prompt_budget,
        replica_names=tuple(
            f"{tp}x{deployment.model.device.name}" + (f" {part} {r}" if replicas > 1 else "")
            for r in range(replicas)
        ),
        attention_name=str(deployment.attention),
    )
    return Modelled(spec, facts(setup, spec, tp, replicas), coefficients(setup, tp, pools))


def batches_of(setup: Setup) -> tuple[int, Pipelining]:
    """How many batches, and how they take turns.

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
    return batches, setup.pipelining or ("serial" if batches == 1 else "rotational")


def replica_count(pipelining: str, batches: int) -> int:
    """Serial: one. Rotational: one less than batches. Fixed: one a batch."""
    if pipelining == "serial" and batches != 1:
        raise UserError(
            "deployment-batches",
            f"serial execution has one batch, not {batches}; use --pipelining rotational or fixed",
        )
    return {"serial": 1, "rotational": max(1, batches - 1), "fixed": batches}[pipelining]


def tensor_parallel(deployment: Deployment, replicas: int) -> int:
    """Model workers of one replica."""
    count = deployment.model.count
    if count % replicas:
        raise UserError(
            "deployment-replicas",
            f"{count} model workers do not divide into the {replicas} replicas that this many batches rotate "
            f"over; use a multiple of {replicas}, or other --batches",
        )
    return count // replicas


def check_heads(model: ModelShape, workers: int) -> None:
    splits = model.head_splits()
    if workers not in splits:
        raise UserError(
            "deployment-heads",
            f"the {model.kv_heads} KV heads of {model.name} do not split over {workers} attention workers; "
            f"possible: {', '.join(map(str, splits))} (or --partition requests)",
        )


def pool_tokens(setup: Setup, pools: int) -> int:
    """Tokens of one pool: all workers together when heads are split, one worker when requests are."""
    attention = setup.deployment.attention
    assert attention is not None
    usable = setup.memory_utilization * attention.device.memory_bytes - ATTENTION_WORKING_BYTES
    share = attention.count if pools == 1 else 1
    reserved = (attention.device.memory_bytes - usable) * share
    per_token = setup.model.kv_bytes_per_token
    return kv_tokens(usable * share, per_token, setup, str(attention), reserved, pools=pools)


def timing_of(setup: Setup, tp: int, limits: Limits, pools: int, chunks: int, device_tokens: int) -> Timing:
    model, deployment = setup.model, setup.deployment
    assert deployment.attention is not None
    cut = slices(setup, deployment.model, tp, limits.rows)
    batch, rows = np.arange(limits.requests + 1), np.arange(limits.rows + 1)
    # A worker that has whole requests has its share of them; one that has heads has a part of each.
    per_worker = batch if pools == 1 else -(-batch // pools)
    device, workers = deployment.attention.device, deployment.attention.count if pools == 1 else 1
    terms = setup.costs.attention_terms(model, device, workers)
    moved = transfers(setup, tp, rows)
    hops = migration_seconds(setup, tp, rows)
    overlap = overlaps(setup)
    by_request = setup.stream_along != "heads"
    return replace(
        device_timing(setup, device, workers, cut, per_worker, tp),
        # Between stages the residual stream crosses the network once an iteration and stage.
        last_slice=cut.last + (setup.pipeline_parallel > 1) * hops * setup.pipeline_parallel,
        q_lead=cut.kv_projection if overlap else 0.0,
        q_transfer=moved.q if overlap else moved.qkv,
        kv_transfer=moved.kv if overlap else 0.0,
        out_transfer=moved.out,
        migration=hops,
        stream_chunks=chunks if by_request else min(chunks, model.kv_heads),
        stream_by_request=by_request,
        chunk_overhead=terms.fixed_s / model.layers,
        transfer_latency=moved.latency,
        device_tokens=device_tokens if setup.overcommit > 1 else 2**62,
        paged_per_token=paged_seconds(setup, pools),
        prompts=prompt_timing(setup, device, terms, limits.requests, tp, workers),
    )


def overlaps(setup: Setup) -> bool:
    """Whether q leaves before k and v exist: with streaming, whole mini-batches leave together."""
    return setup.overlap and (setup.stream_chunks or 1) == 1


# KV that was paged out comes over PCIe 4.0 x16; assumed, at the 25 GB/s that its copies usually reach.
PAGING_BYTES_PER_S = 25e9


def paged_seconds(setup: Setup, pools: int) -> float:
    """One layer of one token that lives in host memory, on every attention worker's own link."""
    assert setup.deployment.attention is not None
    links = setup.deployment.attention.count if pools == 1 else 1
    return setup.model.kv_bytes_per_token / setup.model.layers / (links * PAGING_BYTES_PER_S)


def facts(setup: Setup, spec: Spec, tp: int, replicas: int) -> dict[str, object]:
    attention = setup.deployment.attention
    assert attention is not None
    return {
        "tensor_parallel": tp,
        "replicas": 1 if setup.pipeline_parallel > 1 else replicas,
        "pipeline_parallel": setup.pipeline_parallel,
        "batches": spec.batches,
        "pipelining": spec.pipelining,
        "attention_partition": "heads" if spec.pools == 1 else "requests",
        "overlap": overlaps(setup),
        "stream_chunks": setup.stream_chunks or 1,
        "host_async": setup.host_async,
        "network": asdict(setup.network),
        "kv_capacity_tokens": spec.tokens_per_pool * spec.pools,
        "weight_bytes_per_worker": setup.model.weight_bytes_per_worker(tp) / setup.pipeline_parallel,
        "admission": spec.admission,
        "max_num_seqs": spec.max_requests,
        **prompt_facts(setup),
    }


def coefficients(setup: Setup, tp: int, pools: int) -> list[dict[str, object]]:
    """Every coefficient used and its source: the model workers' own, and attention's of its devices."""
    assert setup.deployment.attention is not None
    model_rows = setup.costs.provenance(setup.deployment.model.device, tp, setup.model.dtype)
    # Attention workers run no GEMM: a data type they have no units for is no matter.
    attention_rows = setup.costs.provenance(
        setup.deployment.attention.device, 1, prompts=setup.prompt_budget > 0
    )
    model_device, attention = setup.deployment.model.device, setup.deployment.attention
    workers = attention.count if pools == 1 else 1
    return [
        *measured_rows(setup.costs.step_sources(setup.model, model_device, tp), model_device),
        *measured_rows(
            setup.costs.attention_sources(setup.model, attention.device, workers), attention.device
        ),
        *(
            {**row, "device": setup.deployment.model.device.name}
            for row in model_rows
            if row["term"] != "attention"
        ),
        *(
            {**row, "device": setup.deployment.attention.device.name}
            for row in attention_rows
            if row["term"] in ("attention", "prompts")
        ),
        {"term": "network", **asdict(setup.network)},
        *assumptions(setup),
        {
            "term": "paging",
            "kind": "assumed",
            "source": "PCIe 4.0 x16 at the rate its copies usually reach",
            "coefficients": {"bytes_per_s": PAGING_BYTES_PER_S},
        },
    ]


class Lamina(SplitSystem):
    """As this package has it."""

    NAME = "lamina"
    TAKES = (
        EVERY
        | PROMPTS
        | {
            *("batches", "pipelining", "pipeline_parallel", "partition", "overlap", "stream_chunks"),
            *("stream_along", "kv_overcommit", "prefix_sharing", "block_size", "gpu_memory_utilization"),
        }
    )
    NETWORK = NETWORK
    MAX_REQUESTS = MAX_REQUESTS

    def default_deployment(self, model: ModelShape) -> str:
        return default_deployment(model)

    def _build(self, setup: Setup) -> Modelled:
        self.require_runs_on(setup.deployment)
        return build(setup)


SYSTEM = Lamina()
