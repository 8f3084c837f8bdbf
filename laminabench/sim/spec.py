"""A deployment as the simulator needs it: how many of what, and tables of how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from laminabench import _sim
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from laminabench.catalog.measured import Grid, MeasuredAttention

Pipelining = Literal["serial", "rotational", "fixed", "pingpong"]
Admission = Literal["reserve", "grow"]
Mode = Literal["saturate", "open", "closed"]

TICKS_PER_S = 10_000_000_000
# No step of serving takes this long; one that does comes from a wrong coefficient.
LONGEST_S = 3600.0
Ticks = NDArray[np.int64]
Float64 = NDArray[np.float64]


def ticks(seconds: Float64 | float) -> Ticks:
    """Return seconds as whole ticks of 0.1 ns; raise a UserError for what 64 bits cannot hold."""
    rounded = np.floor(np.asarray(seconds, np.float64) * TICKS_PER_S + 0.5)
    if rounded.size and not (rounded.min() >= -(2.0**63) and rounded.max() < 2.0**63):  # NaN is neither
        wrong = np.ravel(seconds)[int(np.argmin(np.ravel(np.abs(rounded) < 2.0**63)))]
        raise UserError(
            "time-not-countable", f"{wrong:g} s is no time: it is not a number, or is more than 29 years"
        )
    return rounded.astype(np.int64)


def slopes(seconds: Float64) -> Float64:
    """Return seconds as fractions of ticks."""
    return np.ascontiguousarray(seconds * TICKS_PER_S)


def measured_ticks(measured: MeasuredAttention) -> _sim.MeasuredAttention:
    """Convert measured attention, seconds, to ticks."""

    def grid(of: Grid, unit: float) -> _sim.Grid:
        return _sim.Grid([axis.tolist() for axis in of.axes], (of.values * unit).ravel().tolist())

    grids, native = measured.grids, _sim.MeasuredAttention()
    native.decode = grid(grids.decode, TICKS_PER_S)
    native.prompt = grid(grids.prompt, TICKS_PER_S)
    native.mixed = grid(grids.mixed, TICKS_PER_S)
    native.skew = grid(grids.skew, 1)
    native.mixed_skew = grid(grids.mixed_skew, 1)
    fixed, per_request, per_kv_token, per_mean_token = measured.terms
    prompt_fixed, per_row, per_pair, _ = measured.prompts
    beyond = native.beyond
    beyond.fixed = fixed * TICKS_PER_S
    beyond.per_request = per_request * TICKS_PER_S
    beyond.per_kv_token = per_kv_token * TICKS_PER_S
    beyond.per_mean_token = per_mean_token * TICKS_PER_S
    beyond.prompt_fixed = prompt_fixed * TICKS_PER_S
    beyond.per_row = per_row * TICKS_PER_S
    beyond.per_pair = per_pair * TICKS_PER_S
    return native


class HostTiming(Protocol):
    """Seconds that serving costs in addition to the model."""

    @property
    def host_fixed(self) -> float: ...
    @property
    def host_per_request(self) -> float: ...
    @property
    def host_async(self) -> bool: ...
    @property
    def recompute_per_token(self) -> float: ...
    @property
    def server(self) -> ServerTiming: ...


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """Seconds of a server's front end, and of launching iterations that are in no graph."""

    request_in: float = 0.0
    request_serial: float = 0.0
    out: float = 0.0
    gap_per_request: float = 0.0  # of the host, between iterations although it works behind the devices
    launch: float = 0.0
    graph_rows: int = 0  # of iterations with prompts, those with more rows are in no graph


def serving_costs(timing: HostTiming) -> _sim.ServingCosts:
    """Convert a host's seconds to ticks."""
    serving = _sim.ServingCosts()
    serving.host_fixed = int(ticks(timing.host_fixed))
    serving.host_per_request = timing.host_per_request * TICKS_PER_S
    serving.host_async = timing.host_async
    serving.recompute_per_token = timing.recompute_per_token * TICKS_PER_S
    server = timing.server
    serving.request_in = int(ticks(server.request_in))
    serving.request_serial = int(ticks(server.request_serial))
    serving.out = int(ticks(server.out))
    serving.gap_per_request = server.gap_per_request * TICKS_PER_S
    serving.launch = int(ticks(server.launch))
    serving.graph_rows = server.graph_rows
    return serving


@dataclass(frozen=True, slots=True)
class PromptTiming:
    """Seconds of what prompts add, as docs/simulator.md names them; `head` by requests that get a token."""

    head: Float64
    fixed: float
    per_row: float
    per_pair: float
    per_token: float
    windowed_per_pair: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as docs/simulator.md names them; arrays have entry B for a batch of B requests.

    With prompts, those of slices and transfers and `attention_rows` have it for B tokens.
    """

    first_slice: Float64
    mid_slice: Float64
    last_slice: Float64
    attention_fixed: Float64
    attention_per_token: Float64
    q_lead: Float64 | float = 0.0
    q_transfer: Float64 | float = 0.0
    kv_transfer: Float64 | float = 0.0
    out_transfer: Float64 | float = 0.0
    migration: Float64 | float = 0.0
    # Of the attention workers, in a layer: their work other than attention, before it.
    attention_rows: Float64 | float = 0.0
    combine: float = 0.0
    stream_chunks: int = 1
    stream_by_request: bool = True
    chunk_overhead: float = 0.0
    transfer_latency: float = 0.0
    device_tokens: int = 2**62
    paged_per_token: float = 0.0
    host_fixed: float = 0.0
    host_per_request: float = 0.0
    host_async: bool = False
    server: ServerTiming = ServerTiming()
    recompute_per_token: float = 0.0
    prompts: PromptTiming | None = None
    # Layers whose tokens look at no more than so many: what they add to all layers' average, as the others'.
    window: int | None = None
    windowed_per_token: Float64 | float = 0.0
    # In place of attention of KV tokens, windows' too, and of prompts' attention.
    measured: MeasuredAttention | None = None

    def native(self) -> _sim.Costs:
        """Convert to ticks for the simulator; slopes stay fractions: they are multiplied before rounding."""
        self.check()
        rows = len(self.first_slice)
        costs = _sim.Costs(rows - 1)

        def by_rows(seconds: Float64 | float) -> Ticks:
            return np.ascontiguousarray(np.broadcast_to(ticks(seconds), rows))

        costs.first_slice = by_rows(self.first_slice)
        costs.mid_slice = by_rows(self.mid_slice)
        costs.last_slice = by_rows(self.last_slice)
        costs.q_lead = by_rows(self.q_lead)
        costs.q_transfer = by_rows(self.q_transfer)
        costs.kv_transfer = by_rows(self.kv_transfer)
        costs.out_transfer = by_rows(self.out_transfer)
        costs.migration = by_rows(self.migration)
        costs.attention_rows = by_rows(self.attention_rows)
        costs.combine = by_rows(self.combine)
        costs.attention_fixed = ticks(self.attention_fixed)
        costs.attention_per_token = slopes(self.attention_per_token)
        costs.stream_chunks = self.stream_chunks
        costs.stream_by_request = self.stream_by_request
        costs.chunk_overhead = int(ticks(self.chunk_overhead))
        costs.transfer_latency = int(ticks(self.transfer_latency))
        costs.device_tokens = self.device_tokens
        costs.paged_per_token = self.paged_per_token * TICKS_PER_S
        costs.serving = serving_costs(self)
        if prompts := self.prompts:
            costs.prompts.head = ticks(prompts.head)
            costs.prompts.fixed = int(ticks(prompts.fixed))
            costs.prompts.per_row = prompts.per_row * TICKS_PER_S
            costs.prompts.per_pair = prompts.per_pair * TICKS_PER_S
            costs.prompts.per_token = prompts.per_token * TICKS_PER_S
        if self.window is not None:
            costs.windows.tokens = self.window
            windowed = np.broadcast_to(self.windowed_per_token, len(self.attention_per_token))
            costs.windows.per_token = slopes(windowed)
            costs.windows.per_pair = prompts.windowed_per_pair * TICKS_PER_S if prompts else 0.0
        if self.measured:
            costs.measured = measured_ticks(self.measured)
        return costs

    def check(self) -> None:
        """Raise a UserError if a time is no time: a coefficient somewhere is wrong."""
        times = {each.name: getattr(self, each.name) for each in fields(self)}
        del times["device_tokens"], times["window"], times["measured"], times["server"]
        if prompts := times.pop("prompts"):
            times |= {f"prompts' {each.name}": getattr(prompts, each.name) for each in fields(prompts)}
        for name, time in times.items():
            values = np.asarray(time, np.float64)
            if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= LONGEST_S):
                worst = values.flat[int(np.argmax(~((values >= 0) & (values <= LONGEST_S))))]
                raise UserError(
                    "costs-impossible-time",
                    f"the costs give {worst:g} s for {name.replace('_', ' ')}; "
                    "check the cost set's coefficients and the network",
                )


class ComputedTiming(ABC):
    """Times that depend on the hardware's state, which the simulator computes in every iteration."""

    __slots__ = ()

    @abstractmethod
    def native(self) -> _sim.BoardCosts:
        """Convert to what the simulator takes."""

    @abstractmethod
    def least(self, most: int, copies: int) -> tuple[Float64, float] | None:
        """Return lower bounds of an iteration of `copies` deployments in step, or None if there are none.

        Seconds by the requests of all of them, from 1 to `most`, and seconds a KV token.
        """

    @abstractmethod
    def improved(self, factor: float) -> Iterator[tuple[str, Self, int]]:
        """Yield resources, the timing with that much more of each, and the KV tokens that it then holds."""

    @abstractmethod
    def faster_host(self, factor: float) -> Self:
        """Return the timing with a host that is that many times faster."""


@dataclass(frozen=True, slots=True)
class PromptPool:
    """Devices that compute prompts for a deployment, and how KV comes from there; seconds."""

    engine: Spec  # one of them; `copies` is how many there are
    latency: float
    per_token: float
    # By attention workers in their free time, layer by layer; or pushed when a prompt is whole.
    pulled: bool
    window: int = 0  # tokens that some layers keep at most, and what each of these takes more
    windowed_per_token: float = 0.0

    def native(self) -> _sim.DeploymentPool:
        """Convert to what the simulator takes."""
        pool = _sim.DeploymentPool()
        pool.engine = self.engine.native()
        pool.link.latency = int(ticks(self.latency))
        pool.link.per_token = self.per_token * TICKS_PER_S
        pool.link.window = self.window
        pool.link.windowed_per_token = self.windowed_per_token * TICKS_PER_S
        pool.pulled = self.pulled
        return pool


@dataclass(frozen=True, slots=True)
class Spec:
    """A modelled deployment, ready to be replayed against."""

    layers: int
    timing: Timing | ComputedTiming
    tokens_per_pool: int
    max_requests: int
    pools: int = 1
    block_tokens: int = 1
    # KV charged for each admitted request on top of its tokens: the windows of layers that have one.
    request_tokens: int = 0
    batches: int = 1
    min_batch: int = 1  # sequences that each batch should have: with fewer in all, fewer take turns
    pipelining: Pipelining = "serial"
    admission: Admission = "reserve"
    prefix_sharing: bool = False
    # Most tokens that a batch computes in an iteration, prompts' included; 0 where no prompts are computed.
    prompt_budget: int = 0
    # What the lanes of a timeline and the utilisation table call the workers.
    replica_names: tuple[str, ...] = field(default=("model workers",))
    attention_name: str = "attention workers"
    # Attention runs on the model workers' own devices: one pool of devices, not two.
    shared_devices: bool = False
    # With fixed pipelining each replica does the attention of its batch; one for all does it without.
    own_attention: bool = False
    # Where prompts are computed elsewhere.
    pool: PromptPool | None = None
    # So many of this deployment side by side.
    copies: int = 1

    @property
    def prompts(self) -> bool:
        """Whether prompts are computed."""
        return self.prompt_budget > 0 or self.pool is not None

    def native(self) -> _sim.Deployment:
        """Convert to what the simulator takes."""
        deployment = _sim.Deployment(self.pipelining, self.admission)
        limits = deployment.limits
        limits.batches = self.batches
        limits.pools = self.pools
        limits.tokens_per_pool = self.tokens_per_pool
        limits.block_tokens = self.block_tokens
        limits.max_requests = self.max_requests
        limits.request_tokens = self.request_tokens
        limits.min_batch = self.min_batch
        deployment.layers = self.layers
        deployment.own_attention = self.own_attention
        deployment.prefix_sharing = self.prefix_sharing
        deployment.prompt_budget = self.prompt_budget
        deployment.copies = self.copies
        if isinstance(self.timing, Timing):
            deployment.costs = self.timing.native()
        else:
            deployment.board = self.timing.native()
        if self.pool:
            deployment.pool = self.pool.native()
        return deployment


@dataclass(frozen=True, slots=True)
class Fleet:
    """Deployments behind a router, or a single one."""

    specs: tuple[Spec, ...]  # each as often as it has copies
    router: str | Callable[..., int] = "round-robin"
    global_queue: bool = False  # requests wait in front, until an instance has room
    # Keep a row of each; else only sums, for replays of billions.
    keep_iterations: bool = True

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches of each instance, numbered one instance after the other."""
        return tuple(spec.batches for spec in self.specs for _ in range(spec.copies))


Priority = Callable[[int], int]


class Offered(msgspec.Struct, frozen=True):
    """The way that the trace's requests arrive: docs/traces.md has the three modes."""

    mode: Mode = "saturate"
    concurrency: int = 0
    # Smaller goes first; called once when a request enters the queue. None is first come, first served.
    priority: Priority | None = None
