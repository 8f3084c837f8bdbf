"""The interface of a modelled system: its choices, its deployments, and its form for the simulator."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import ClassVar

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.layout import NODE_DEVICES, Layout
from laminabench.catalog.models import ModelShape
from laminabench.requests import replay as request
from laminabench.requests.replay import taken_by
from laminabench.sim.spec import PromptPool
from laminabench.systems.modelled import homogeneous
from laminabench.systems.modelled.setup import Modelled, Setup
from laminabench.util.errors import UserError

# Devices of which deployments of mixtures of experts are made, and their attention workers.
COUNTS = (1, 2, 4, 8, 16)
ATTENTION_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# Of any modelled system.
EVERY = taken_by(request.MODELLED)
# For systems whose times are tables: they can compute prompts, and may drop the rows of iterations.
PROMPTS = taken_by(request.PROMPTS)
# What --prefill may be where prompts are computed, for the end of a sentence.
COMPUTED = "colocated, or pool:2xh100 for devices of their own"
# What says of a system of one batch and no attention workers what it does anyway.
ONE_BATCH: Mapping[str, object] = {
    "batches": 1,
    "pipelining": "serial",
    "overlap": True,
    "kv_overcommit": 1.0,
    "pipeline_parallel": 1,
}


class System(ABC):
    """A modelled system. The defaults are of homogeneous workers that decode one batch."""

    NAME: str
    # How charts show it; a marker as plotly names it. A page may need a darker colour than a printed figure.
    COLOUR = "#8a7f2d"
    PAGE_COLOUR: str | None = None
    MARKER = "star"
    # What a paper measured over another system, by that one's name.
    PUBLISHED: ClassVar[Mapping[str, str]] = {}
    # What others are compared with, unless the user says: what people run today.
    BASELINE = False
    # Whether it has attention workers and model workers.
    SPLIT = False
    TAKES: frozenset[str] = EVERY
    ANYWAY: ClassVar[Mapping[str, object]] = ONE_BATCH
    WHY_NOT = ""
    # Its paper's; what has one pool of devices does not need one.
    NETWORK = "fhbn"
    # Of its paper's devices, unless the user says.
    PRICE_BASIS: str | None = None
    # Most that take turns, of what is worth trying.
    MOST_BATCHES = 1
    # Most requests in a batch, unless the user says; what a plan's tables are made for.
    MAX_REQUESTS: int
    # Whether its times are tables by batch size, which are quicker to make for fewer requests.
    TABLES = True
    # Tokens of KV that are handed out at once.
    BLOCK_TOKENS = 1
    # Whether it reads the KV of prompts when it has time, or is sent it.
    PULLS_KV = False

    @property
    def defaults(self) -> dict[str, object]:
        """The values of options that a request leaves open, where they do not depend on its other options."""
        of_setup = {each.name: each.default for each in fields(Setup) if each.default is not MISSING}
        own = {"network": self.NETWORK, "max_num_seqs": self.MAX_REQUESTS, "block_size": self.BLOCK_TOKENS}
        return {**{name: value for name, value in of_setup.items() if value is not None}, **own}

    @abstractmethod
    def default_deployment(self, model: ModelShape) -> str:
        """Return the papers' deployment for a model of this size."""

    def require_runs_on(self, deployment: Deployment) -> None:
        """Raise a UserError for devices whose times it does not know."""
        for part in deployment.parts:
            if not self.runs_on(part.device):
                what = "a board, which runs whole models by itself" if part.device.board else "no such board"
                raise UserError(
                    "deployment-not-for-system",
                    f"{self.NAME} does not run on {part.device.name}: that is {what}",
                )

    def build(self, setup: Setup) -> Modelled:
        """Return the deployment as the simulator takes it; raise a UserError if it cannot be."""
        if setup.deployment.prefill is None:
            return self._build(setup)
        return with_pool(setup, self._build, pulled=self.PULLS_KV)

    @abstractmethod
    def _build(self, setup: Setup) -> Modelled:
        """Build a deployment without devices for prompts."""

    def settled(self, setup: Setup) -> tuple[Setup, str]:
        """Return the setup at its own price, and a note on that or an empty string."""
        return setup, ""

    def instances_of(self, deployment: Deployment) -> int:
        """Return how many of these devices serve requests by themselves."""
        del deployment
        return 1

    def runs_on(self, device: Device) -> bool:
        """Return whether it can be deployed on devices of this kind."""
        return not device.board

    def deployments(
        self, model: ModelShape, devices: Sequence[Device], *, most_attention: int, replicas: int
    ) -> Iterator[Deployment]:
        """Return all deployments that may be worth trying, whether or not their memory suffices.

        Model workers are as many as tensor parallelism can be over, for each of so many replicas.
        """
        del most_attention
        return (Deployment(each) for each in self.model_workers(model, devices, replicas))

    def model_workers(self, model: ModelShape, devices: Sequence[Device], replicas: int) -> list[Workers]:
        """Return the model workers of each kind that it runs on, in every number and layout worth trying."""
        layouts = [each for each in worth_trying(model) if replicas == 1 or each.plain]
        kinds = [device for device in devices if self.runs_on(device)]
        return [
            Workers(device, layout.devices * replicas, None if layout.plain else layout)
            for device in kinds
            for layout in layouts
        ]

    def engines(self, deployment: Deployment) -> int:
        """Return how many engines schedule separately, with a limit each."""
        del deployment
        return 1

    def most_requests(self, deployment: Deployment) -> int:
        """Return the most requests that run at once by default."""
        return self.engines(deployment) * self.MAX_REQUESTS

    def limits(self, device: Device) -> tuple[int | None, ...]:
        """Return the limits of requests worth trying on this device; None is its own limit."""
        del device
        return (None,)


def worth_trying(model: ModelShape) -> list[Layout]:
    """Return tensor parallelism; of experts every way to share these out, over two nodes too."""
    if model.experts is None:
        return [Layout(degree) for degree in model.tp_degrees(NODE_DEVICES)]
    return [each for count in COUNTS for each in model.layouts(count) if each.pp == 1]


def of_today(model: ModelShape, share: float, least: int = 1) -> Workers:
    """Return the fewest H200, at least `least`, that fit a mixture of experts in this share of their memory.

    Experts are distributed where they cannot be split. KV of latent attention would be copied by tensor
    parallelism, so that is replaced by data parallelism.
    """
    h200 = device("h200")
    for count in (each for each in COUNTS if each >= least):
        legal = model.layouts(count)
        layouts = [Layout(1, count, count)] if model.latent else [Layout(count), Layout(count, ep=count)]
        for layout in layouts:
            if layout in legal and model.weight_bytes_per_worker(layout) <= share * h200.memory_bytes:
                return Workers(h200, count, None if layout.plain else layout)
    raise UserError(
        "model-does-not-fit", f"{model.name} does not fit on {COUNTS[-1]}xh200; name a --deployment"
    )


class SplitSystem(System):
    """A system with attention workers and model workers."""

    ANYWAY: ClassVar[Mapping[str, object]] = {}
    SPLIT = True
    PULLS_KV = True
    MOST_BATCHES = 3

    def deployments(
        self, model: ModelShape, devices: Sequence[Device], *, most_attention: int, replicas: int
    ) -> Iterator[Deployment]:
        """Return all pairs of model workers and attention workers."""
        shares = [share for share in self.attention_counts(model) if share <= most_attention]
        attention = [Workers(device, share) for device in devices if self.runs_on(device) for share in shares]
        pairs = itertools.product(self.model_workers(model, devices, replicas), attention)
        return (Deployment(*pair) for pair in pairs)

    def attention_counts(self, model: ModelShape) -> Sequence[int]:
        """Return the counts that KV heads divide over; lamina-v1 distributes requests over attention workers.

        Mixtures of experts have few KV heads: requests are distributed where these do not suffice.
        """
        return ATTENTION_COUNTS if model.experts else model.head_splits()


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
    """Return how many engines these devices make, and the layout of each.

    Without one of their own they have the largest tensor parallelism.
    """
    if workers.layout:
        return workers.count // workers.layout.devices, workers.layout
    tp = max(each for each in model.tp_degrees(NODE_DEVICES) if workers.count % each == 0)
    return workers.count // tp, Layout(tp)


def engines_of(setup: Setup, workers: Workers, *, pulled: bool) -> tuple[int, Modelled]:
    """Return how many engines these devices make, and one of them."""
    engines, layout = pool_layout(setup.model, workers)
    alone = replace(
        setup,
        deployment=Deployment(Workers(workers.device, layout.devices, layout)),
        # A prompt has all its memory from when it is begun until its KV is elsewhere.
        admission="reserve",
        # Lamina's workers have nothing but weights, activations and KV; vLLM keeps a share free.
        gpu_memory_utilization=1.0 if pulled else setup.gpu_memory_utilization,
        max_num_seqs=None,
        block_size=None,
        kv_tokens=None,
        pipeline_parallel=1,
        batches=None,
        pipelining=None,
    )
    try:
        return engines, homogeneous.build(alone)
    except UserError as error:
        raise error.within(f"--prefill pool:{workers}") from None
