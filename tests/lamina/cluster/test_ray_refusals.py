"""A Ray machine without a cluster: errors, and the placement of workers."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from lamina.cluster import Layout
from lamina.cluster.machine import last_sentence
from lamina.cluster.messages import ModelSource, WorkerConfig
from lamina.cluster.ray import slots as ray_session
from lamina.cluster.ray import slots as ray_slots
from lamina.cluster.ray.machine import RayMachine, placed_on_nodes, require_memory, require_version
from lamina.cluster.ray.slots import RayWorker, Spot, installed_version
from lamina.operators import Attended
from lamina.pipeline import EngineError, Partition
from lamina.pipeline.options import ModelFacts

SPOT = Spot(
    version="1.0", host="10.0.0.1", node="a", pid=1, kernel="one", cores=(2, 3), free_bytes=100, loaded=False
)
CONFIG = WorkerConfig(
    name="model 0",
    host="127.0.0.1",
    address="127.0.0.1:1",
    secret=b"secret",
    core=0,
    device="cpu",
    kind="model",
    number=0,
    layout=Layout(pipelining="serial"),
    slices=3,
    partition=Partition("heads", 1, 1, 8, 2),
    most_rows=8,
    max_positions=256,
    arena_tokens=10,
    overcommit=0.0,
    decode_only=False,
    overlap=False,
    backend="python",
    spin_s=0.5,
)
ATTENTION = replace(CONFIG, name="attention 0", kind="attention")
FACTS = ModelFacts(120, 256, (), 2, 8, 2, 8, 0, "float32", 4, weight_bytes=40)


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has not joined a cluster."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was asked"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("local", "ray-no-cluster"),
        ("", "ray-no-cluster"),
        ("ray://there:10001", "ray-client-address"),
        ("there", "ray-address-invalid"),
        ("there:0", "ray-address-invalid"),
        ("there:99999", "ray-address-invalid"),
    ],
)
def test_addresses_that_cannot_be(address: str, code: str) -> None:
    with pytest.raises(EngineError, match=code):
        RayMachine(address)


@pytest.mark.usefixtures("no_ray")
def test_no_listener_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match="ray-no-cluster"):
        RayMachine(f"127.0.0.1:{port}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(EngineError, match="ray-no-cluster"):
        RayMachine()


@pytest.mark.usefixtures("no_ray")
def test_a_missing_ray_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nAnd more.")

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(EngineError, match="ray-join-failed"):
        RayMachine("auto")


@pytest.mark.parametrize("initialised", [True, False])
def test_machines_that_joined_ray_leave_it(initialised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last machine; a session of other code stays."""
    done: list[str] = []
    monkeypatch.setattr("ray.is_initialized", lambda: initialised or "init" in done)
    monkeypatch.setattr("ray.init", lambda **_: done.append("init"))
    monkeypatch.setattr("ray.shutdown", lambda: done.append("shutdown"))
    session = ray_session.Session()
    session.join("auto")
    session.join("auto")
    session.leave()
    assert "shutdown" not in done
    session.leave()
    assert done == ([] if initialised else ["init", "shutdown"])


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match="ray-not-installed"):
        RayMachine("127.0.0.1:1")


@pytest.mark.parametrize(
    ("hosts", "own"), [(["10.0.0.1"], "127.0.0.1"), (["10.0.0.1", "10.0.0.2"], "10.0.0.1")]
)
def test_where_the_front_end_listens(hosts: list[str], own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback while all nodes are this one; a dead node does not count."""
    nodes = [{"NodeManagerAddress": host, "Alive": True} for host in hosts]
    nodes.append({"NodeManagerAddress": "10.0.0.9", "Alive": False})
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.1")
    assert ray_session.own_host() == own


def offering(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, float]) -> None:
    monkeypatch.setattr(ray_slots, "alive_nodes", lambda: [{"Resources": each} for each in nodes])


def test_resources_of_each_kind_of_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, {"CPU": 4.0, "memory_gpu": 1.5}, {"CPU": 2.0, "memory_gpu": 0.5})
    slots = ray_slots.Slots()
    results = [slots.resource_of(kind) for kind in ("model", "prefill", "attention")]
    assert results == ["CPU", "CPU", "memory_gpu"]
    slots.slots.append(ray_slots.Slot(None, 0, "compute_gpu"))
    assert slots.resource_of("model") == "compute_gpu", "whose node has just gone"
    ray_slots.require_room(["CPU"] * 6 + ["memory_gpu"])
    with pytest.raises(EngineError, match="ray-cluster-too-small"):
        ray_slots.require_room(["memory_gpu"] * 2)
    with pytest.raises(EngineError, match="ray-cluster-too-small"):
        ray_slots.require_room(["CPU"] * 7)


def test_cores_of_nodes() -> None:
    """Workers on one machine take different ones, and spin no more once they must share them."""
    elsewhere = replace(SPOT, kernel="other", host="10.0.0.2", cores=(0,))
    used: Counter[tuple[str, int]] = Counter()
    placed = placed_on_nodes([CONFIG, ATTENTION, ATTENTION], [SPOT, SPOT, elsewhere], used, spans=True)
    assert [(config.core, config.host, config.spin_s) for config in placed] == [
        (2, "10.0.0.1", 0.5),
        (3, "10.0.0.1", 0.5),
        (0, "10.0.0.2", 0.5),
    ]
    more = placed_on_nodes([ATTENTION], [SPOT], used, spans=False)
    assert [(config.core, config.host, config.spin_s) for config in more] == [(2, "127.0.0.1", 0.0)]


def test_the_same_package_on_every_node() -> None:
    require_version(["model 0"], [replace(SPOT, version=installed_version())])
    with pytest.raises(EngineError, match="ray-version-differs"):
        require_version(["model 0"], [SPOT])


def test_workers_too_large_for_a_node_are_refused() -> None:
    """Weights as they are loaded and packed, and KV: 80 and 2 x 2 x 2 x 8 x 4 = 256 bytes a token."""
    require_memory(FACTS, [CONFIG], [SPOT])
    require_memory(FACTS, [CONFIG, ATTENTION], [SPOT, replace(SPOT, kernel="other", free_bytes=2560)])
    with pytest.raises(EngineError, match="engine-out-of-memory"):
        require_memory(FACTS, [CONFIG, replace(CONFIG, name="model 1")], [SPOT, SPOT])
    require_memory(FACTS, [CONFIG, CONFIG], [SPOT, replace(SPOT, loaded=True)])
    with pytest.raises(EngineError, match="engine-out-of-memory"):
        require_memory(FACTS, [ATTENTION], [replace(SPOT, free_bytes=2559)])
    # 3 sequences, which each of two places has a part of.
    stateful = msgspec.structs.replace(FACTS, state_bytes=100)
    staged = replace(CONFIG, layout=Layout(2, pipeline_parallel=2, batches=2), most_rows=3)
    require_memory(stateful, [staged], [replace(SPOT, free_bytes=230)])
    with pytest.raises(EngineError, match="engine-out-of-memory"):
        require_memory(stateful, [staged], [replace(SPOT, free_bytes=229)])


def test_a_model_that_a_node_has_not(tmp_path: Path) -> None:
    model = ModelSource(str(tmp_path / "nowhere"), None, "carry", "safetensors")
    actor = RayWorker()
    assert "nowhere" in str(actor.prepare(model, "model"))
    status, text = actor.run(CONFIG, model, Attended((), torch.float32, ()))
    assert status == 1
    assert "nowhere" in last_sentence(text)
