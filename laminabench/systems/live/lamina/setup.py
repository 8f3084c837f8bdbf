"""The reference engine on this machine: what the user chose, resolved, or why it has no room here."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from laminabench.catalog.deployment import AUTO, Deployment, Instances, Workers
from laminabench.catalog.find_model import to_hf_config
from laminabench.requests.replay import FIELDS
from laminabench.sim.spec import Admission, Pipelining
from laminabench.systems.live import gpus, local
from laminabench.systems.live.local import KV_SHARE, MAX_SEQUENCES, LocalSetup
from laminabench.systems.modelled.lamina import check_heads
from laminabench.systems.router import require_known
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from lamina.serve import Engine, Engines, Fleet

DEPLOYMENT = "1xcpu+1xcpu"
# With `grow`, admission leaves a hundredth of the memory free.
KV_HEADROOM = 1.02
# What a worker's process holds besides weights and KV: torch, buffers of channels. Assumed.
PROCESS_BYTES = 0.4e9
CPU = "cpu"
# Made-up weights have no longest text: positions rotate and are no rows of a table.
LONGEST_TEXT = 1 << 20
# Of a GPU's memory, what weights and KV may take together.
GPU_SHARE = 0.9
# What an engine in one process has no use for.
_OF_WORKERS = (
    *("batches", "min_batch", "pipelining", "pipeline_parallel", "experts", "partition", "stream_chunks"),
    *("stream_along", "network", "oversubscribe", "ray"),
)

# Sequences below which a core's products take about as long as for one: all weights are read for them.
MIN_BATCH = 8
# Prompt tokens that an iteration computes; the engine's own default.
PROMPT_TOKENS = 512
# Softnic is a test bench: its times would say nothing.
NETWORKS = ("auto", "shm", "gloo", "verbs", "mlx5")


@dataclass(frozen=True, slots=True)
class LiveSetup(LocalSetup):
    """The user's choices, resolved."""

    network: str = "auto"
    batches: int | Literal["auto"] | None = None
    min_batch: int = MIN_BATCH
    pipelining: Pipelining | None = None
    pipeline_parallel: int = 1
    experts: Literal["tp", "ep"] = "tp"
    partition: Literal["heads", "requests"] = "heads"
    stream_chunks: int = 1
    stream_along: Literal["requests", "heads"] = "requests"
    overlap: bool = False
    absorb: Literal["model", "attention"] = "model"
    admission: Admission = "reserve"
    max_sequences: int = MAX_SEQUENCES
    kv_tokens: int | None = None  # on the devices
    overcommit: float = 1.0  # times as many there are with those beside them, as of the modelled systems
    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"  # of KV alone; else the model's
    oversubscribe: bool = False
    # Who computes prompts: nobody (their KV is made up), the model workers, or so many workers of their own.
    prefill: Literal["off", "model"] | int = "off"
    max_batched_tokens: int = PROMPT_TOKENS  # of prompts, beside those who decode
    ray: str | None = None  # the address of the cluster whose actors the workers are; None: this machine's

    auto: bool = False  # `deployment` is one process, and may become another one
    # Of several instances, all of them; `deployment` is the first one's.
    deployments: tuple[Deployment, ...] = ()
    router: str = "round-robin"
    queue: Literal["each", "global"] = "each"

    @property
    def several(self) -> bool:
        return len(self.deployments) > 1

    @property
    def alone(self) -> bool:
        """Whether model and attention are one process, whose threads have the deployment's cores."""
        return self.deployment.attention is None

    @property
    def each(self) -> list[LiveSetup]:
        """Every instance by itself."""
        return [
            replace(self, deployment=one, deployments=()) for one in self.deployments or (self.deployment,)
        ]

    @property
    def hardware(self) -> Deployment | Instances:
        return Instances(self.deployments) if self.several else self.deployment

    @property
    def parts(self) -> dict[str, Workers]:
        """Model and attention workers, by what the engine calls them."""
        parts = {"model": self.deployment.model, "attention": self.deployment.attention}
        return {kind: part for kind, part in parts.items() if part is not None}

    @property
    def on_gpus(self) -> bool:
        return any(part.device.name != CPU for part in self.parts.values())

    def devices(self) -> dict[str, tuple[str, ...]]:
        """What workers of each kind run on: cores, or this machine's GPUs, first the model's. A UserError
        where there are too few of them, which `oversubscribe` lets workers share.
        """
        wanted: Counter[str] = Counter()
        for part in self.parts.values():
            wanted[part.device.name] += part.count
        taken = {device: self._gpus(device, count) for device, count in wanted.items() if device != CPU}
        devices: dict[str, tuple[str, ...]] = {}
        for kind, part in self.parts.items():
            mine = taken.get(part.device.name)
            each = [f"cuda:{next(mine)}" if mine else CPU for _ in range(part.count)]
            devices[kind] = tuple(each)
        return devices

    def _gpus(self, device: str, count: int) -> Iterator[int]:
        instead = f"--deployment {DEPLOYMENT}, or --backend modelled"
        if self.oversubscribe:
            return itertools.cycle(gpus.found(device, 1, instead))
        return iter(gpus.found(device, count, f"fewer, --oversubscribe to share what there is, {instead}"))

    @property
    def kv_bytes_per_token(self) -> float:
        """In one arena."""
        model = self.model
        if self.kv_dtype == "auto":
            return model.kv_bytes_per_token
        from lamina.kv.stored import scale_bytes

        vectors = 1 if model.latent else 2 * model.kv_heads
        return model.layers * (model.stored_size + vectors * scale_bytes(self.kv_dtype))

    @property
    def workers(self) -> tuple[int, int]:
        """Of an instance: model workers and attention workers, each a process."""
        return self.deployment.dop

    @property
    def prefill_workers(self) -> int:
        return self.prefill if isinstance(self.prefill, int) else 0

    @property
    def processes(self) -> int:
        """Workers of all kinds, of all instances."""
        return sum(sum(one.workers) + one.prefill_workers for one in self.each)

    @property
    def made_of(self) -> str:
        """For the user."""
        return "one process" if self.alone else f"{self.processes} workers"

    def names(self) -> list[str]:
        """What the engine calls its workers."""
        if self.alone:
            return []
        if self.several:
            return [f"{number}/{name}" for number, one in enumerate(self.each) for name in one.names()]
        counts = zip(("model", "attention", "prefill"), (*self.workers, self.prefill_workers), strict=True)
        return [f"{kind} {number}" for kind, count in counts for number in range(count)]

    def engine_model(self) -> Any:
        """What the engine is given."""
        if self.of_catalogue:
            return to_hf_config(self.model.name, LONGEST_TEXT)
        return self.weights or self.config_file

    def kv_for(self, trace: Trace) -> int:
        """Tokens of KV memory of each instance."""
        return kv_tokens(self, trace, free_bytes(self))

    def facts(self, serving: Engines) -> dict[str, Any]:
        """What a reader should know, under the names that modelled replays use."""
        if self.several:
            return self._facts_of_all(cast("Fleet", serving))
        engine = cast("Engine", serving)
        same = (
            *("pipeline_parallel", "experts", "overlap", "stream_chunks", "admission"),
            *("oversubscribe", "prefill", "ray"),
        )
        return {
            "model_workers": self.workers[0],
            "attention_workers": self.workers[1],
            "replicas": 1 if self.pipeline_parallel > 1 else engine.schedule.places,
            "batches": engine.schedule.batches,
            **({} if self.alone else {"min_batch": self.min_batch}),
            "pipelining": engine.schedule.pipelining,
            "attention_partition": self.partition,
            "network": None if self.alone else engine.core.network,
            **({} if self.alone or not engine.core.network_why else {"network_why": engine.core.network_why}),
            "kv_capacity_tokens": engine.kv_tokens,
            "warm_up_iterations": engine.warm_up_iterations,
            "max_num_seqs": self.max_sequences,
            "dtype": self.model.dtype,
            **({} if self.kv_dtype == "auto" else {"kv_dtype": self.kv_dtype}),
            **({"absorb": self.absorb} if self.model.latent else {}),
            **({} if self.prefill == "off" else {"max_batched_tokens": self.max_batched_tokens}),
            **{name: getattr(self, name) for name in same},
        }

    def paging(self, serving: Engines) -> dict[str, Any]:
        """What paging has cost each attention worker that is there now, in pages; where there is any."""
        if self.overcommit == 1:
            return {}
        faults = {worker: asdict(each) for worker, each in serving.paging().items()}
        return {"kv_overcommit": self.overcommit, "kv_paging": faults}

    def _facts_of_all(self, fleet: Fleet) -> dict[str, Any]:
        """What all have in common once; what differs as a list."""
        found = [one.facts(each.engine) for one, each in zip(self.each, fleet.instances, strict=True)]
        facts = {
            name: value if all(one[name] == value for one in found) else [one[name] for one in found]
            for name, value in found[0].items()
        }
        return facts | {
            "instances": len(found),
            "router": self.router,
            "queue": self.queue,
            "kv_capacity_tokens": sum(one["kv_capacity_tokens"] for one in found),
        }

    def layout(self) -> dict[str, Any]:
        """The arguments of lamina.Layout."""
        same = (
            *("pipelining", "batches", "min_batch", "pipeline_parallel", "experts", "partition"),
            *("stream_chunks", "stream_along", "network", "oversubscribe"),
        )
        return {
            "model_workers": self.workers[0],
            "attention_workers": self.workers[1],
            "prefill_workers": self.prefill_workers,
            **{f"{kind}_on": on for kind, on in self.devices().items()},
            "together": self.on_gpus and not gpus.shared_by_processes(),
            **{name: getattr(self, name) for name in same},
        }


SETUP = LiveSetup


def check(setup: LiveSetup) -> None:
    """A UserError if this machine cannot run it; nothing has started yet."""
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
    if setup.max_sequences < 1:
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
    """A UserError for choices that only workers could have."""
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
    """Of an engine in one process."""
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


def kv_tokens(setup: LiveSetup, trace: Trace, free_bytes: float) -> int:
    """Tokens of KV memory of each instance for a trace, no more than its longest requests could fill at
    once.
    """
    lengths = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    most = int(np.sort(lengths)[-setup.max_sequences :].sum() * KV_HEADROOM) + 1
    return kv_of_each(setup, most, free_bytes)


def kv_of_each(setup: LiveSetup, most: int, free_bytes: float) -> int:
    """Tokens of KV memory of every instance: each has its share of this machine's."""
    return max(kv_within(one, most, free_bytes / len(setup.each)) for one in setup.each)


def kv_within(setup: LiveSetup, most: int, free_bytes: float) -> int:
    """Tokens of KV memory on the devices of all attention workers together; a UserError if there is not so
    much. What lies beside them is in the same memory, or in that of GPUs' hosts.

    By default a quarter of the free memory, or what a GPU has for it, and not above `most`.
    """
    # Workers that share the queries of a single KV head each store it.
    copied = setup.partition == "heads" and setup.model.kv_heads == 1
    on_device = setup.kv_bytes_per_token * (setup.workers[1] if copied else 1)
    room, usual = _room_for_kv(setup, free_bytes)
    each = on_device * setup.overcommit
    if room < each:
        raise UserError(
            "model-does-not-fit",
            f"{setup.model.name} does not fit on {setup.deployment}: weights, processes and one token of KV "
            f"take {(each - room) / 1e9:.1f} GB more than are free; use a smaller --model",
        )
    if setup.kv_tokens is not None:
        if setup.kv_tokens * each > room:
            times = f" with --kv-overcommit {setup.overcommit:g}" if setup.overcommit > 1 else ""
            raise UserError(
                "kv-tokens-too-many",
                f"--kv-tokens {setup.kv_tokens}{times} are {setup.kv_tokens * each / 1e9:.1f} GB and "
                f"{room / 1e9:.1f} GB are free beside the weights; give at most {int(room // each)}",
            )
        return setup.kv_tokens
    share = int(min(usual / on_device, room / each))
    # A worker that holds whole requests may get the longest of them all.
    pools = 1 if setup.partition == "heads" else setup.workers[1]
    return max(1, min(share, most * pools))


def _room_for_kv(setup: LiveSetup, free_bytes: float) -> tuple[float, float]:
    """Bytes where KV is, and how many it takes if nobody says; the engine looks what a GPU has free."""
    devices, model = setup.devices(), setup.deployment.model.device
    where = setup.deployment.attention or setup.deployment.model
    mine = set(devices.get("attention", devices["model"]))
    weights = setup.model.weight_bytes
    if where.device.name != CPU:
        shared = weights if mine & set(devices["model"]) else 0.0
        room = len(mine) * where.device.memory_bytes * GPU_SHARE - shared
        return room, room
    # Replicas are forked from one process, and read the same copy of the weights: as loaded, and as slices
    # have them.
    copies = 2 if model.name == CPU else 1
    processes = PROCESS_BYTES * setup.processes
    return free_bytes - copies * weights - absorbing_bytes(setup) - processes, KV_SHARE * free_bytes


def absorbing_bytes(setup: LiveSetup) -> float:
    """What attention workers multiply queries and outputs by, which they share here."""
    products = setup.model.products() if setup.absorb == "attention" else ()
    return setup.model.dtype_bytes * sum(each.elements for each in products if each.heads)


def free_bytes(setup: LiveSetup) -> float:
    """Memory that nobody uses; of a cluster's nodes each is looked at when workers start there."""
    if setup.ray is not None:
        return float(sys.maxsize)
    return local.free_bytes()
