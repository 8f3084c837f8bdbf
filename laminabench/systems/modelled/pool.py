"""Prompts on devices of their own, whose KV is handed over to those that decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.layout import NODE_DEVICES, Layout
from laminabench.catalog.models import ModelShape
from laminabench.sim.spec import PromptPool
from laminabench.systems.modelled import homogeneous
from laminabench.systems.modelled.setup import Modelled, Setup
from laminabench.util.errors import UserError


def with_pool(setup: Setup, build: Callable[[Setup], Modelled], *, pulled: bool) -> Modelled:
    """Return the deployment that `build` makes of a setup without prompts, and its pool."""
    decoding = replace(setup.deployment, prefill=None)
    decodes = build(replace(setup, deployment=decoding, prompt_budget=0))
    workers = setup.deployment.prefill
    assert workers is not None
    engines, engine = engines_of(setup, workers, pulled=pulled)
    receiving = decoding.attention or decoding.model
    # All engines share the link, which is as wide as the side with fewer network cards.
    nic = min(workers.device.nic_bytes_per_s, receiving.device.nic_bytes_per_s)
    link = setup.network.on(nic)
    rate = min(workers.count, receiving.count) * link.bandwidth_bytes_per_s
    model, window = setup.model, setup.model.window.tokens if setup.model.window else 0
    pool = PromptPool(
        engine=replace(engine.spec, copies=engines),
        latency=link.rtt_s / 2,
        per_token=model.kv_bytes_per_token / rate,
        pulled=pulled,
        window=window,
        windowed_per_token=model.kv_bytes_per_request / window / rate if window else 0.0,
    )
    facts = {
        "prefill": f"pool:{workers}",
        "max_batched_tokens": setup.prompt_budget,
        "prefill_engines": engines,
        "prefill_tensor_parallel": engine.facts["tensor_parallel"],
        "prefill_kv_tokens": engine.facts["kv_capacity_tokens"] * engines,
        "kv_handover": "pulled" if pulled else "pushed",
        "kv_handover_bytes_per_s": rate,
    }
    rows = [{**row, "term": f"{row['term']} of the pool"} for row in engine.coefficients if "device" in row]
    return Modelled(
        replace(decodes.spec, pool=pool), {**decodes.facts, **facts}, [*decodes.coefficients, *rows]
    )


def pool_layout(model: ModelShape, workers: Workers) -> tuple[int, Layout]:
    """Return how many engines these devices make, and the largest tensor parallelism of each."""
    tp = max(each for each in model.tp_degrees(NODE_DEVICES) if workers.count % each == 0)
    return workers.count // tp, Layout(tp)


def engines_of(setup: Setup, workers: Workers, *, pulled: bool) -> tuple[int, Modelled]:
    """Return how many engines these devices make, and one of them."""
    engines, layout = pool_layout(setup.model, workers)
    alone = replace(
        setup,
        deployment=Deployment(Workers(workers.device, layout.tp)),
        # A prompt has all its memory from when it is begun until its KV is elsewhere.
        admission="reserve",
        # Lamina's workers have nothing but weights, activations and KV; vLLM keeps a share free.
        memory_utilization=1.0 if pulled else setup.memory_utilization,
        max_num_seqs=None,
        block_tokens=None,
        kv_capacity=None,
        pipeline_parallel=1,
        batches=None,
        pipelining=None,
    )
    try:
        return engines, homogeneous.build(alone)
    except UserError as error:
        raise error.within(f"--prefill pool:{workers}") from None
