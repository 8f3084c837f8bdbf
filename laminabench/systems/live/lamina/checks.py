"""Checks, before anything starts, of what this machine and this engine can run."""

from __future__ import annotations

import os
from dataclasses import fields

from laminabench.catalog.deployment import AUTO
from laminabench.requests.replay import FIELDS
from laminabench.systems.live.lamina.setup import DEPLOYMENT, LiveSetup
from laminabench.systems.live.local import CPU
from laminabench.systems.modelled.lamina import check_heads
from laminabench.systems.router import require_known
from laminabench.util.errors import UserError

# What an engine in one process has no use for.
_OF_WORKERS = (
    *("batches", "min_batch", "pipelining", "pipeline_parallel", "experts", "partition", "stream_chunks"),
    *("stream_along", "network", "kv_copy", "oversubscribe", "ray"),
)
# Softnic is a test bench: its times would say nothing.
NETWORKS = ("auto", "shm", "gloo", "verbs", "mlx5")


def check(setup: LiveSetup) -> None:
    """Raise a UserError if this machine cannot run it; nothing has started yet."""
    require_known(setup.router)
    for one in setup.each:
        if setup.several and one.alone:
            raise needs_workers("instances", one)
        _check_instance(one)
    _check_cores(setup)


def _check_instance(setup: LiveSetup) -> None:
    deployment = setup.deployment
    attending = deployment.attention or deployment.model
    if setup.kv_dtype != "auto" and attending.device.name != CPU:
        raise UserError(
            "deployment-kv-dtype",
            f"--kv-dtype {setup.kv_dtype} is for attention on CPUs, and {deployment} has it on "
            f"{attending.device.name}: leave it out, or take MODEL+Ncpu workers",
        )
    setup.devices()  # which are there
    if setup.on_gpus and (setup.several or setup.ray is not None):
        raise UserError(
            "deployment-not-live",
            f"{deployment}: workers on GPUs are those of one engine on this machine; leave --instances and "
            "--ray out",
        )
    if setup.network not in NETWORKS:
        raise UserError(
            "network-not-live", f"--network {setup.network}: live workers are linked by {', '.join(NETWORKS)}"
        )
    if setup.max_num_seqs < 1:
        raise UserError("replay-value", "--max-num-seqs is at least 1")
    if setup.absorb == "attention" and setup.model.latent is None:
        raise UserError(
            "replay-flag-unused",
            f"--absorb is for models with latent attention (MLA), which {setup.model.name} is not; leave it "
            "out",
        )
    if deployment.attention is None:
        _check_alone(setup)
    elif setup.partition == "heads" and setup.model.kv_heads > 1:  # of a single one, queries are shared
        check_heads(setup.model, deployment.attention.count)


def _check_alone(setup: LiveSetup) -> None:
    """Raise a UserError for choices that only workers could have."""
    if setup.on_gpus and setup.deployment.model.count > 1:
        raise UserError(
            "deployment-not-live",
            f"{setup.deployment} is one process, which has one GPU; take one, or MODEL+ATTENTION workers",
        )
    defaults = {each.name: each.default for each in fields(LiveSetup)}
    for name in _OF_WORKERS:
        if getattr(setup, name) != defaults[name]:
            raise needs_workers(name, setup)
    if setup.prefill_workers:
        raise needs_workers("prefill", setup)


def needs_workers(choice: str, setup: LiveSetup) -> UserError:
    """Return the error for a choice that an engine in one process does not have."""
    why = f"{setup.deployment} is one process"
    if setup.auto:
        why = f"--deployment {AUTO} may choose one process"
    return UserError(
        "deployment-no-attention",
        f"{FIELDS[choice].flag} is for workers, and {why}; take MODEL+ATTENTION workers, such as "
        f"{DEPLOYMENT}",
    )


def _check_cores(setup: LiveSetup) -> None:
    workers, cores = setup.processes, len(os.sched_getaffinity(0))
    # What a Ray cluster has, it says itself.
    if workers > cores and not setup.oversubscribe and setup.ray is None:
        prefill = f" with {setup.prefill_workers} for prompts" if setup.prefill_workers else ""
        raise UserError(
            "deployment-too-few-cores",
            f"{setup.hardware}{prefill} is {workers} workers and this process may use {cores} cores, "
            "one for each; use fewer workers, or --oversubscribe to let them share cores "
            "(their times mean less then)",
        )
