"""An engine whose clock is made up, and what a client saw of a server that never was.

The engine keeps lamina's schedule, and its records are of the real kind.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs, to_toml
from laminabench.catalog.deployment import DeploymentFacts
from laminabench.runs.manifest import Manifest, manifest
from laminabench.runs.schema import ITERATIONS, STINTS, Column
from laminabench.runs.status import DONE
from laminabench.runs.summary import (
    Attainment,
    Cost,
    EngineSummary,
    Percentiles,
    Requests,
    TimeShares,
    Window,
)
from laminabench.sim.outcome import Outcome
from laminabench.traces.table import Trace

if TYPE_CHECKING:
    from lamina.pipeline import Records

SLICES = 3
BOARD_BYTES = 96_000_000_000
# Until a worker that was struck is noticed, and until the iteration goes on.
NOTICED_NS, RECOVERED_NS = {"kill": 200_000_000, "stop": 1_000_000_000}, 300_000_000
# Milliseconds of one piece of work; the clock starts at no special moment.
SLICE_NS, ATTENTION_NS, BEGAN_NS = 1_000_000, 2_000_000, 7_000_000_000


@dataclass
class MadeUpEngine:
    """One model worker, one attention worker, serial; reserve admission, first come or by a key."""

    capacity: int = 10_000
    most: int = 4
    now_ns: int = BEGAN_NS
    slept: list[float] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    priority: Callable[[], int] = lambda: 0
    _waiting: list[tuple[int, int]] = field(default_factory=list)
    _left: dict[int, int] = field(default_factory=dict)
    _charge: dict[int, int] = field(default_factory=dict)
    _running: list[int] = field(default_factory=list)
    _iteration: int = 0
    workers: list[str] = field(default_factory=lambda: ["model 0", "attention 0"])
    faults: list[Any] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)  # tokens that requests came with, by number
    _prompts: dict[int, int] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)
    _struck: dict[str, str] = field(default_factory=dict)
    peak_kv_tokens: int = 0
    warm_up_iterations: int = 0

    def __post_init__(self) -> None:
        # lamina.pipeline brings torch along, which tests of the modelled systems do without.
        from lamina.pipeline import Recorder, Schedule

        self.schedule = Schedule("serial", 1, SLICES)
        self._workers = [Recorder(), Recorder()]

    def now(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9) + 1

    @property
    def kv_tokens(self) -> int:
        return self.capacity

    @property
    def core(self) -> Any:
        return SimpleNamespace(network="none", network_why="")

    def submit(self, prompt: int | list[int], requested: Any, made: Sequence[int] = ()) -> int:
        from lamina.serve import RequestError

        output: int = requested.max_tokens
        length = prompt if isinstance(prompt, int) else len(prompt)
        if length + output > self.capacity:
            raise RequestError("request-exceeds-kv", f"{length + output} tokens never fit")
        number = len(self._left)
        self._prompts[number] = sum(
            i * token for i, token in enumerate([length] if isinstance(prompt, int) else prompt)
        )
        self._left[number], self._charge[number] = output - len(made), length + output
        self._lengths[number] = output
        self.given[number] = len(made)
        assert isinstance(prompt, int) or list(made) == self._tokens(number)
        heapq.heappush(self._waiting, (self.priority(), number))
        return number

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def inject_fault(self, name: str, how: str = "kill") -> None:
        assert name in self.workers
        assert name not in self._struck, "who is dead cannot be killed"
        self._struck[name] = how

    def _recover(self) -> None:
        """A new worker knows nothing of what its predecessor did."""
        from lamina.pipeline import Recorder

        if not self._struck:
            return
        noticed_ns = self.now_ns + max(NOTICED_NS[how] for how in self._struck.values())
        self.now_ns = noticed_ns + RECOVERED_NS
        for name in self._struck:
            self._workers[self.workers.index(name)] = Recorder()
        self.faults.append(
            SimpleNamespace(
                workers=tuple(self._struck), why="it was struck", noticed_s=noticed_ns / 1e9,
                resumed_s=self.now(), requests=len(self._running), kv_tokens=10 * len(self._running),
            )
        )  # fmt: skip
        self._struck.clear()

    def _tokens(self, number: int) -> list[int]:
        made = self._lengths[number] - self._left[number]
        return [(self._prompts[number] + 7 * place) % 1000 for place in range(made)]

    def made(self, number: int, since: int = 0) -> tuple[int, ...]:
        return tuple(self._tokens(number)[since:])

    def step(self) -> Any:
        started, joined = self.now(), []
        while self._waiting and len(self._running) < self.most:
            number = self._waiting[0][1]
            if sum(self._charge[one] for one in (*self._running, number)) > self.capacity:
                break
            heapq.heappop(self._waiting)
            self._running.append(number)
            charged = sum(self._charge[one] for one in self._running)
            self.peak_kv_tokens = max(self.peak_kv_tokens, charged)
            joined.append(number)
        self._recover()
        size = len(self._running)
        for place in range(SLICES):
            self._work(0, place, SLICE_NS)
            if place < SLICES - 1:
                self._work(1, place, ATTENTION_NS)
        for number in self._running:
            self._left[number] -= 1
        ended = [number for number in self._running if not self._left[number]]
        self._running = [number for number in self._running if self._left[number]]
        self._iteration += 1
        return SimpleNamespace(
            batch=0, iteration=self._iteration - 1, size=size, kv_tokens=size, started_s=started,
            ended_s=self.now(), joined=joined, preempted=[], moved=[], ended=ended, model_s=0.0,
            attention_s=0.0, host_s=0.0005,
        )  # fmt: skip

    def _work(self, worker: int, place: int, took_ns: int) -> None:
        began = self.now_ns
        self.now_ns += took_ns
        self._workers[worker].note(0, self._iteration, self._iteration, place, began, self.now_ns)

    def result(self, number: int) -> Any:
        self.requested.append(number)
        return SimpleNamespace(completions=[SimpleNamespace(tokens=tuple(self._tokens(number)))], error=None)

    def records(self) -> Records:
        from lamina.pipeline.records import gather

        names = ("model 0", "attention 0")
        return gather(names, (0, -1), [list(worker.messages()) for worker in self._workers])


@pytest.fixture
def made_up_engine() -> type[MadeUpEngine]:
    return MadeUpEngine


@dataclass
class Stream:
    """One request as a client saw it: when it was due and sent, and its chunks as (at_s, tokens)."""

    due_s: float = 0.0
    sent_s: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    status: int = DONE
    attempts: int = 1
    status_code: int = 200
    prompt_counted: int = -1
    completion_counted: int = -1
    even: bool = False
    error: str = ""


def client_outcome(streams: Sequence[Stream], end_s: float | None = None) -> Outcome:
    """Their tables, as a replay against an endpoint makes them."""
    count = len(streams)
    pieces = sorted(
        ((at_s, row, tokens) for row, each in enumerate(streams) for at_s, tokens in each.chunks),
        key=lambda piece: piece[0],
    )
    nan, none = np.full(count, np.nan), np.full(count, -1)
    ends = [each.chunks[-1][0] if each.chunks else math.nan for each in streams]
    finished = [end if each.status == DONE else math.nan for end, each in zip(ends, streams, strict=True)]
    due_s = np.array([each.due_s for each in streams], np.float64)
    moments = [*(at_s for at_s, _, _ in pieces), *due_s.tolist()]
    last_s = max(moments, default=0.0) if end_s is None else end_s
    calls = {
        name: np.array([getattr(each, name) for each in streams], kind)
        for name, kind in (
            *(("due_s", np.float64), ("sent_s", np.float64), ("attempts", np.int32)),
            *(("status_code", np.int32), ("prompt_counted", np.int64), ("completion_counted", np.int64)),
            *(("even", np.bool_), ("error", object)),
        )
    }
    return Outcome(
        requests={
            "arrival_s": due_s,
            "admitted_s": nan,
            "first_token_s": np.array([each.chunks[0][0] if each.chunks else math.nan for each in streams]),
            "finished_s": np.array(finished, np.float64),
            **dict.fromkeys(("first_iteration", "last_iteration"), none.astype(np.int64)),
            "batch": none.astype(np.int32),
            "preemptions": np.zeros(count, np.int32),
            "status": np.array([each.status for each in streams], np.int8),
        },
        iterations=_no_rows(ITERATIONS),
        stints=_no_rows(STINTS),
        timeline={},
        replica_busy_s=np.array([math.nan]),
        attention_busy_s=math.nan,
        end_s=last_s,
        queue_empty_s=max(calls["sent_s"].tolist(), default=0.0),
        peak_kv_tokens=0,
        kv_capacity_tokens=0,
        chunks={
            "request": np.array([row for _, row, _ in pieces], np.int64),
            "at_s": np.array([at_s for at_s, _, _ in pieces], np.float64),
            "tokens": np.array([tokens for _, _, tokens in pieces], np.int32),
        },
        calls={**calls, "headers_s": calls["sent_s"] + 1e-3},
    )


def _no_rows(columns: Sequence[Column]) -> dict[str, Any]:
    return {column.name: np.zeros(0, column.type.to_pandas_dtype()) for column in columns}


@pytest.fixture(scope="session")
def stream() -> type[Stream]:
    return Stream


@pytest.fixture(scope="session")
def observed() -> Callable[..., Outcome]:
    """Of streams, the Outcome of a replay that only a client saw."""
    return client_outcome


def with_memory(outcome: Outcome, seed: int = 1) -> Outcome:
    """This outcome as if boards had made it: each iteration with memories that hold made-up bytes."""
    rng, rows = np.random.default_rng(seed), len(outcome.iterations["start_s"])
    memory: dict[str, Any] = {}
    for name in ("qkv_heads", "attention_groups", "fc_heads"):
        memory[name] = rng.integers(0, 3, rows, np.int32)
    parts = np.sort(rng.integers(0, BOARD_BYTES, (rows, 3)), axis=1)
    pieces = np.diff(parts, axis=1, prepend=0, append=BOARD_BYTES)
    for column, name in enumerate(("hbm_qkv_bytes", "hbm_kv_bytes", "hbm_fc_bytes", "hbm_free_bytes")):
        memory[name] = pieces[:, column]
    for name in ("lpddr_bytes", "wasted_bytes", "moved_bytes", "compacted_bytes"):
        memory[name] = rng.integers(0, BOARD_BYTES, rows)
    for name in ("moving_s", "hidden_s", "hbm_busy_s", "lpddr_busy_s"):
        memory[name] = rng.uniform(0, 1e-3, rows)
    return replace(outcome, memory=memory)


@pytest.fixture(scope="session")
def on_boards() -> Callable[..., Outcome]:
    """An Outcome with a made-up table `memory`, of another system's iterations."""
    return with_memory


@pytest.fixture(scope="session")
def manifest_of() -> Callable[..., Manifest]:
    """A manifest that says all that a Run must say, changed as named."""
    points = Percentiles(mean=None, p50=None, p90=None, p99=None, max=None)
    slo = Attainment(tbt_ms=100.0, token_attainment=None, request_attainment=None, goodput_tokens_per_s=None)
    nothing = EngineSummary(
        throughput_tokens_per_s=None,
        mean_batch=0.0,
        mean_batches=[],
        tbt_ms=points,
        slo=slo,
        cost=Cost(usd_per_hour=None, usd_per_million_tokens=None),
        requests=Requests(completed=0),
        window=Window(start_s=0.0, end_s=1.0, kind="whole_run"),
        time_shares=TimeShares(),
    )

    def made(trace: Trace, **changes: Any) -> Manifest:
        known = {
            "command": ["laminabench", "replay"],
            "seed": 7,
            "transforms": {},
            "workload": {"mode": "saturate", "concurrency": None, "policy": "fifo", "slo_tbt_ms": 100.0},
            "system": "lamina",
            "deployment": DeploymentFacts(name="2xh100+4xh20", usd_per_hour=None),
            "model": {"name": "llama3-70b"},
            "backend": "modelled",
            "coefficients": [],
            "wall_s": 0.5,
            "summary": nothing,
        }
        return manifest(trace=trace, **(known | changes))

    return made


# A core without measurements, faster than any.
HERE = """
[device.here]
title = "made up"
tflops = { bf16 = 0.3 }
memory_gb = 12
bandwidth_gb_per_s = 30
interchip_gb_per_s = 30
nic_gbit_per_s = 200
source = "made up"
"""


@pytest.fixture
def core_costs(tmp_path: Path) -> str:
    """A cost set with that core."""
    target = tmp_path / "here.toml"
    target.write_text(to_toml(load_costs("roofline")) + HERE)
    return str(target)


@pytest.fixture(scope="session")
def tiny() -> Callable[[], Any]:
    """In place of `mini_config`."""
    transformers = pytest.importorskip("transformers")
    return lambda: transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=100,
        max_position_embeddings=1 << 16,
        bos_token_id=None,
        eos_token_id=None,
    )
