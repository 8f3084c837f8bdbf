"""Processes killed, interrupted and forgotten: the engine names the process, and none is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_support import Saved, eventually, shared, workers_of
from processes import alive

from lamina import Engine, Sampling
from lamina.cluster import Layout, Machine
from lamina.serve import EngineError

FRONT = Path(__file__).with_name("front.py")
LAYOUT = shared(2, 2, batches=3, partition="requests")
LIMIT_S = 30.0  # what takes well under two seconds on a quiet machine


def trouble(engine: Engine) -> str:
    """What running on says, soon."""
    began = time.monotonic()
    with pytest.raises(EngineError) as raised:
        engine.run()
    assert time.monotonic() - began < LIMIT_S
    return str(raised.value)


@pytest.mark.long
def test_a_machine_closed_under_an_engine(saved: Saved) -> None:
    machine = Machine()
    with Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=1000) as engine:
        engine.submit([1, 2, 3], Sampling(max_tokens=50))
        engine.step()
        pids = list(engine.core._workers.pids)
        machine.close()
        assert not any(map(alive, pids))
        assert trouble(engine) == "the machine was closed: make a new one"
    with pytest.raises(EngineError, match="machine-closed"):
        Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine)
    machine.close()


def test_one_engines_trouble_is_not_anothers(saved: Saved, machine: Machine) -> None:
    folder = saved("llama-gqa")
    with (
        Engine(folder, layout=LAYOUT, machine=machine, kv_tokens=500) as first,
        Engine(folder, layout=LAYOUT, machine=machine, kv_tokens=500) as second,
    ):
        first.submit([1, 2], Sampling(max_tokens=30))
        second.submit([1, 2], Sampling(max_tokens=30))
        first.step()
        second.step()
        first.inject_fault("model 0")
        first.run()
        second.run()
        assert (len(first.faults), len(second.faults)) == (1, 0)
        first.close()
        assert len(second.generate([[5]])[0].completions[0].tokens) == 16
    assert not workers_of(machine)


def test_closing_twice_and_using_it_afterwards(saved: Saved, machine: Machine) -> None:
    engine = Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500)
    number = engine.submit([1, 2], Sampling(max_tokens=30))
    engine.step()
    engine.close()
    assert not workers_of(machine)
    engine.close()
    for use in (engine.step, engine.run, engine.core.records, engine.check_integrity, engine.core.kv_used):
        with pytest.raises(EngineError, match="engine-closed"):
            use()
    engine.cancel(number)
    assert engine.result(number).completions[0].finish_reason == "cancelled"


def test_an_engine_forgotten_without_being_closed(saved: Saved, machine: Machine) -> None:
    engine: Any = Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500)
    engine.submit([1, 2], Sampling(max_tokens=200))
    engine.step()
    pids = list(engine.core._workers.pids)
    assert all(map(alive, pids))
    del engine
    gc.collect()
    eventually(lambda: not any(map(alive, pids)))
    eventually(lambda: not workers_of(machine), "zombies are left")


@pytest.mark.long
def test_engines_leave_no_file_open(saved: Saved, machine: Machine) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500) as engine:
        engine.generate([[1, 2]])
    before, fork_server = opened(), Path(f"/proc/{machine._process.pid}/fd")  # type: ignore[union-attr]
    there = len(list(fork_server.iterdir()))
    for _ in range(3):
        with Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500) as engine:
            engine.generate([[1, 2]])
    with pytest.raises(ZeroDivisionError), Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine):
        raise ZeroDivisionError
    with Engine(saved("llama-gqa"), layout=LAYOUT, kv_tokens=500) as engine:
        engine.generate([[1, 2]])
    assert opened() == before
    assert len(list(fork_server.iterdir())) == there


def test_a_worker_that_cannot_begin(saved: Saved, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has found the front end, and after."""
    monkeypatch.setattr(Layout, "cores", lambda layout: [4095] * layout.workers)
    with pytest.raises(EngineError, match="worker-start-failed"):
        Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500)
    assert not workers_of(machine)
    monkeypatch.undo()
    with pytest.raises(EngineError, match="worker-failed"):
        Engine(saved("llama-gqa"), layout=LAYOUT, machine=machine, kv_tokens=500, backend="no such backend")
    assert not workers_of(machine)


@pytest.fixture
def front(saved: Saved) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[int]]]]:
    """Start a front end in a process of its own; give it with the pids that it started."""
    begun: list[subprocess.Popen[str]] = []

    def start(deed: str) -> tuple[subprocess.Popen[str], list[int]]:
        child = subprocess.Popen(
            [sys.executable, "-Walways::ResourceWarning", FRONT, saved("llama-gqa"), deed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(child)
        assert child.stdout
        pids = [int(word) for word in child.stdout.readline().split()]
        assert len(pids) == 1 + LAYOUT.workers
        return child, pids

    yield start
    for child in begun:
        child.kill()
        child.communicate()


def test_a_front_end_that_is_killed(front: Any) -> None:
    child, pids = front("wait")
    assert all(map(alive, pids))
    child.kill()
    eventually(lambda: not any(map(alive, pids)), "workers outlive their front end")


@pytest.mark.long
@pytest.mark.parametrize(("deed", "error"), [("raise", "ZeroDivisionError"), ("exit", "")])
def test_a_front_end_that_ends(front: Any, deed: str, error: str) -> None:
    """By an exception inside `with`, or without having closed anything."""
    child, pids = front(deed)
    _, errors = child.communicate(timeout=60)
    assert errors.strip().rpartition("\n")[2] == error
    assert child.returncode == bool(error)
    assert not any(map(alive, pids)), "nobody is left when it has ended"


@pytest.mark.long
def test_a_front_end_that_is_interrupted(front: Any) -> None:
    child, pids = front("wait")
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert errors.strip().rpartition("\n")[2] == "KeyboardInterrupt"
    assert not any(map(alive, pids))


@pytest.mark.long
def test_a_front_end_that_forgets_its_engine(front: Any) -> None:
    """And its machine with it."""
    child, pids = front("forget")
    assert child.stdout.readline() == "forgotten\n"
    eventually(lambda: not any(map(alive, pids)))
    _, errors = child.communicate(timeout=60)
    assert (errors, child.returncode) == ("", 0)
