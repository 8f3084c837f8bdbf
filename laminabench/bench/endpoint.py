"""Benchmark of the client of `replay --system openai`, against a server that costs almost nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, cast

import numpy as np

from laminabench.bench.frame import QUIET, Report, Row, Watcher, all_met, judged
from laminabench.systems.live.endpoint.client import Part
from laminabench.systems.live.endpoint.processes import ClientResult, run_here, run_in_processes, shards
from laminabench.systems.live.endpoint.prompts import Prompts
from laminabench.systems.live.endpoint.request import Accepted
from laminabench.systems.live.endpoint.setup import Behind, EndpointSetup, Served, parse_url
from laminabench.systems.live.recent import Recent
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.child_environment import child_environment
from laminabench.util.errors import UserError

TARGET_REQUESTS_PER_S, TARGET_TOKENS_PER_S, TARGET_LATENESS_MS = 2000.0, 100_000.0, 5.0
# Rates may be this much below their target: a second is not a whole number of ticks.
_SLACK = 0.98
VOCAB = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """The offered load: requests a second, and how each of them is streamed."""

    requests_per_s: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    tokens_a_chunk: int
    gap_s: float  # between chunks

    @property
    def chunks(self) -> int:
        return self.output_tokens // self.tokens_a_chunk

    def trace(self) -> Trace:
        requests = max(1, round(self.requests_per_s * self.seconds))
        return Trace(
            np.arange(requests) / self.requests_per_s,
            np.full(requests, self.prompt_tokens, np.int32),
            np.full(requests, self.chunks * self.tokens_a_chunk, np.int32),
            TraceMeta("even", source="profile"),
        )


TITLES = (
    *("tokens a chunk", "requests/s", "tokens/s", "late p50", "p99", "max ms"),
    *("client us/chunk", "mock", "failed", ""),
)


def run(loads: Sequence[Load], workers: int, watcher: Watcher = QUIET) -> Report:
    rows = []
    for number, load in enumerate(loads):
        watcher.progress(number, len(loads))
        rows.append(_measured(load, workers))
    watcher.progress(len(loads), len(loads))
    cores = len(os.sched_getaffinity(0))
    facts = {
        "benchmark": "endpoint",
        "client_workers": workers,
        "cores": cores,
        "target_requests_per_s": TARGET_REQUESTS_PER_S,
        "target_tokens_per_s": TARGET_TOKENS_PER_S,
        "target_lateness_p99_ms": TARGET_LATENESS_MS,
        "loads": rows,
        "met": all_met(rows),
    }
    clients = "one client process" if workers == 1 else f"{workers} client processes"
    head = (
        f"{clients} and a mock server on {cores} cores; target {TARGET_REQUESTS_PER_S:,.0f} requests/s, "
        f"{TARGET_TOKENS_PER_S:,.0f} tokens/s, lateness p99 within {TARGET_LATENESS_MS:g} ms"
    )
    return Report(facts, [head, judged(TITLES, rows)])


def _measured(load: Load, workers: int) -> Row:
    trace = load.trace()
    with mock_server(load) as (url, busy_s):
        setup = EndpointSetup(Behind(parse_url(url)), Served("mock"), retries=0, client_workers=workers)
        part = Part(setup, Accepted(), Prompts(trace, 0, VOCAB), trace, np.arange(len(trace)), "open", 0)
        parts, before_s = shards(part, workers), sum(os.times()[:4])
        did = [run_here(parts[0], Recent())] if workers == 1 else run_in_processes(parts, Recent())
        client_s, server_s = sum(os.times()[:4]) - before_s, busy_s()
    return _row(load, trace, did, client_s, server_s)


def _row(load: Load, trace: Trace, did: list[ClientResult], client_s: float, server_s: float) -> Row:
    calls = {name: np.concatenate([one.noted.calls[name] for one in did]) for name in did[0].noted.calls}
    at_s = np.concatenate([one.noted.chunks["at_s"] for one in did])
    tokens = np.concatenate([one.noted.chunks["tokens"] for one in did])
    failed = int(np.count_nonzero(calls["error"] != ""))
    late_ms = (calls["sent_s"] - calls["due_s"]) * 1e3
    # Between the first answers' end and the last request, streams start and end at the requested rate.
    first_s, last_s = load.chunks * load.gap_s, float(trace.arrival_s[-1])
    steady = (at_s > first_s) & (at_s <= last_s)
    tokens_per_s = float(tokens[steady].sum()) / (last_s - first_s) if last_s > first_s else 0.0
    sent = calls["sent_s"]
    requests_per_s = (len(sent) - 1) / float(sent.max() - sent.min())
    lateness = dict(zip(("p50", "p99", "max"), np.percentile(late_ms, (50, 99, 100)).tolist(), strict=True))
    offered = load.requests_per_s * load.output_tokens
    client_us, server_us = (seconds / max(len(at_s), 1) * 1e6 for seconds in (client_s, server_s))
    facts = {
        "offered_requests_per_s": load.requests_per_s,
        "offered_tokens_per_s": offered,
        "tokens_a_chunk": load.tokens_a_chunk,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "gap_ms": load.gap_s * 1e3,
        "requests": len(trace),
        "failed": failed,
        "requests_per_s": requests_per_s,
        "tokens_per_s": tokens_per_s,
        "lateness_ms": lateness,
        "client_cpu_us_per_chunk": client_us,
        "server_cpu_us_per_chunk": server_us,
        "client_cpu_s": client_s,
        "server_cpu_s": server_s,
    }
    cells = (
        f"{load.tokens_a_chunk:,}",
        f"{requests_per_s:,.0f} of {load.requests_per_s:,.0f}",
        f"{tokens_per_s:,.0f} of {offered:,.0f}",
        *(f"{ms:.2f}" for ms in lateness.values()),
        f"{client_us:.1f}",
        f"{server_us:.1f}",
        f"{failed:,}",
    )
    met = (
        failed == 0
        and requests_per_s >= min(load.requests_per_s, TARGET_REQUESTS_PER_S) * _SLACK
        and tokens_per_s >= min(offered, TARGET_TOKENS_PER_S) * _SLACK
        and lateness["p99"] <= TARGET_LATENESS_MS
    )
    return Row(facts, cells, met)


@contextlib.contextmanager
def mock_server(load: Load) -> Iterator[tuple[str, Callable[[], float]]]:
    """Run a server of that pace in a separate process; yield its URL and a function for its busy time."""
    pace = [str(load.chunks), str(load.tokens_a_chunk), str(load.gap_s)]
    command = [sys.executable, "-m", "laminabench.bench.endpoint_server", *pace]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=child_environment(), stdin=pipe, stdout=pipe, text=True) as process:
        # It ends when its stdin closes, even if this process is killed.
        killer = threading.Timer(60, process.kill)
        killer.start()
        try:
            port = cast(IO[str], process.stdout).readline().strip()
        finally:
            killer.cancel()
        if not port:
            raise UserError(
                "bench-server-failed",
                "the mock server did not start; python -m laminabench.bench.endpoint_server says why",
            )
        yield f"http://127.0.0.1:{port}", lambda: _busy_s(process.pid)


def _busy_s(number: int) -> float:
    """Return the processor time of a process so far."""
    with open(f"/proc/{number}/stat", encoding="ascii") as file:  # noqa: PTH123 - a path that is none
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
