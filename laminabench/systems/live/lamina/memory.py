"""The number of KV tokens that fit in free memory."""

from __future__ import annotations

import sys

import numpy as np

from laminabench.systems.live import local
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.local import CPU, KV_SHARE
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

# With `grow`, admission leaves a hundredth of the memory free.
KV_HEADROOM = 1.02
# What a worker's process holds besides weights and KV: torch, buffers of channels. Assumed.
PROCESS_BYTES = 0.4e9
# Of a GPU's memory, what weights and KV may take together.
GPU_SHARE = 0.9


def kv_tokens(setup: LiveSetup, trace: Trace, free_bytes: float) -> int:
    """Return the KV tokens of each instance for a trace, at most what its longest requests use at once."""
    lengths = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    most = int(np.sort(lengths)[-setup.max_num_seqs :].sum() * KV_HEADROOM) + 1
    return kv_of_each(setup, most, free_bytes)


def kv_of_each(setup: LiveSetup, most: int, free_bytes: float) -> int:
    """Return the KV tokens of every instance: each has its share of this machine's."""
    return max(kv_within(one, most, free_bytes / len(setup.each)) for one in setup.each)


def kv_within(setup: LiveSetup, most: int, free_bytes: float) -> int:
    """Return the KV tokens on all attention workers' devices; raise a UserError for too little memory.

    What lies next to them is in the same memory, or in that of GPUs' hosts.

    By default a quarter of the free memory, or what a GPU has for it, and not above `most`.
    """
    # Workers that share the queries of a single KV head each store it.
    copied = setup.partition == "heads" and setup.model.kv_heads == 1
    on_device = kv_bytes_per_token(setup) * (setup.workers[1] if copied else 1)
    room, usual = _room_for_kv(setup, free_bytes)
    if setup.kv_copy in ("host", "worker"):
        room, usual = room / 2, usual / 2
    each = on_device * setup.kv_overcommit
    if room < each:
        raise UserError(
            "model-does-not-fit",
            f"{setup.model.name} does not fit on {setup.deployment}: weights, processes and one token of KV "
            f"take {(each - room) / 1e9:.1f} GB more than are free; use a smaller --model",
        )
    if setup.kv_tokens is not None:
        if setup.kv_tokens * each > room:
            times = f" with --kv-overcommit {setup.kv_overcommit:g}" if setup.kv_overcommit > 1 else ""
            raise UserError(
                "kv-tokens-too-many",
                f"--kv-tokens {setup.kv_tokens}{times} are {setup.kv_tokens * each / 1e9:.1f} GB and "
                f"{room / 1e9:.1f} GB are free next to the weights; give at most {int(room // each)}",
            )
        return setup.kv_tokens
    share = int(min(usual / on_device, room / each))
    # A worker that holds whole requests may get the longest of them all.
    pools = 1 if setup.partition == "heads" else setup.workers[1]
    return max(1, min(share, most * pools))


def kv_bytes_per_token(setup: LiveSetup) -> float:
    """Return the bytes of a token in one arena."""
    model = setup.model
    if setup.kv_dtype == "auto":
        return model.kv_bytes_per_token
    from lamina.kv.stored import scale_bytes

    vectors = 1 if model.latent else 2 * model.kv_heads
    return model.layers * (model.stored_size + vectors * scale_bytes(setup.kv_dtype))


def _room_for_kv(setup: LiveSetup, free_bytes: float) -> tuple[float, float]:
    """Return the bytes where KV is, and its default share; the engine checks what a GPU has free."""
    devices, model = setup.devices(), setup.deployment.model.device
    where = setup.deployment.attention or setup.deployment.model
    kv_devices = set(devices.get("attention", devices["model"]))
    weights = setup.model.weight_bytes
    if where.device.name != CPU:
        shared = weights if kv_devices & set(devices["model"]) else 0.0
        room = len(kv_devices) * where.device.memory_bytes * GPU_SHARE - shared
        return room, room
    # Replicas are forked from one process, and read the same copy of the weights: as loaded, and as slices
    # have them.
    copies = 2 if model.name == CPU else 1
    processes = PROCESS_BYTES * setup.processes
    return free_bytes - copies * weights - absorbing_bytes(setup) - processes, KV_SHARE * free_bytes


def absorbing_bytes(setup: LiveSetup) -> float:
    """Return the bytes of the matrices that attention workers share to absorb queries and outputs."""
    products = setup.model.products() if setup.absorb == "attention" else ()
    return setup.model.dtype_bytes * sum(each.elements for each in products if each.heads)


def free_bytes(setup: LiveSetup) -> float:
    """Return free memory; that of a cluster's nodes is checked when workers start there."""
    if setup.ray is not None:
        return float(sys.maxsize)
    return local.free_bytes()
