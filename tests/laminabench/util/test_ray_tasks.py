"""Work as tasks of a real Ray cluster of two nodes, on the loopback address."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

import pytest

import laminabench.util.parallel
from laminabench.util.errors import UserError
from laminabench.util.parallel import spread

pytestmark = pytest.mark.long

# A FIFO is open when both its ends are: for two who are there at the same time, on nodes of one core each.
MEET = "(open({fifo!r}, mode).close(), __import__('ray').get_runtime_context().get_node_id())[1]"


def test_both_nodes_get_work_and_it_is_left_again(ray_cluster: Any, tmp_path: Path) -> None:
    import ray

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    meet = MEET.format(fifo=str(fifo))
    places = [node for _, node in spread(eval, [{"mode": "w"}, {"mode": "r"}], meet, ray=ray_cluster.address)]
    assert not ray.is_initialized()
    assert set(places) == {node.node_id for node in ray_cluster.list_all_nodes()}


def test_auto_is_the_cluster_that_ray_knows_of(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    assert dict(spread(operator.mul, [3, 4], 10, ray="auto")) == {0: 30, 1: 40}


def test_errors_are_those_of_the_work(ray_cluster: Any) -> None:
    with pytest.raises(ZeroDivisionError, match=r"^division by zero$"):
        list(spread(operator.truediv, [1, 0], 1, ray=ray_cluster.address))
    with pytest.raises(UserError, match="ray-worker-lost"):
        list(spread(operator.call, [1], os._exit, ray=ray_cluster.address))


def test_another_version_on_a_node(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laminabench.util.parallel, "__version__", "0.0.1")
    with pytest.raises(UserError, match="ray-version-differs"):
        list(spread(operator.mul, [3], 10, ray=ray_cluster.address))


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("127.0.0.1:1", "ray-no-cluster"),
        ("ray://127.0.0.1:1", "ray-bad-address"),
        ("local", "ray-bad-address"),
        ("127.0.0.1:x", "ray-bad-address"),
    ],
)
def test_no_answer(address: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        list(spread(operator.mul, [3], 10, ray=address))
