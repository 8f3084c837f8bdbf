"""A deployment as the simulator needs it: how many of what, and tables of how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from laminabench.catalog.boards import Board
    from laminabench.catalog.measured import MeasuredAttention
    from laminabench.catalog.models import ModelShape

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
    whole = np.floor(np.asarray(seconds, np.float64) * TICKS_PER_S + 0.5)
    if whole.size and not (whole.min() >= -(2.0**63) and whole.max() < 2.0**63):  # NaN is neither
        wrong = np.ravel(seconds)[int(np.argmin(np.ravel(np.abs(whole) < 2.0**63)))]
        raise UserError(
            "time-not-countable", f"{wrong:g} s is no time: it is not a number, or is more than 29 years"
        )
    return whole.astype(np.int64)


@dataclass(frozen=True, slots=True)
class PromptTiming:
    """Seconds of what prompts add, as docs/simulator.md names them; `head` by requests that get a token."""

    head: Float64
    fixed: float
    per_row: float
    per_pair: float
    per_token: float
    windowed_per_pair: float = 0.0

    def tables(self) -> dict[str, object]:
        """As the native module takes it."""
        slopes = {name: getattr(self, name) * TICKS_PER_S for name in ("per_row", "per_pair", "per_token")}
        return {"head": ticks(self.head), "fixed": int(ticks(self.fixed)), **slopes}


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
    # Of the attention workers, in a layer, beside attention and before it.
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
    recompute_per_token: float = 0.0
    prompts: PromptTiming | None = None
    # Layers whose tokens look at no more than so many: what they add to all layers' average, as the others'.
    window: int | None = None
    windowed_per_token: Float64 | float = 0.0
    # In place of attention of KV tokens, windows' too, and of prompts' attention.
    measured: MeasuredAttention | None = None

    def tables(self) -> dict[str, object]:
        """As the native module takes it: ticks."""
        self.check()
        rows = len(self.first_slice)
        tables: dict[str, object] = {
            name: np.ascontiguousarray(np.broadcast_to(ticks(getattr(self, name)), rows))
            for name in (
                "first_slice",
                "mid_slice",
                "last_slice",
                "q_lead",
                "q_transfer",
                "kv_transfer",
                "out_transfer",
                "migration",
                "attention_rows",
            )
        }
        for name in ("combine", "transfer_latency", "chunk_overhead", "host_fixed"):
            tables[name] = int(ticks(getattr(self, name)))
        tables["attention_fixed"] = ticks(self.attention_fixed)
        # Slopes stay fractions of a tick: they are multiplied before they are rounded.
        tables["attention_per_token"] = np.ascontiguousarray(self.attention_per_token * TICKS_PER_S)
        for name in ("paged_per_token", "host_per_request", "recompute_per_token"):
            tables[name] = float(getattr(self, name)) * TICKS_PER_S
        for name in ("stream_chunks", "stream_by_request", "device_tokens", "host_async"):
            tables[name] = getattr(self, name)
        if self.prompts:
            tables["prompts"] = self.prompts.tables()
        if self.window is not None:
            per_token = np.broadcast_to(self.windowed_per_token, len(self.attention_per_token))
            tables["windowed"] = {
                "window": self.window,
                "per_token": per_token * TICKS_PER_S,
                "per_pair": self.prompts.windowed_per_pair * TICKS_PER_S if self.prompts else 0.0,
            }
        if self.measured:
            tables["measured"] = self.measured.native(TICKS_PER_S)
        return tables

    def check(self) -> None:
        """A UserError if a time is no time: a coefficient somewhere is wrong."""
        times = {each.name: getattr(self, each.name) for each in fields(self)}
        del times["device_tokens"], times["window"], times["measured"]
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


ELEMENT_BYTES = 1  # INT8, weights and KV, whatever number format a model is published in

# In the order of csrc/sim/h2m2/policy.hpp.
POLICIES = (
    *("greedy", "oracle", "flexgen", "naive", "q-major", "a-major", "f-major"),
    *("lpddr", "hierarchical", "8-hbm"),
)


def shape_of(model: ModelShape, *, lm_head: bool = False) -> dict[str, int]:
    """The model as the C++ side takes it: INT8 whatever its own number format, without embedding."""
    model.require_plain("h2m2")
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate": model.intermediate,
        "ff_matrices": 3 if model.gated_mlp else 2,
        "vocab": model.vocab if lm_head else 0,
        "element_bytes": ELEMENT_BYTES,
    }


@dataclass(frozen=True, slots=True)
class BoardTiming:
    """Which board serves which model by which policy; host and recomputing in seconds, as in `Timing`."""

    board: Board
    model: ModelShape
    mapping: str
    # TLB misses are added to the times of policies that map.
    translated: bool = True
    # The paper leaves the LM head out.
    lm_head: bool = True
    # flexgen's: of weights and of KV, what is on the HBM side.
    shares: tuple[float, float] = (0.0, 0.0)
    # What moves between the sides passes behind the last iteration, as far as LPDDR has time there.
    overlap_moves: bool = False
    host_fixed: float = 0.0
    host_per_request: float = 0.0
    host_async: bool = False
    recompute_per_token: float = 0.0

    def tables(self) -> dict[str, object]:
        """As the native module takes it."""
        self.check()
        return {
            "board": self.board.native(),
            "shape": shape_of(self.model, lm_head=self.lm_head),
            "policy": self.mapping,
            "translated": self.translated,
            "shares": self.shares,
            "overlap_moves": self.overlap_moves,
            "host_fixed": int(ticks(self.host_fixed)),
            "host_per_request": self.host_per_request * TICKS_PER_S,
            "host_async": self.host_async,
            "recompute_per_token": self.recompute_per_token * TICKS_PER_S,
        }

    def kv_room(self) -> tuple[int, int]:
        """KV tokens that always fit beside the weights, 0 if those do not; and how many come at once."""
        from laminabench import _sim

        return _sim.board_kv(self.tables())

    def check(self) -> None:
        """A UserError if a time is no time: a coefficient somewhere is wrong."""
        for name in ("host_fixed", "host_per_request", "recompute_per_token"):
            seconds = getattr(self, name)
            if not 0 <= seconds <= LONGEST_S:
                raise UserError(
                    "costs-impossible-time",
                    f"the costs give {seconds:g} s for {name.replace('_', ' ')}; "
                    "check the cost set's coefficients and the board",
                )


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

    def tables(self) -> dict[str, object]:
        """As the native module takes it."""
        link = {
            "latency": int(ticks(self.latency)),
            "per_token": self.per_token * TICKS_PER_S,
            "window": self.window,
            "windowed_per_token": self.windowed_per_token * TICKS_PER_S,
        }
        return {**self.engine.tables(), **link, "pulled": self.pulled}


@dataclass(frozen=True, slots=True)
class Spec:
    """One modelled deployment, ready to be replayed against."""

    layers: int
    timing: Timing | BoardTiming
    tokens_per_pool: int
    max_requests: int
    pools: int = 1
    block_tokens: int = 1
    # Of KV, for each request that is admitted, beside its own tokens: what layers keep that look at a window.
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
    def on_board(self) -> bool:
        """Whether its times are a board's, not a cost set's."""
        return isinstance(self.timing, BoardTiming)

    @property
    def prompts(self) -> bool:
        """Whether they are computed."""
        return self.prompt_budget > 0 or self.pool is not None

    def tables(self) -> dict[str, object]:
        """As the native module takes it."""
        names = (
            *("layers", "tokens_per_pool", "max_requests", "pools", "block_tokens", "request_tokens"),
            *("batches", "pipelining", "own_attention", "admission", "prefix_sharing", "prompt_budget"),
            *("min_batch", "copies"),
        )
        tables = {name: getattr(self, name) for name in names} | {"costs": self.timing.tables()}
        return tables | ({"pool": self.pool.tables()} if self.pool else {})


@dataclass(frozen=True, slots=True)
class Fleet:
    """Deployments behind a router. One of them alone is one too."""

    specs: tuple[Spec, ...]  # each as often as it has copies
    router: str | Callable[..., int] = "round-robin"
    global_queue: bool = False  # requests wait in front, until an instance has room
    # A row of each; else only what they come to, for replays of billions.
    keep_iterations: bool = True

    @property
    def batches(self) -> tuple[int, ...]:
        """How many batches each instance has; they are numbered one instance after the other."""
        return tuple(spec.batches for spec in self.specs for _ in range(spec.copies))


Priority = Callable[[int], int]


class Offered(msgspec.Struct, frozen=True):
    """How the trace's requests come: docs/traces.md has the three modes."""

    mode: Mode = "saturate"
    concurrency: int = 0
    # Smaller goes first; called once when a request enters the queue. None is first come, first served.
    priority: Priority | None = None
