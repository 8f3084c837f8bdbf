"""Engines with workers for tests: loads, their results, and checks of the engine's state."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import children_of

from lamina import Engine, Sampling
from lamina._native import ShmReceiver, ShmSegment, ShmSender
from lamina.attention.cpu import TensorWorker
from lamina.attention.heads import AttentionLayer
from lamina.cluster import Layout, Machine
from lamina.cluster.kv_pull import KvPull
from lamina.kv import Arena, ArenaShape
from lamina.pipeline import check_schedule
from lamina.pipeline.kv_slots import Arrival
from lamina.serve.requests import Result

# Kinds of requests: sampled, several samples, beams, logprobs.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"n": 3, "temperature": 0.8, "seed": 4},
    {"beams": 3},
    {"logprobs": 2},
)
DEADLINE_S = 60.0  # generous, as the machine may be busy
Load = list[tuple[list[int], Sampling]]
Start = Callable[..., Engine]
Saved = Callable[..., Path]
Reference = Callable[..., list[int]]
Check = Callable[..., None]  # checks that a layout makes the tokens of transformers
shared = functools.partial(Layout, oversubscribe=True)
# By name: pipelining, batches, replicas.
TURNS: dict[str, tuple[str, int, int]] = {
    "serial": ("serial", 1, 1),
    "fixed": ("fixed", 2, 2),
    "rotational-2": ("rotational", 2, 1),
    "rotational-3": ("rotational", 3, 2),
}
every_combination = pytest.mark.parametrize(
    ("turns", "partition", "overlap", "attention", "ranks"),
    list(itertools.product(TURNS, ["heads", "requests"], [False, True], [1, 2], [1, 2])),
    ids=lambda value: {True: "overlap", False: "in-turn"}.get(value) if isinstance(value, bool) else None,
)


def combined(turns: str, partition: Any, attention: int, ranks: int, **more: Any) -> Layout:
    """Return the layout of a combination."""
    pipelining, batches, replicas = TURNS[turns]
    turn: dict[str, Any] = {"pipelining": pipelining, "batches": batches, "partition": partition}
    return shared(replicas * ranks, attention, **turn, **more)


class ScriptedMachine(Machine):
    """A machine whose fork server is a script of these tests, which looks at a file."""

    def __init__(self, script: Path, file: Path) -> None:
        super().__init__()
        self.file = file
        self.program = (str(script), str(file))


class KvTaker:
    """The part of an attention worker that receives KV."""

    def __init__(self, shape: ArenaShape, look: Callable[[], None] = lambda: None) -> None:
        self.arena = Arena(shape, 500)
        store = TensorWorker(shape.dtype, shape.kv_heads, shape.kv_heads, shape.head_dim, threads=1)
        for layer in range(shape.layers):
            space = self.arena.space_of(layer)
            store.add_layer(
                AttentionLayer(self.arena.keys(layer), self.arena.values(layer), 1.0, space=space)
            )
        self.had: list[int] = []
        self.pull = KvPull(store, self.arena, self.had.append, look)

    def expect(self, name: int, tokens: int, shared: int = 0) -> None:
        self.pull.expect(Arrival(name, tokens, self.arena.allocate(name, tokens - shared)))


def channel(to: str, slots: int = 64, message_bytes: int = 1 << 14) -> tuple[ShmSender, ShmReceiver]:
    """Return a channel from a prefill worker."""
    segment = ShmSegment.create(message_bytes, slots, epoch=7, first_seqno=0)
    sender = ShmSender(ShmSegment.attach(segment.descriptor), to, timeout_s=30, spin_s=0)
    return sender, ShmReceiver(segment, "prefill 0", timeout_s=30, spin_s=0)


def prompts(*lengths: int, vocab: int = 120) -> list[list[int]]:
    """Return random prompts of these lengths, the same every time."""
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(1, vocab, (n,), generator=generator).tolist() for n in lengths]


def mixed(count: int) -> Load:
    """Return this many requests of all kinds and lengths."""
    draw = random.Random(1)
    texts = prompts(*(draw.randrange(1, 50) for _ in range(count)))
    return [
        (text, Sampling(max_tokens=draw.randrange(3, 20), ignore_eos=True, **KINDS[i % len(KINDS)]))
        for i, text in enumerate(texts)
    ]


def tokens_of(result: Result) -> list[list[int]]:
    """Return a result's tokens, completion by completion."""
    return [list(done.tokens) for done in result.completions]


def play(
    engine: Engine, load: Load, between: Callable[[int], object] = lambda step: None
) -> list[list[list[int]]]:
    """Serve all requests of a load, calling `between` before each step; return the tokens.

    Every request that joined and was not preempted must be reported to end once.
    """
    numbers = [engine.submit(*request) for request in load]
    step, running = 0, set()
    while not engine.idle:
        between(step)
        outcome = engine.step()
        assert running.issuperset(outcome.preempted)
        running -= set(outcome.preempted)
        assert running.isdisjoint(outcome.joined)
        running |= set(outcome.joined)
        assert running.issuperset(outcome.ended)
        running -= set(outcome.ended)
        step += 1
    assert not running
    return [tokens_of(engine.result(number)) for number in numbers]


def at(when: int, deed: Callable[..., object], *given: Any) -> Callable[[int], None]:
    """Return a function for `play` that does this before one of the steps."""

    def between(step: int) -> None:
        if step == when:
            deed(*given)

    return between


def sound(engine: Engine) -> None:
    """Fail unless an idle engine's workers have followed the schedule and hold nothing."""
    assert engine.idle
    records = engine.records()
    assert records is not None
    assert len(records) > 0
    assert check_schedule(records, engine.schedule) == []
    engine.check_integrity()
    assert not any(engine.core.kv_used())


@contextlib.contextmanager
def harassed(engine: Engine, seed: int) -> Iterator[None]:
    """Kill and stop an engine's workers at random moments while the block runs."""
    draw, enough = random.Random(seed), threading.Event()

    def blows() -> None:
        for _ in range(6):
            if enough.wait(draw.uniform(0.1, 0.6)):
                return
            pids = list(engine.core._workers._pids.values())
            if pids:
                os.kill(draw.choice(pids), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))

    thread = threading.Thread(target=blows)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def eventually(holds: Callable[[], bool], what: str = "what was waited for has not come") -> None:
    """Wait until something holds."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def workers_of(machine: Machine) -> list[int]:
    """Return a machine's workers that have not ended, or whose end was not collected."""
    process = machine._process
    return [] if process is None else children_of(process.pid)
