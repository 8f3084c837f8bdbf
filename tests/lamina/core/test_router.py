"""The router that simulator and engines share, held against its plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_reference import RouterReference

from lamina._native import Router

ROUTERS = ("round-robin", "least-requests", "least-kv", "prefix", "fit")


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from([*ROUTERS, "own"]),
    instances=st.lists(st.tuples(st.integers(50, 400), st.integers(1, 5)), min_size=1, max_size=5),
    global_queue=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["route", "route", "left", "open", "close"]),
            st.integers(1, 200),
            st.integers(1, 60),
            st.lists(st.integers(0, 9), max_size=4),
        ),
        max_size=80,
    ),
)
def test_equals_the_reference(
    name: str,
    instances: list[tuple[int, int]],
    global_queue: bool,
    steps: list[tuple[str, int, int, list[int]]],
) -> None:
    own = name == "own"
    native = Router("round-robin" if own else name, instances, global_queue=global_queue)
    plain = RouterReference(
        (lambda prompt, *_: prompt % len(instances)) if own else name, instances, global_queue
    )
    inside = []
    for what, prompt, output, prefix in steps:
        if what == "route":
            ids = np.array(prefix, np.int64)
            chosen = (
                native.route_to(prompt % len(instances), prompt, output)
                if own
                else native.route(prompt, output, ids, 32)
            )
            assert chosen == plain.route(prompt, output, prefix, 32)
            if chosen is not None:
                inside.append((chosen, prompt, output))
        elif what == "left" and inside:
            lost = inside.pop(prompt % len(inside))
            native.left(*lost)
            plain.left(*lost)
        elif what in ("open", "close"):
            instance = prompt % len(instances)
            native.open(instance, what == "open")
            (plain.closed.discard if what == "open" else plain.closed.add)(instance)
        assert native.requests.tolist() == plain.requests
        assert native.kv_tokens.tolist() == plain.kv_tokens


def test_prefix_routing_yields_to_load() -> None:
    router = Router("prefix", [(10**9, 10**6)] * 2)
    chat, other = np.array([1, 2], np.int64), np.array([7], np.int64)
    assert router.route(1024, 1, chat) == 0
    assert router.route(512, 1, other) == 1
    # 64 more than the other are no reason to leave; one more is.
    assert [router.route(1024, 1, chat) for _ in range(66)] == [0] * 65 + [1]


def test_wrong_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="round-robin"):
        Router("best", [(1, 1)])
    with pytest.raises(ValueError, match="at least one instance"):
        Router("fit", [])
    with pytest.raises(IndexError, match="instance 3 of 2"):
        Router("fit", [(1, 1)] * 2).route_to(3, 1, 1)
