"""Systems with one batch on one kind of device: vLLM, and engines that compute prompts for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laminabench.catalog.eras import limit_today
from laminabench.catalog.hardware import Device
from laminabench.catalog.provenance import attention_sources, provenance, step_sources
from laminabench.systems.modelled.setup import (
    Modelled,
    Setup,
    assumptions,
    check_weights,
    device_timing,
    kv_tokens,
    limits_of,
    measured_rows,
    prompt_timing,
    recompute_seconds,
    served_facts,
    slices,
    spec_of,
    working_bytes,
)
from laminabench.util.errors import UserError

BLOCK_TOKENS = 16


def most_at_once(device: Device, prompt_budget: int = 0) -> int:
    """Return the requests that an engine of vLLM runs at once: no more than an iteration has tokens for."""
    limit = limit_today(device)
    return min(limit, prompt_budget) if prompt_budget else limit


def build(setup: Setup) -> Modelled:
    """Return the deployment as the simulator takes it."""
    model, deployment = setup.model, setup.deployment
    if deployment.attention is not None:
        raise UserError(
            "deployment-not-for-system",
            f"vllm runs on one kind of device, not on {deployment}; write for example 4xh100",
        )
    layout, device = deployment.model.shared(), deployment.model.device
    weights, tokens = group_memory(setup)
    # Every data-parallel group has a scheduler of its own.
    limit = setup.max_num_seqs or layout.dp * most_at_once(device, setup.prompt_budget)
    setup = replace(setup, prompt_budget=layout.dp * setup.prompt_budget, max_num_seqs=limit)
    most, rows = limits_of(setup, limit, layout.pp)
    cut = slices(setup, deployment.model, layout, rows)
    requests = -(-np.arange(most + 1) // layout.dp)
    recompute = recompute_seconds(setup, deployment.model, layout)
    stages = [f" stage {stage}" for stage in range(layout.pp)] if layout.pp > 1 else [""]
    timing = replace(
        device_timing(setup, device, layout.tp, cut, requests, recompute),
        # The hosts of the groups work side by side, each for its own requests.
        host_per_request=setup.costs.host.per_request_s / layout.dp,
        prompts=prompt_timing(setup, device, most, layout, layout.tp),
    )
    spec = replace(
        spec_of(setup, timing, tokens, most, BLOCK_TOKENS),
        pools=layout.dp,
        # Every stage works on the batch that is with it.
        batches=layout.pp,
        pipelining="fixed" if layout.pp > 1 else "serial",
        own_attention=layout.pp > 1,
        replica_names=tuple(f"{deployment.model}{stage}" for stage in stages),
        attention_name=f"{deployment.model} (attention)",
        shared_devices=True,
    )
    facts = {
        "tensor_parallel": layout.tp,
        **({} if layout.plain else {"layout": str(layout)}),
        "kv_capacity_tokens": tokens // spec.block_tokens * spec.block_tokens * spec.pools,
        "weight_bytes_per_worker": weights,
        "block_tokens": spec.block_tokens,
        "gpu_memory_utilization": setup.gpu_memory_utilization,
        "host_async": setup.host_async,
        **served_facts(setup, spec),
    }
    prompts = setup.prompt_budget > 0
    terms = provenance(setup.costs, device, layout, model.dtype, prompts=prompts, model=model)
    coefficients = [{**row, "device": device.name} for row in terms]
    sources = step_sources(setup.costs, model, device, layout)
    sources += attention_sources(setup.costs, model, device, layout.tp)
    return Modelled(spec, facts, [*coefficients, *measured_rows(sources, device), *assumptions(setup)])


def group_memory(setup: Setup) -> tuple[float, int]:
    """Return the bytes of weights on each device, and the KV tokens of a data-parallel group."""
    model, deployment = setup.model, setup.deployment
    layout, device = deployment.model.shared(), deployment.model.device
    usable = setup.gpu_memory_utilization * device.memory_bytes - working_bytes(setup, layout)
    weights = check_weights(setup, deployment.model, layout, usable)
    per_token = model.kv_bytes_per_token * model.kv_share(layout.tp) / layout.pp
    reserved = device.memory_bytes - usable
    return weights, kv_tokens(usable - weights, per_token, setup, str(deployment), reserved, pools=layout.dp)
