"""The summary of a replay, typed: what `--json` prints and a Run stores; docs/metrics.md defines it.

An attribute is the key of the same name (`tbt_ms.p99_9` is the key `tbt_ms.p99.9`). None is null: unknown.
UNSET is a missing key, of another kind of replay. Defaults are for Runs that were written before the key
existed.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from laminabench.sim.spec import ticks

Number = float | int | None
WindowKind = Literal["queue_never_empty", "concurrency_held", "arrivals", "whole_run"]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a summary: immutable, with fields by name."""


class Percentiles(Facts, frozen=True, kw_only=True):
    """A distribution of times, in the unit that its key names."""

    mean: Number
    p50: Number
    p90: Number
    p99: Number
    p99_9: Number = msgspec.field(name="p99.9", default=None)
    max: Number


class Attainment(Facts, frozen=True, kw_only=True):
    """Attainment of the latency limits."""

    tbt_ms: float
    token_attainment: Number
    request_attainment: Number
    goodput_tokens_per_s: Number
    # With a limit on the time to the first token too.
    ttft_ms: float | UnsetType = UNSET
    ttft_attainment: Number | UnsetType = UNSET
    joint_attainment: Number | UnsetType = UNSET
    goodput_requests_per_s: Number | UnsetType = UNSET


class Rates(Facts, frozen=True, kw_only=True):
    """The main numbers of a window."""

    throughput_tokens_per_s: Number
    mean_batch: float
    mean_batches: list[float]
    tbt_ms: Percentiles
    slo: Attainment


class Cost(Facts, frozen=True, kw_only=True):
    """The cost of tokens; None where a device has no price."""

    usd_per_hour: Number
    usd_per_million_tokens: Number
    tokens_per_usd: Number = None


class Energy(Facts, frozen=True, kw_only=True):
    """An upper bound on the energy of tokens; None where a device has no rating."""

    rated_w: Number = None
    joules_per_token: Number = None
    bound: str | None = None


class Requests(Facts, frozen=True, kw_only=True):
    """Requests by how they ended."""

    completed: int
    rejected: int = 0
    unfinished: int = 0
    failed: int = 0


class Window(Facts, frozen=True, kw_only=True):
    """A window of time, after start_s and up to and including end_s."""

    start_s: float
    end_s: float
    kind: WindowKind

    @property
    def start(self) -> int:
        """The beginning in ticks."""
        return int(ticks(self.start_s))

    @property
    def end(self) -> int:
        """The end in ticks."""
        return int(ticks(self.end_s))

    @property
    def ticks(self) -> int:
        """The length in ticks."""
        return self.end - self.start

    @property
    def fell_back(self) -> bool:
        """Whether this is the full run because there is no steady window."""
        return self.kind == "whole_run"


class TimeShares(Facts, frozen=True, kw_only=True):
    """Shares of a token's time."""

    model: Number = None
    attention: Number = None
    network: Number = None
    host: Number = None
    waiting: Number = None
    overlapped: Number = None


class WorkerShares(Facts, frozen=True, kw_only=True):
    """Shares of each worker over the full run; `devices` where model and attention share them."""

    devices: list[Number] | UnsetType = UNSET
    replicas: list[Number] | UnsetType = UNSET
    attention: Number | UnsetType = UNSET


class PoolShares(Facts, frozen=True, kw_only=True):
    """Shares of pools of workers in the window, and of each worker."""

    devices: Number | UnsetType = UNSET
    model: Number | UnsetType = UNSET
    attention: Number | UnsetType = UNSET
    whole_run: WorkerShares = WorkerShares()

    def pools(self) -> dict[str, float | None]:
        """Return the pools that this system has, by name."""
        named = {"devices": self.devices, "model": self.model, "attention": self.attention}
        return {name: share for name, share in named.items() if share is not UNSET}


class PerInstance(Facts, frozen=True, kw_only=True):
    """Numbers of the instances behind a router, in their order."""

    requests: list[int]  # that were sent there, over the whole run
    throughput_tokens_per_s: list[Number]
    mean_batch: list[float]
    imbalance: Number  # the largest mean batch over their mean


class PromptPool(Facts, frozen=True, kw_only=True):
    """Numbers of the devices that compute prompts for others."""

    engines: int
    prompt_tokens_per_s: Number
    busy_share: Number


class Kv(Facts, frozen=True, kw_only=True):
    """Use of KV memory; None where only a client saw the replay."""

    capacity_tokens: int | None = None
    peak_tokens: int | None = None
    peak_share: Number = None


class MeanAndMax(Facts, frozen=True, kw_only=True):
    mean: Number
    max: Number


class HbmBytes(Facts, frozen=True, kw_only=True):
    """HBM bytes by content."""

    kv: MeanAndMax
    qkv: MeanAndMax
    fc: MeanAndMax


class Amounts(Facts, frozen=True, kw_only=True):
    """Bytes in total, and the mean and maximum of an iteration."""

    total: int
    per_iteration: Number
    max: int | None


class Memory(Facts, frozen=True, kw_only=True):
    """Numbers of boards with two memories."""

    hbm_capacity_bytes: int | None
    hbm_share: MeanAndMax
    hbm_bytes: HbmBytes
    lpddr_bytes: MeanAndMax
    wasted_bytes: MeanAndMax
    mapping_changes: int
    changes_per_iteration: Number
    moved_bytes: Amounts
    compacted_bytes: Amounts
    moving_s: float
    moving_share: Number
    hideable_share: Number
    hbm_busy_share: Number
    lpddr_busy_share: Number


class Lateness(Facts, frozen=True, kw_only=True):
    """The delay of the client itself in sending requests."""

    p50: Number
    p99: Number
    max: Number


class TokensPerChunk(Facts, frozen=True, kw_only=True):
    mean: Number
    max: int | None
    even_share: Number


class Attempts(Facts, frozen=True, kw_only=True):
    """A client's attempts to have its requests served."""

    sent: int
    retried: int
    failed: int
    by_error: dict[str, int] = {}
    by_status: dict[str, int] = {}


class Count(Facts, frozen=True, kw_only=True):
    """Tokens by a server's own count, compared with the requested number."""

    requests: int
    asked: int
    said: int
    other: int


class Counted(Facts, frozen=True, kw_only=True):
    prompt_tokens: Count
    completion_tokens: Count
    other_length: int


class Schedule(Facts, frozen=True, kw_only=True):
    """The order of work that the workers of a live replay recorded."""

    pieces: int
    violations: list[str]
    bubbles: dict[str, float | None]


class InjectedFault(Facts, frozen=True, kw_only=True):
    """A worker that the replay itself killed or stopped."""

    worker: str
    how: str
    at_s: float


class FaultCost(Facts, frozen=True, kw_only=True):
    """A fault of a live replay and its cost; None where unknown."""

    workers: list[str]
    why: str
    struck: list[InjectedFault]
    noticed_s: float
    detection_s: Number
    recovery_s: float
    normal_again_s: Number
    tbt_before_ms: Number = None
    tbt_worst_ms: Number
    goodput_lost_tokens: Number
    requests: int = 0
    kv_tokens: int = 0

    @property
    def began_s(self) -> float:
        """The time at which a worker was struck or, if none was, the fault was noticed."""
        return min((struck.at_s for struck in self.struck), default=self.noticed_s)


class FaultsInAll(Facts, frozen=True, kw_only=True):
    """The worst and the sum of all faults."""

    faults: int
    strikes: int
    strikes_planned: int
    detection_s: Number
    recovery_s: Number
    normal_again_s: Number
    tbt_worst_ms: Number
    goodput_lost_tokens: float
    kv_tokens: int


class Resumed(Facts, frozen=True, kw_only=True):
    """The times at which an interrupted replay was resumed, by its own clock."""

    times: int
    at_s: list[float] = []


class Summary(Rates, frozen=True, kw_only=True):
    """The numbers of every replay: of the steady window, and the main ones of the full run."""

    cost: Cost
    energy: Energy = Energy()
    requests: Requests
    tokens_generated: int = 0
    duration_s: float = 0.0
    window: Window
    whole_run: Rates | None = None
    time_shares: TimeShares
    utilisation: PoolShares = PoolShares()
    bubbles: PoolShares = PoolShares()
    queueing_s: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    preemptions: int | None = None
    kv: Kv = Kv()
    # Only for a replay that computes prompts, or that only a client saw.
    ttft_ms: Percentiles | UnsetType = UNSET
    e2e_ms: Percentiles | UnsetType = UNSET

    @property
    def fault_costs(self) -> list[FaultCost]:
        """The faults that the replay recovered from."""
        return []

    @property
    def resumed_s(self) -> list[float]:
        """The times at which it was resumed after an interruption."""
        return []


class EngineSummary(Summary, frozen=True, kw_only=True):
    """The summary of a replay whose scheduler and iterations are known."""

    # Only for boards with two memories.
    memory: Memory | UnsetType = UNSET
    # Only for several instances, and for devices that compute prompts.
    instances: PerInstance | UnsetType = UNSET
    prompt_pool: PromptPool | UnsetType = UNSET
    # Only for a replay on the reference engine.
    schedule: Schedule | UnsetType = UNSET
    faults: list[FaultCost] | UnsetType = UNSET
    faults_in_all: FaultsInAll | UnsetType = UNSET
    resumed: Resumed | UnsetType = UNSET
    tokens_sha256: str | UnsetType | None = UNSET

    @property
    def fault_costs(self) -> list[FaultCost]:
        return self.faults or []

    @property
    def resumed_s(self) -> list[float]:
        return self.resumed.at_s if self.resumed else []


class ClientSummary(Summary, frozen=True, kw_only=True):
    """The summary of a replay that only a client saw."""

    itl_ms: Percentiles | UnsetType = UNSET
    tokens_per_chunk: TokensPerChunk | UnsetType = UNSET
    mean_waiting: float | UnsetType = UNSET
    lateness_ms: Lateness | None = None
    attempts: Attempts
    counted: Counted | UnsetType = UNSET


def number_at(facts: object, key: str) -> float | None:
    """Return the number at a dotted key, such as `tbt_ms.p99.9`; None if this replay has none."""
    for name in key.replace("p99.9", "p99_9").split("."):
        facts = getattr(facts, name, None)
    return facts if isinstance(facts, float | int) else None
