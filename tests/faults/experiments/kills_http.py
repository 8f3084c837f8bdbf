"""Workers that are killed and stopped at random moments while thousands of clients read streams.

Every answer is complete, with the tokens of an undisturbed server, nothing twice; at the end nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

from experiments.injector import Hand, struck
from experiments.processes import eventually, workers
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

STRIKES = 100
CONNECTIONS = 2000
REQUESTS, REQUESTS_SEED, LONGEST_ANSWER = 64, 27, 40
# Model and attention workers, where prompts are computed, and how many processes that makes.
LAYOUTS = (("1xcpu+2xcpu", "1", 4), ("2xcpu+1xcpu", "model", 3), ("1xcpu+1xcpu", "model", 2))
LIMITS = (
    *("--kv-tokens", "12000", "--max-num-seqs", "64"),
    *("--max-connections", "4096", "--max-waiting", "8192"),
)
_REST_S = 60.0
# The time in which the server closes its end after a client has closed a connection.
_CLOSED_S = 30.0
# These must not grow; resources of open connections are reported separately.
STAYS = ("front_end_descriptors", "front_end_threads", "workers_descriptors", "workers_threads")


def kills_http(seeds: Sequence[int], *, strikes: int = STRIKES, connections: int = CONNECTIONS) -> Tally:
    """Run servers with this many faults and clients each; `tried` counts faults and answers."""
    more_files()
    tally = Tally("kills-http")
    for seed in seeds:
        rng = random.Random(seed)
        deployment, prefill, count = rng.choice(LAYOUTS)
        case = f"{deployment} prefill {prefill}"
        with serving("--deployment", deployment, "--prefill", prefill, *LIMITS) as server:
            hand = Hand(server.pid, count, rng)
            wrong = asyncio.run(_session(server, hand, strikes, connections, tally))
            for (kind, what), times in wrong.items():
                for _ in range(times):
                    tally.add(kind, case, seed, what)
            for _ in range(hand.strikes):
                tally.add(None, case, seed)
            if hand.why:
                tally.add("lost", case, seed, hand.why)
            if why := server.end():
                tally.add("leaked", case, seed, why)
    return tally


async def _session(
    server: Server, hand: Hand, strikes: int, connections: int, tally: Tally
) -> Counter[tuple[str, str]]:
    """Return what went wrong, by kind and sentence, and how often."""
    wrong: Counter[tuple[str, str]] = Counter()
    drawn = seeded_requests(REQUESTS, REQUESTS_SEED, LONGEST_ANSWER)
    expected = await answers_of(server.port, drawn)
    before = server.takes()
    times = Times()
    hand.progress = lambda: times.tokens
    with struck(hand, strikes // 2, strikes - strikes // 2) as striking:
        clients = [
            _client(server.port, expected, random.Random(seed), striking.is_alive, wrong, times)
            for seed in [hand.rng.getrandbits(60) for _ in range(connections)]
        ]
        right = sum(await asyncio.gather(*clients))
    for _ in range(right):
        tally.add(None, "", 0)
    if not await asyncio.to_thread(eventually, lambda: len(workers(server.pid)) == hand.workers, _REST_S):
        wrong["leaked", f"{len(workers(server.pid))} workers"] += 1
    if left := await asyncio.to_thread(server.at_rest):
        wrong["leaked", left] += 1
    await asyncio.to_thread(eventually, lambda: not growth(before, server.takes(), STAYS), _CLOSED_S)
    after = server.takes()
    if more := growth(before, after, STAYS):
        wrong["leaked", more] += 1
    tally.facts |= {name: max(value, tally.facts.get(name, value)) for name, value in after.items()}
    return wrong


async def _client(
    port: int,
    expected: dict[SeededRequest, list[int]],
    rng: random.Random,
    on: Callable[[], bool],
    wrong: Counter[tuple[str, str]],
    times: Times,
) -> int:
    """Send one request after the other while faults are injected; return how many answers were right."""
    client, right, drawn = Client(port), 0, list(expected)
    while True:
        request = rng.choice(drawn)
        try:
            check_tokens(request, await client.answer(request, times), expected[request])
            right += 1
        except WrongAnswerError as error:
            wrong[error.kind, str(error)] += 1
            await client.close()
        if not on():
            break
        if rng.random() < 0.2:
            await client.close()
    await client.close()
    return right
