"""Workers as actors of a real Ray cluster of two nodes, both on this machine's loopback address.

Not verified on several machines: here all nodes share a kernel, so that "auto" finds shared memory, and gloo
stands for what two machines use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_support import Reference, Saved, eventually, shared
from processes import alive

from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.cluster.ray import slots as ray_slots
from lamina.cluster.ray.machine import RayMachine
from lamina.pipeline import check_schedule
from lamina.serve import EngineError

pytestmark = pytest.mark.long

FRONT = Path(__file__).with_name("ray_front.py")
PROMPT, TOKENS = (5, 17, 99, 3), 12
KINDS = ("compute_gpu", "memory_gpu")


@pytest.fixture(scope="module")
def ray_machine(ray_cluster: Any) -> Iterator[RayMachine]:
    """Its actors serve one engine after another: torch is imported there once."""
    with RayMachine(ray_cluster.address) as made:
        yield made


def generated(engine: Engine) -> list[int]:
    return list(engine.generate([list(PROMPT)], Sampling(max_tokens=TOKENS))[0].completions[0].tokens)


def handles_of(engine: Engine) -> list[int]:
    return list(engine.core._workers.pids)


def nodes_with(resource: str) -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if resource in node["Resources"]}


def groups() -> list[dict[str, Any]]:
    """Placement groups that are there."""
    import ray

    return [each for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]


@pytest.mark.parametrize(("network", "became"), [("auto", "shm"), ("gloo", "gloo")])
def test_tokens_and_places(
    ray_machine: RayMachine, saved: Saved, reference: Reference, network: str, became: str
) -> None:
    layout = shared(network=network)
    with Engine(saved("llama-gqa"), layout=layout, machine=ray_machine, kv_tokens=500) as engine:
        assert generated(engine) == reference("llama-gqa", PROMPT, TOKENS)
        assert engine.core.network == became
        assert check_schedule(engine.records(), engine.schedule) == []
        engine.check_integrity()
        spots = ray_machine.where(handles_of(engine))
        assert [{spot.node} for spot in spots] == [nodes_with(kind) for kind in KINDS]
        assert len({spot.pid for spot in spots}) == 2
        assert all(map(alive, [spot.pid for spot in spots]))
    assert ray_machine.ends(range(1, 3)) == {1: 0, 2: 0}, "they have ended well"


def test_a_worker_that_is_slow_to_answer_is_not_lost(
    ray_machine: RayMachine, saved: Saved, reference: Reference
) -> None:
    """The load of a node is unknown here: only a long silence counts."""
    with Engine(saved("llama-gqa"), layout=Layout(), machine=ray_machine, kv_tokens=500) as engine:
        number = engine.submit(list(PROMPT), Sampling(max_tokens=TOKENS))
        engine.step()
        attention = ray_machine.where(handles_of(engine))[1].pid
        os.kill(attention, signal.SIGSTOP)
        waking = threading.Timer(2, os.kill, (attention, signal.SIGCONT))
        waking.start()
        engine.run()
        waking.join()
        assert list(engine.result(number).completions[0].tokens) == reference("llama-gqa", PROMPT, TOKENS)
        assert not engine.faults


def test_an_actor_serves_the_next_engine(ray_machine: RayMachine, saved: Saved) -> None:
    observed = []
    for family in ("llama-gqa", "qwen3"):
        with Engine(saved(family), layout=Layout(), machine=ray_machine, kv_tokens=500) as engine:
            assert len(generated(engine)) == TOKENS
            observed.append([spot.pid for spot in ray_machine.where(handles_of(engine))])
    assert observed[0] == observed[1]


def test_more_than_there_is(ray_machine: RayMachine, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = shared(3, 1, batches=4)
    with pytest.raises(EngineError, match="ray-cluster-too-small"):
        ray_machine.cores(layout)
    before = len(groups())
    with pytest.raises(EngineError, match="ray-cluster-too-small"):
        Engine(saved("llama-gqa"), layout=layout, machine=ray_machine)
    assert len(groups()) == before
    monkeypatch.setattr(ray_slots, "RESOURCES", {"model": "no_such", "attention": "no_such"})
    with pytest.raises(EngineError, match="ray-cluster-too-small"):
        ray_machine.cores(Layout(2, 1, batches=3))


def test_more_than_is_free(
    ray_machine: RayMachine, saved: Saved, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_slots, "_ROOM_S", 1)
    with (
        Engine(saved("llama-gqa"), layout=Layout(), machine=ray_machine, kv_tokens=500),
        RayMachine(ray_cluster.address) as other,
    ):
        before = len(groups())
        with pytest.raises(EngineError, match="ray-no-room"):
            Engine(saved("llama-gqa"), layout=shared(2, 1, batches=3), machine=other)
        assert len(groups()) == before


def test_workers_on_cores(
    ray_cluster: Any,
    ray_machine: RayMachine,
    saved: Saved,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On nodes with cores only; one is killed, another takes its bundle, and none is left."""
    monkeypatch.setattr(ray_slots, "RESOURCES", {"model": "no_such", "attention": "no_such"})
    assert ray_machine.host == "127.0.0.1"
    before, tokens = len(groups()), 60
    with (
        RayMachine(ray_cluster.address) as machine,
        Engine(saved("llama-gqa"), layout=Layout(), machine=machine, kv_tokens=500) as engine,
    ):
        model, attention = machine.where(handles_of(engine))
        assert {model.node, attention.node} == nodes_with("CPU")
        killed = handles_of(engine)[1]
        number = engine.submit(list(PROMPT), Sampling(max_tokens=tokens))
        for _ in range(5):
            engine.step()
        machine.inject_fault(killed, "kill")
        engine.run()
        assert machine.ends([killed]) == {killed: -9}
        assert "killed" in machine.errors()
        assert list(engine.result(number).completions[0].tokens) == reference("llama-gqa", PROMPT, tokens)
        shared_engine, fresh = machine.where(handles_of(engine))
        assert (shared_engine.pid, fresh.node) == (model.pid, attention.node)
        assert fresh.pid != attention.pid
        assert len(groups()) == before + 1
    assert len(groups()) == before
    eventually(lambda: not any(map(alive, (model.pid, attention.pid, fresh.pid))))
    with pytest.raises(EngineError, match="machine-closed"):
        machine.cores(Layout())


def test_a_front_end_that_is_killed(ray_cluster: Any, ray_machine: RayMachine, saved: Saved) -> None:
    before = len(groups())
    assert ray_machine.host == "127.0.0.1"
    child = subprocess.Popen(
        [sys.executable, FRONT, saved("llama-gqa"), ray_cluster.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout
        pids = [int(word) for word in child.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        assert len(groups()) == before + 1
    finally:
        child.kill()
        child.communicate()
    eventually(lambda: not any(map(alive, pids)), "workers outlive their front end")
    eventually(lambda: len(groups()) == before, "what was reserved was not given back")
