"""One batch on one kind of device: vLLM, and engines that compute prompts for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laminabench.catalog.models import DTYPE_BYTES
from laminabench.errors import UserError
from laminabench.sim.spec import Spec
from laminabench.systems.modelled.setup import (
    WORKING_BYTES,
    Modelled,
    Setup,
    assumptions,
    check_weights,
    device_timing,
    kv_tokens,
    limits_of,
    measured_rows,
    prompt_facts,
    prompt_timing,
    slices,
)

# vLLM's default on devices of 70 GB and more since its V1 engine (256 before, and on smaller ones).
MAX_NUM_SEQS = 1024
BLOCK_TOKENS = 16


def build(setup: Setup) -> Modelled:
    """The deployment as the simulator takes it."""
    model, deployment = setup.model, setup.deployment
    if deployment.attention is not None:
        raise UserError(
            "deployment-not-for-system",
            f"vllm runs on one kind of device, not on {deployment}; write for example 4xh100",
        )
    tp = deployment.model.count
    device = deployment.model.device
    usable = setup.memory_utilization * device.memory_bytes - WORKING_BYTES
    weights = check_weights(setup, deployment.model, tp, usable)
    # With fewer KV heads than devices several devices hold the same one.
    kv_heads = max(1, model.kv_heads // tp)
    per_token = 2 * model.layers * kv_heads * model.head_dim * DTYPE_BYTES[model.kv_dtype]
    tokens = kv_tokens(usable - weights, per_token, setup, str(deployment), device.memory_bytes - usable)
    most, rows = limits_of(setup, MAX_NUM_SEQS)
    cut = slices(setup, deployment.model, tp, rows)
    terms = setup.costs.attention_terms(model, device, tp)
    spec = Spec(
        layers=model.layers,
        timing=replace(
            device_timing(setup, device, tp, cut, np.arange(most + 1), tp),
            prompts=prompt_timing(setup, device, terms, most, tp, tp),
        ),
        tokens_per_pool=tokens,
        max_requests=most,
        block_tokens=setup.block_tokens or BLOCK_TOKENS,
        admission=setup.admission,
        prefix_sharing=setup.prefix_sharing,
        prompt_budget=setup.prompt_budget,
        replica_names=(str(deployment.model),),
        attention_name=f"{deployment.model} (attention)",
        shared_devices=True,
    )
    provenance = setup.costs.provenance(device, tp, model.dtype, prompts=setup.prompt_budget > 0)
    facts = {
        "tensor_parallel": tp,
        "kv_capacity_tokens": tokens // spec.block_tokens * spec.block_tokens,
        "weight_bytes_per_worker": weights,
        "block_tokens": spec.block_tokens,
        "gpu_memory_utilization": setup.memory_utilization,
        "admission": spec.admission,
        "host_async": setup.host_async,
        "max_num_seqs": most,
        **prompt_facts(setup),
    }
    coefficients = [{**row, "device": device.name} for row in provenance]
    sources = setup.costs.step_sources(model, device, tp) + setup.costs.attention_sources(model, device, tp)
    return Modelled(spec, facts, [*coefficients, *measured_rows(sources, device), *assumptions(setup)])
