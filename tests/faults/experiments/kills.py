"""Workers that are killed and stopped at random moments under a live replay.

They must have no visible effect: the same tokens, each exactly once, and nothing left at the end.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from experiments.injector import Hand, struck
from experiments.near_ties import likeliest
from experiments.processes import eventually, facts, fork_servers, shared_memory
from experiments.tally import Tally
from laminabench.catalog import find_model
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.base import Workload
from laminabench.systems.live.lamina.log import ReplayLog
from laminabench.systems.live.lamina.loop import Order, Replay
from laminabench.systems.live.lamina.prepared import PreparedEngine
from laminabench.systems.live.lamina.starting import opened
from laminabench.systems.live.prompts import prompt_of
from laminabench.systems.registry import prepare
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError

MODEL = "llama-tiny"
# Faults of one session, half of them kills.
STRIKES = 100
# All sessions replay the same trace; victims and moments depend on the case.
TRACE_SEED = 27
# Least tokens from one fault to the next.
TOKENS_EACH = 200
LONGEST_ANSWER = 120
KV_TOKENS = 6000  # so few that some requests wait
# Model and attention workers, and where prompts are computed.
LAYOUTS = (("1xcpu+2xcpu", 1), ("2xcpu+1xcpu", "model"), ("1xcpu+1xcpu", 2))
# Of sessions with second copies of KV.
COPIED = "kills-copies"
OF_COPIES = ("1xcpu+2xcpu", "model")
COPIES = ("host", "worker", "disk")
GRACE_S = 10.0
# Sessions after which threads and descriptors must not grow: libraries start theirs in the first ones.
SETTLED_AFTER = 2


def kills_replay(seeds: Sequence[int], *, strikes: int = STRIKES, called: str = "kills-replay") -> Tally:
    """Run replays with this many faults each; a case is a replay, and `tried` counts faults."""
    tally = Tally(called)
    before: dict[str, int] = {}
    for number, seed in enumerate(seeds):
        _session(tally, seed, strikes)
        now = facts([os.getpid()])
        if number + 1 == SETTLED_AFTER:
            before = now
        for name in ("descriptors", "threads"):
            if before and now[name] > before[name]:
                what = f"{now[name]} after {number + 1} sessions, {before[name]} before"
                tally.add("leaked", name, seed, what)
        tally.facts["front_end_rss_mb"] = max(tally.facts.get("front_end_rss_mb", 0), now["rss_bytes"] / 1e6)
    return tally


def kills_copies(seeds: Sequence[int], *, strikes: int = STRIKES) -> Tally:
    """Run the same with second copies of KV, and kills alone."""
    return kills_replay(seeds, strikes=strikes, called=COPIED)


def _session(tally: Tally, seed: int, strikes: int) -> None:
    rng = random.Random(seed)
    layout, kv_copy = rng.choice(LAYOUTS), "none"
    if tally.name == COPIED:
        layout, kv_copy = OF_COPIES, COPIES[seed % len(COPIES)]
    kind, what, hand = _replayed(tally, layout, rng, strikes, kv_copy)
    tally.add(kind, f"{layout[0]} prefill {layout[1]} kv copy {kv_copy}", seed, what)
    for _ in range(hand.strikes - 1):
        tally.add(None, "", seed)


def _replayed(
    tally: Tally,
    layout: tuple[str, int | str],
    rng: random.Random,
    strikes: int,
    kv_copy: str,
) -> tuple[str | None, str, Hand]:
    """Return what was wrong with a replay under faults, if anything."""
    was = shared_memory()
    every = TOKENS_EACH if kv_copy == "none" else TOKENS_EACH // 4
    trace = _trace(strikes, every)
    log = ReplayLog(trace)
    hand = Hand(os.getpid(), 0, rng, progress=lambda: log.tables.tokens, every=every)
    try:
        made = _replay(layout, log, hand, strikes, kv_copy)
    except (UserError, RuntimeError) as error:  # the engine has given up, or counted wrong
        return "lost", str(error), hand
    again = f"KV tokens computed again, kv copy {kv_copy}"
    tally.facts[again] = tally.facts.get(again, 0) + sum(fault.kv_tokens for fault in log.faults)
    expected = _undisturbed(layout, strikes, every)
    for row, tokens in expected.items():
        if len(made[row]) < len(tokens):
            return "lost", f"request {row}: {len(made[row])} of {len(tokens)} tokens", hand
        if made[row] != tokens:
            if not likeliest(MODEL, _prompt(trace, row), made[row]):
                return "wrong", f"request {row}: other tokens", hand
            tally.facts["answers with ties"] = tally.facts.get("answers with ties", 0) + 1
    if not eventually(lambda: not fork_servers(os.getpid()), GRACE_S):
        return "leaked", f"processes {fork_servers(os.getpid())}", hand
    if left := shared_memory() - was:
        return "leaked", f"/dev/shm: {', '.join(sorted(left))}", hand
    return None, "", hand


def _replay(
    layout: tuple[str, int | str], log: ReplayLog, hand: Hand | None, strikes: int, kv_copy: str = "none"
) -> Mapping[int, list[int]]:
    """Return tokens by request; a RuntimeError if KV memory is not empty at the end."""
    prepared = _prepared(layout, kv_copy)
    offered = Workload.of(prepared.request).offered(log.trace)
    prompts = partial(_prompt, log.trace)
    with opened(prepared.setup, KV_TOKENS, "fifo") as engine:
        replay = Replay(engine, offered, Order(None), log, prompts)
        if hand is None:
            replay.run()
        else:
            hand.workers = len(engine.workers)
            stops = 0 if kv_copy != "none" else strikes - strikes // 2
            with struck(hand, strikes - stops, stops):
                replay.run()
        engine.check_integrity()
        if engine.used_kv_tokens:
            raise RuntimeError(f"{engine.used_kv_tokens} KV tokens are taken, and nobody is there")
    return log.tokens


@functools.lru_cache
def _undisturbed(layout: tuple[str, int | str], strikes: int, every: int) -> Mapping[int, list[int]]:
    return _replay(layout, ReplayLog(_trace(strikes, every)), None, strikes)


def _prompt(trace: Trace, row: int) -> list[int]:
    return prompt_of(trace, TRACE_SEED, find_model.model(MODEL).vocab, row)


def _prepared(layout: tuple[str, int | str], kv_copy: str) -> PreparedEngine:
    prepared = prepare(
        ReplayRequest(
            trace="kills",
            system="lamina",
            backend="live",
            model=MODEL,
            dtype="fp32",  # tokens that are computed again are the same
            deployment=layout[0],
            prefill=layout[1],
            kv_copy=kv_copy,
            oversubscribe=True,
            kv_tokens=KV_TOKENS,
            max_num_seqs=32,
            min_batch=1 if "+" in layout[0] else None,  # all batches under way as often as can be
        )
    )
    assert isinstance(prepared, PreparedEngine)
    return prepared


def _trace(strikes: int, every: int) -> Trace:
    """Return as many requests as this many faults need, one each `every` tokens."""
    draw = np.random.default_rng(TRACE_SEED)
    count = max(20, 2 * strikes * every // LONGEST_ANSWER)
    prompts, outputs = draw.integers(4, 60, count), draw.integers(8, LONGEST_ANSWER, count)
    meta = TraceMeta("kills", has_arrivals=False)
    return Trace(np.zeros(count), prompts.astype(np.int32), outputs.astype(np.int32), meta)
