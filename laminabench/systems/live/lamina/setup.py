"""The reference engine on this machine: what the user chose, resolved, or why it has no room here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from laminabench.catalog.deployment import Deployment, Instances, Workers
from laminabench.catalog.find_model import to_hf_config
from laminabench.sim.spec import Admission, Pipelining
from laminabench.systems.live import gpus
from laminabench.systems.live.local import CPU, MAX_SEQUENCES, LocalSetup

if TYPE_CHECKING:
    from lamina.cluster import Layout

DEPLOYMENT = "1xcpu+1xcpu"
# Made-up weights have no longest text: positions rotate and are no rows of a table.
LONGEST_TEXT = 1 << 20
# Sequences below which a core's products take about as long as for one: all weights are read for them.
MIN_BATCH = 8
# Prompt tokens that an iteration computes; the engine's own default.
PROMPT_TOKENS = 512


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
    max_num_seqs: int = MAX_SEQUENCES
    kv_tokens: int | None = None  # on the devices
    kv_overcommit: float = 1.0  # KV tokens over those that fit, as in the modelled systems
    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"  # of KV alone; else the model's
    kv_copy: Literal["none", "host", "worker", "disk"] = "none"
    oversubscribe: bool = False
    # What computes prompts: nothing (their KV is made up), the model workers, or separate workers.
    prefill: Literal["off", "model"] | int = "off"
    max_batched_tokens: int = PROMPT_TOKENS  # of prompts, in an iteration
    ray: str | None = None  # the address of the cluster whose actors the workers are; None: this machine's

    auto: bool = False  # `deployment` is one process, and may become another one
    # Of several instances, all of them; `deployment` is the first one's.
    deployments: tuple[Deployment, ...] = ()
    router: str = "round-robin"
    queue: Literal["each", "global"] = "each"

    @property
    def several(self) -> bool:
        """Whether there are several instances, behind a router."""
        return len(self.deployments) > 1

    @property
    def alone(self) -> bool:
        """Whether model and attention are one process, whose threads have the deployment's cores."""
        return self.deployment.attention is None

    @property
    def each(self) -> list[LiveSetup]:
        """The setup of every instance."""
        return [
            replace(self, deployment=one, deployments=()) for one in self.deployments or (self.deployment,)
        ]

    @property
    def hardware(self) -> Deployment | Instances:
        return Instances(self.deployments) if self.several else self.deployment

    @property
    def parts(self) -> dict[str, Workers]:
        """The model and attention workers, by the engine's names."""
        parts = {"model": self.deployment.model, "attention": self.deployment.attention}
        return {kind: part for kind, part in parts.items() if part is not None}

    @property
    def on_gpus(self) -> bool:
        return any(part.device.name != CPU for part in self.parts.values())

    def devices(self) -> dict[str, tuple[str, ...]]:
        """Return the devices of each kind of worker: cores, or this machine's GPUs, first the model's.

        Raise a UserError for too few of them, unless `oversubscribe` lets workers share them.
        """
        counts: Counter[str] = Counter()
        for part in self.parts.values():
            counts[part.device.name] += part.count
        taken = {device: self._gpus(device, count) for device, count in counts.items() if device != CPU}
        devices: dict[str, tuple[str, ...]] = {}
        for kind, part in self.parts.items():
            gpus_left = taken.get(part.device.name)
            each = [f"cuda:{next(gpus_left)}" if gpus_left else CPU for _ in range(part.count)]
            devices[kind] = tuple(each)
        return devices

    def _gpus(self, device: str, count: int) -> Iterator[int]:
        instead = f"--deployment {DEPLOYMENT}, or --backend modelled"
        if self.oversubscribe:
            return itertools.cycle(gpus.pick(device, 1, instead))
        return iter(gpus.pick(device, count, f"fewer, --oversubscribe to share what there is, {instead}"))

    @property
    def workers(self) -> tuple[int, int]:
        """The model workers and attention workers of an instance, each a process."""
        return self.deployment.dop

    @property
    def prefill_workers(self) -> int:
        return self.prefill if isinstance(self.prefill, int) else 0

    @property
    def processes(self) -> int:
        """The number of workers of all kinds, of all instances."""
        return sum(sum(one.workers) + one.prefill_workers for one in self.each)

    def names(self) -> list[str]:
        """Return the engine's names of its workers."""
        if self.alone:
            return []
        if self.several:
            return [f"{number}/{name}" for number, one in enumerate(self.each) for name in one.names()]
        counts = zip(("model", "attention", "prefill"), (*self.workers, self.prefill_workers), strict=True)
        return [f"{kind} {number}" for kind, count in counts for number in range(count)]

    def engine_model(self) -> Any:
        """Return the model that the engine gets."""
        if self.of_catalogue:
            return to_hf_config(self.model.name, LONGEST_TEXT)
        return self.weights or self.config_file

    def layout(self) -> Layout:
        """Return the engine's layout."""
        from lamina.cluster import Layout

        same = (
            *("pipelining", "batches", "min_batch", "pipeline_parallel", "experts", "partition"),
            *("stream_chunks", "stream_along", "network", "oversubscribe"),
        )
        devices = self.devices()
        return Layout(
            model_workers=self.workers[0],
            attention_workers=self.workers[1],
            prefill_workers=self.prefill_workers,
            kv_copies=self.kv_copy,
            together=self.on_gpus and not gpus.shared_by_processes(),
            model_on=devices.get("model", CPU),
            attention_on=devices.get("attention", CPU),
            **{name: getattr(self, name) for name in same},
        )


SETUP = LiveSetup
