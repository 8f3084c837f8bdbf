"""A server with a fault every ten seconds, under open traffic at 80 % of what it can do with these: minutes.

Nothing may be lost, and nothing may grow: memory, descriptors, threads, /dev/shm and times stay as at first.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.injector import Hand
from experiments.processes import eventually, fork_servers, shared_memory, workers
from experiments.serving import Server, growth, serving
from experiments.stream_client import (
    Client,
    SeededRequest,
    Times,
    WrongAnswerError,
    answers_of,
    check_tokens,
    seeded_requests,
)
from experiments.tally import Tally
from laminabench.systems.live.endpoint.wire import more_files

MINUTE_S = 60.0
FAULT_EVERY_S = 10.0
LOAD = 0.8
PEAK_S, PEAK_CLIENTS = 60.0, 96
REQUESTS, REQUESTS_SEED, LONGEST_ANSWER = 64, 28, 60
SERVE = (
    *("--deployment", "1xcpu+1xcpu", "--prefill", "1", "--kv-tokens", "12000", "--max-num-seqs", "64"),
    *("--max-connections", "4096", "--max-waiting", "8192"),
)
WORKERS = 3
# Limits for the last tenth over the first. Medians are of some hundred thousand tokens; a p99 depends on
# faults, six a minute.
TIMES_P50, TIMES_P99 = 1.5, 2.5
# Smaller growth is due to the allocator and to caches that fill.
MOST_GROWTH, LEAST_BYTES = 1.2, 32 << 20
TENTHS = 10
STAYS = (
    *("front_end_descriptors", "front_end_threads", "workers_descriptors", "workers_threads"),
    "shared_memory",
)
REST_S, CLOSED_S = 60.0, 30.0
# A new fork server takes as long to start as the server: once in six minutes.
FORK_SERVER_EVERY = 36


@dataclass
class Minute:
    """The results of one minute."""

    seed: int
    times: Times = field(default_factory=Times)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    takes: dict[str, float] = field(default_factory=dict)  # at its end


def soak(seeds: Sequence[int], *, minute_s: float = MINUTE_S, peak_s: float = PEAK_S) -> Tally:
    """Run a server for minutes; a case is a minute, and `tried` counts answers and the checks at the end."""
    more_files()
    tally = Tally("soak")
    with serving(*SERVE) as server:
        asyncio.run(_soak(server, seeds, minute_s, peak_s, tally))
        why = server.end()
        tally.add("leaked" if why else None, "its end", seeds[-1], why or "")
    return tally


async def _soak(server: Server, seeds: Sequence[int], minute_s: float, peak_s: float, tally: Tally) -> None:
    drawn = seeded_requests(REQUESTS, REQUESTS_SEED, LONGEST_ANSWER)
    expected = await answers_of(server.port, drawn)
    hand = Hand(server.pid, WORKERS, random.Random(seeds[0]))
    rate = await _peak(server.port, drawn, peak_s, hand) * LOAD
    before = await asyncio.to_thread(_at_rest, server)
    traffic = Traffic(server, expected, rate, hand)
    minutes = [await traffic.minute(seed, minute_s) for seed in seeds]
    await traffic.ended()
    left = await asyncio.to_thread(server.at_rest)
    tally.add("leaked" if left else None, "its rest", seeds[-1], left or "")
    await asyncio.to_thread(eventually, lambda: not growth(before, _at_rest(server), STAYS), CLOSED_S)
    after = await asyncio.to_thread(_at_rest, server)
    more = growth(before, after, STAYS)
    tally.add("leaked" if more else None, "what it takes", seeds[-1], more or "")
    tally.facts |= {f"{name}_before": value for name, value in before.items()}
    tally.facts |= {f"{name}_after": value for name, value in after.items()}
    for minute in minutes:
        for _ in range(minute.times.complete):
            tally.add(None, "", minute.seed)
        for kind, what in minute.wrong:
            tally.add(kind, "a minute", minute.seed, what)
    hand = traffic.hand
    tally.facts |= {"kills": hand.kills, "stops": hand.stops, "minutes": len(seeds), "requests_per_s": rate}
    _judge(minutes, tally)


async def _peak(port: int, drawn: Sequence[SeededRequest], peak_s: float, hand: Hand) -> float:
    """Return requests a second under faults at full load."""
    until_s, answered = time.monotonic() + peak_s, 0

    async def one(rng: random.Random) -> None:
        nonlocal answered
        client = Client(port)
        while time.monotonic() < until_s:
            await client.answer(rng.choice(drawn))
            answered += time.monotonic() < until_s
        await client.close()

    async def faults() -> None:
        for _ in range(int(peak_s / FAULT_EVERY_S)):
            await asyncio.to_thread(_blow, hand)
            await asyncio.sleep(FAULT_EVERY_S)

    await asyncio.gather(faults(), *(one(random.Random(number)) for number in range(PEAK_CLIENTS)))
    return answered / peak_s


def _blow(hand: Hand) -> None:
    """Inject a fault; each kind is equally frequent in every tenth of an hour."""
    number = hand.strikes % FORK_SERVER_EVERY
    fork_server = number == FORK_SERVER_EVERY - 1
    order = signal.SIGKILL if fork_server or number % 2 else signal.SIGSTOP
    hand.inject(order, fork_server=float(fork_server))


@dataclass
class Traffic:
    """Requests at random moments with this mean rate, and faults in the server's workers."""

    server: Server
    expected: dict[SeededRequest, list[int]]
    rate: float
    hand: Hand
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def minute(self, seed: int, minute_s: float) -> Minute:
        """Send one minute's requests; some of their answers may come later."""
        minute, rng = Minute(seed), random.Random(seed)
        self.hand.rng = rng
        drawn = list(self.expected)
        now_s = time.monotonic()
        end_s, fault_s = now_s + minute_s, now_s + FAULT_EVERY_S / 2
        while now_s < end_s:
            task = asyncio.ensure_future(self._request(minute, rng.choice(drawn)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            now_s += rng.expovariate(self.rate)
            if now_s > fault_s:
                await asyncio.to_thread(_blow, self.hand)
                fault_s += FAULT_EVERY_S
            await asyncio.sleep(max(0.0, now_s - time.monotonic()))
        minute.takes = await asyncio.to_thread(_at_rest, self.server)
        return minute

    async def _request(self, minute: Minute, request: SeededRequest) -> None:
        client = Client(self.server.port)
        try:
            check_tokens(request, await client.answer(request, minute.times), self.expected[request])
        except WrongAnswerError as error:
            minute.wrong.append((error.kind, str(error)))
        await client.close()

    async def ended(self) -> None:
        await asyncio.gather(*self._under_way)


def _at_rest(server: Server) -> dict[str, float]:
    """Return the resources with all workers running, as one being replaced would not be counted."""
    eventually(lambda: len(workers(server.pid)) == WORKERS and len(fork_servers(server.pid)) == 1, REST_S)
    return server.takes() | {"shared_memory": float(len(shared_memory() - server.was_shared))}


def _judge(minutes: Sequence[Minute], tally: Tally) -> None:
    """Compare the last tenth with the first."""
    tenth = max(1, len(minutes) // TENTHS)
    ends = {"first": minutes[:tenth], "last": minutes[-tenth:]}
    observed = {}
    for name, part in ends.items():
        joined = Times()
        for minute in part:
            joined.first += minute.times.first
            joined.between += minute.times.between
        observed[name] = joined.percentiles_ms()
        # Clients are connected at the end of a minute: their resources are checked after all disconnected.
        sizes = ("front_end_rss_bytes", "workers_rss_bytes")
        observed[name] |= {key: max(minute.takes[key] for minute in part) for key in sizes}
        tally.facts |= {f"{key}_{name}": value for key, value in observed[name].items()}
    if len(minutes) < TENTHS:
        return
    first, last = observed["first"], observed["last"]
    seed = minutes[-1].seed
    for name in ("front_end_rss_bytes", "workers_rss_bytes"):
        grown = last[name] > first[name] * MOST_GROWTH and last[name] > first[name] + LEAST_BYTES
        tally.add("leaked" if grown else None, name, seed, f"{first[name]:,.0f} to {last[name]:,.0f} bytes")
    for name in ("tbt_p50_ms", "ttft_p50_ms", "tbt_p99_ms", "ttft_p99_ms"):
        limit = TIMES_P50 if "p50" in name else TIMES_P99
        slower = last[name] > limit * first[name]
        tally.add("wrong" if slower else None, name, seed, f"{first[name]:.1f} ms at first, {last[name]:.1f}")
