"""The facts that a Run keeps of its engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from laminabench.systems.live.lamina.setup import LiveSetup

if TYPE_CHECKING:
    from lamina.serve import Engine, Engines, Fleet


def facts_of(setup: LiveSetup, serving: Engines) -> dict[str, Any]:
    """Return what a Run says of the engine, under the names that modelled replays use."""
    if setup.several:
        return _of_all(setup, cast("Fleet", serving))
    engine = cast("Engine", serving)
    same = (
        *("pipeline_parallel", "experts", "overlap", "stream_chunks", "admission"),
        *("oversubscribe", "prefill", "ray"),
    )
    return {
        "model_workers": setup.workers[0],
        "attention_workers": setup.workers[1],
        "replicas": 1 if setup.pipeline_parallel > 1 else engine.schedule.places,
        "batches": engine.schedule.batches,
        **({} if setup.alone else {"min_batch": setup.min_batch}),
        "pipelining": engine.schedule.pipelining,
        "attention_partition": setup.partition,
        "network": None if setup.alone else engine.core.network,
        **({} if setup.alone or not engine.core.network_why else {"network_why": engine.core.network_why}),
        "kv_capacity_tokens": engine.kv_tokens,
        "warm_up_iterations": engine.warm_up_iterations,
        "max_num_seqs": setup.max_sequences,
        "dtype": setup.model.dtype,
        **({} if setup.kv_dtype == "auto" else {"kv_dtype": setup.kv_dtype}),
        **({} if setup.kv_copy == "none" else {"kv_copy": setup.kv_copy}),
        **({"absorb": setup.absorb} if setup.model.latent else {}),
        **({} if setup.prefill == "off" else {"max_batched_tokens": setup.max_batched_tokens}),
        **{name: getattr(setup, name) for name in same},
    }


def paging_of(setup: LiveSetup, serving: Engines) -> dict[str, Any]:
    """Return what paging has cost each attention worker that runs now, in pages, if there is any."""
    if setup.overcommit == 1:
        return {}
    faults = {worker: asdict(each) for worker, each in serving.paging().items()}
    return {"kv_overcommit": setup.overcommit, "kv_paging": faults}


def _of_all(setup: LiveSetup, fleet: Fleet) -> dict[str, Any]:
    """Return what all instances have in common once, and what differs as a list."""
    instances = [facts_of(one, each.engine) for one, each in zip(setup.each, fleet.instances, strict=True)]
    facts = {
        name: value if all(one[name] == value for one in instances) else [one[name] for one in instances]
        for name, value in instances[0].items()
    }
    return facts | {
        "instances": len(instances),
        "router": setup.router,
        "queue": setup.queue,
        "kv_capacity_tokens": sum(one["kv_capacity_tokens"] for one in instances),
    }
