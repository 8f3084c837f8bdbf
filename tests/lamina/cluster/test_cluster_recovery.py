"""Workers lost at any moment are replaced, and every token is the one it would have been."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_support import (
    Load,
    Saved,
    ScriptedMachine,
    Start,
    at,
    eventually,
    harassed,
    mixed,
    play,
    prompts,
    shared,
    sound,
    tokens_of,
)
from processes import children_of

from lamina import Engine, Sampling
from lamina.cluster import LostError, Machine, heartbeat
from lamina.cluster.core import MAX_RECOVERY_ATTEMPTS
from lamina.serve import EngineError, RequestError

SPOILED = Path(__file__).with_name("spoiled.py")
LAYOUTS = {
    "rotational": shared(1, 1),
    "heads": shared(2, 2, batches=3),
    "requests": shared(2, 2, batches=3, partition="requests"),
    "ranks": shared(2, 1, pipelining="serial"),
    "experts": shared(2, 1, pipelining="serial", experts="ep"),
    "absorbing": shared(2, 2, pipelining="serial", partition="requests"),
    "windows": shared(2, 2, batches=3, partition="requests"),
    "latent": shared(2, 2, batches=3, partition="requests"),
    "recurrent": shared(1, 2, partition="requests"),
    "recurrent-stages": shared(2, 1, pipeline_parallel=2),
    "stages": shared(2, 2, pipeline_parallel=2),
    "streamed": shared(1, 2, stream_chunks=2),
    "softnic": shared(1, 2, network="softnic"),
}

FAMILIES = {
    "experts": "mixtral",
    "windows": "gpt-oss",
    "latent": "deepseek-v3",
    "absorbing": "deepseek-v3",
    "recurrent": "jamba",
    "recurrent-stages": "qwen3-next",
}


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(20)


# The test of kills at any moment has the layout "requests".
@pytest.mark.long(but=["stages", "windows"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "rotational"])
def test_workers_killed_between_steps(layout: str, load: Load, start: Start) -> None:
    """Each of them in turn, again and again."""
    family = FAMILIES.get(layout, "llama-gqa")
    options = {"absorb": "attention"} if layout == "absorbing" else {}
    expected = play(start(LAYOUTS[layout], family, **options), load)
    engine = start(LAYOUTS[layout], family, **options)

    def inject_fault(step: int) -> None:
        if step % 5 == 3:
            engine.inject_fault(engine.workers[step // 5 % len(engine.workers)])

    assert play(engine, load, inject_fault) == expected
    sound(engine)
    assert {name for fault in engine.faults for name in fault.workers} == set(engine.workers)
    for fault in engine.faults:
        assert fault.noticed_s < fault.resumed_s
        assert fault.why == f"{fault.workers[0]} has ended: it was killed by SIGKILL"
        assert bool(fault.requests) == bool(fault.kv_tokens)
        assert bool(fault.kv_tokens) <= fault.workers[0].startswith("attention")
    assert any(fault.kv_tokens for fault in engine.faults)


@pytest.mark.long(but=["0"])
@pytest.mark.parametrize("prefill_workers", [0, 2])
def test_workers_killed_and_stopped_at_any_moment(prefill_workers: int, load: Load, start: Start) -> None:
    """At random times: also while they recover."""
    layout = replace(LAYOUTS["requests"], prefill_workers=prefill_workers)
    expected = play(start(layout), load * 2)
    engine = start(layout)
    with harassed(engine, 7):
        result = play(engine, load * 2)
    assert result == expected
    sound(engine)


def test_an_idle_engines_workers_killed(load: Load, start: Start) -> None:
    """They are replaced when they are needed."""
    engine = start(LAYOUTS["heads"])
    expected = play(engine, load)
    for name in engine.workers:
        engine.inject_fault(name)
    assert play(engine, load) == expected
    known = len(engine.faults)
    eventually(lambda: all(engine.worked_s().values()))
    worked_s = engine.worked_s()
    for times, name in enumerate(engine.workers, 1):
        engine.inject_fault(name)
        engine.check_integrity()
        assert engine.worked_s()[name] >= worked_s[name], "a counter, which no replacement resets"
        engine.records()
        # Told as soon as it is over, and not with what comes later.
        assert [fault.workers for fault in engine.faults[known:]] == [(n,) for n in engine.workers[:times]]
    assert play(engine, load) == expected
    sound(engine)


def test_a_worker_that_is_stopped(load: Load, start: Start) -> None:
    engine = start(LAYOUTS["requests"])
    expected = play(engine, load)
    assert play(engine, load, at(5, engine.inject_fault, "attention 1", "stop")) == expected
    (fault,) = engine.faults
    assert "attention 1" in fault.workers
    assert fault.why.startswith("attention 1 hangs: it has not answered for ")


def test_a_worker_stopped_during_a_large_message(saved: Saved, machine: Machine) -> None:
    """More than a connection's buffer: a sender checks meanwhile that others still work."""
    folder = saved("llama-gqa", positions=20_000, layers=1)
    layout = shared(1, 1)
    memory = {"kv_tokens": 3_000_000, "prompt_tokens": 3_000_000}
    with Engine(folder, layout=layout, machine=machine, max_sequences=150, **memory) as engine:
        long = prompts(18_000)[0]
        engine.generate([[1, 2, 3]], Sampling(max_tokens=2))
        numbers = [engine.submit(long, Sampling(max_tokens=2)) for _ in range(150)]
        began = time.monotonic()
        engine.inject_fault("model 0", "stop")
        launch, reported = engine.core.launch, []

        def once(*whatever: object) -> None:
            """What is said now is all that is of interest."""
            try:
                launch(*whatever)  # type: ignore[arg-type]
            except LostError as lost:
                reported.append(lost)
                raise KeyboardInterrupt from lost

        engine.core.launch = once  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert time.monotonic() - began < layout.timeout_s / 4
        assert "model 0 hangs: it has not answered for" in str(reported[0])
        assert len(numbers) == 150


@pytest.mark.long
def test_a_fork_server_that_is_killed_while_workers_are_replaced(
    start: Start, machine: Machine, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(LAYOUTS["rotational"])
    expected = play(engine, load[:6])
    killed: list[Any] = []
    start_workers = machine.start

    def spoil(*whatever: object) -> list[int]:
        if not killed:
            killed.append(machine._process)
            killed[0].kill()
            killed[0].wait()
        return start_workers(*whatever)  # type: ignore[arg-type]

    monkeypatch.setattr(machine, "start", spoil)
    assert play(engine, load[:6], at(3, engine.inject_fault, "model 0")) == expected
    assert len(killed) == 1
    (fault,) = engine.faults
    assert fault.workers == tuple(sorted(engine.workers))


def test_a_fork_server_that_is_killed(start: Start, machine: Machine, load: Load) -> None:
    """Everything there was has gone; the engine loads its model again, and goes on."""
    engine = start(LAYOUTS["heads"])
    expected = play(engine, load)
    process: Any = machine._process
    assert play(engine, load, at(5, process.kill)) == expected
    assert set(engine.faults[0].workers) == set(engine.workers)
    assert process.pid not in children_of(os.getpid()), "it was waited for"


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedMachine]:
    """Its workers do once what a file says."""
    with ScriptedMachine(SPOILED, tmp_path_factory.mktemp("order") / "order") as machine:
        yield machine


# The others are noticed in the same places.
@pytest.mark.long(but=["few-*", "nonsense-*", "hang up-*", "sleep-*"])
@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("few", "model 0 has sent tokens that make no sense: 4 of 5 sequences"),
        ("many", "model 0 has sent tokens that make no sense: "),
        ("nonsense", "model 0 has sent no sound message: "),
        ("misplaced", "model 0 has sent Order, which "),
        ("nobody's", "model 0 has sent tokens that make no sense: they are of batch 1048576"),
        ("hang up", "model 0 "),
        ("fail", "model 0 "),
        ("sleep", "model 0 hangs: it has worked at one thing for "),
    ],
)
def test_a_worker_that_misbehaves(order: str, why: str, saved: Saved, spoiled: ScriptedMachine) -> None:
    requests = [(text, Sampling(max_tokens=20, ignore_eos=True)) for text in prompts(1, 2, 3, 4, 5)]
    layout = shared(1, 1, pipelining="serial")
    with Engine(saved("llama-gqa"), layout=layout, machine=spoiled, kv_tokens=500) as engine:
        expected = play(engine, requests)
        assert play(engine, requests, at(5, spoiled.file.write_text, order)) == expected
        (fault,) = engine.faults
        assert fault.workers == ("model 0",)
        assert fault.why.startswith(why)


def test_one_that_misbehaves_for_ever(saved: Saved, spoiled: ScriptedMachine) -> None:
    """Replacing it again and again is useless; and no prompt is the cause."""
    layout = shared(1, 1, pipelining="serial")
    with Engine(saved("llama-gqa"), layout=layout, machine=spoiled, kv_tokens=500) as engine:
        engine.submit([1, 2, 3], Sampling(max_tokens=20))
        engine.step()
        regroup, tries = engine.core.regroup, []

        def spoil(lost: object) -> object:
            tries.append(lost)
            spoiled.file.write_text("fail")
            return regroup(lost)

        engine.core.regroup = spoil  # type: ignore[method-assign]
        spoiled.file.write_text("fail")
        with pytest.raises(EngineError, match="engine-recovery-failed"):
            engine.run()
        assert len(tries) == MAX_RECOVERY_ATTEMPTS + 1
        with pytest.raises(EngineError, match="engine-closed"):
            engine.step()
        spoiled.file.unlink(missing_ok=True)


def test_requests_cancelled_while_workers_are_lost(load: Load, start: Start) -> None:
    engine = start(LAYOUTS["requests"])
    numbers = [engine.submit(*request) for request in load]
    for step in range(8):
        engine.inject_fault(engine.workers[step % len(engine.workers)])
        engine.cancel(numbers[2 * step])
        engine.step()
    engine.run()
    remaining = {number: tokens_of(engine.result(number)) for number in numbers[1::2]}
    expected = play(engine, load)
    assert list(remaining.values()) == expected[1::2]
    sound(engine)


def test_going_on_after_tokens_that_were_made(load: Load, start: Start) -> None:
    """By an engine that is no more."""
    engine = start(LAYOUTS["heads"])
    single = [
        (text, sampling) for text, sampling in load if sampling.width == 1 and sampling.logprobs is None
    ]
    expected = play(engine, single)
    for part in (1, 2):
        numbers = [
            engine.submit(text, sampling, made=tokens[0][: len(tokens[0]) * part // 3])
            for (text, sampling), tokens in zip(single, expected, strict=True)
        ]
        engine.run()
        assert [tokens_of(engine.result(number)) for number in numbers] == expected
    sound(engine)


@pytest.mark.parametrize(
    ("sampling", "made", "code"),
    [
        (Sampling(max_tokens=2), [1, 2], "request-nothing-to-make"),
        (Sampling(max_tokens=4), [1, 200], "request-token-unknown"),
        (Sampling(max_tokens=4, n=2), [1], "request-resume-unsupported"),
        (Sampling(max_tokens=4, logprobs=1), [1], "request-resume-unsupported"),
    ],
)
def test_tokens_that_cannot_be_continued_are_refused(
    sampling: Sampling, made: list[int], code: str, saved: Saved
) -> None:
    engine = Engine(saved("llama-gqa"), kv_tokens=100)
    with pytest.raises(RequestError, match=code):
        engine.submit([1, 2], sampling, made=made)
    assert engine.idle


def test_harm_that_cannot_be_done(start: Start, saved: Saved) -> None:
    engine = start(shared(1, 1))
    with pytest.raises(EngineError, match="engine-worker-unknown"):
        engine.inject_fault("model 7")
    with pytest.raises(EngineError, match="engine-harm-unknown"):
        engine.inject_fault("model 0", "insult")
    engine.close()
    with pytest.raises(EngineError, match="engine-closed"):
        engine.inject_fault("model 0")
    with pytest.raises(EngineError, match="engine-worker-unknown"):
        Engine(saved("llama-gqa"), kv_tokens=100).inject_fault("model 0")


def test_the_limits_are_within_a_second() -> None:
    """Detection as docs/workers-failures.md describes it."""
    assert heartbeat.ANSWER_S < 1
    assert heartbeat.SLOW_S < 1
    assert sys.getswitchinterval() < heartbeat.ANSWER_S
