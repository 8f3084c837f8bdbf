"""What this machine cannot run is refused before anything starts, with what to change."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.errors import UserError
from laminabench.systems.running.lamina.setup import LiveSetup, check, kv_tokens, refused
from laminabench.traces.table import Trace, TraceMeta

GB = 1e9


def a_setup(deployment: str = "1xcpu+1xcpu", name: str = "llama-mini", **more: Any) -> LiveSetup:
    return LiveSetup(model(name), name, parse_deployment(deployment), **more)


def a_trace(prompts: list[int]) -> Trace:
    rows = len(prompts)
    return Trace(np.zeros(rows), np.array(prompts, np.int32), np.full(rows, 10, np.int32), TraceMeta("small"))


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


@pytest.mark.parametrize(
    ("deployment", "code"),
    [
        ("2xcpu", "deployment-no-attention"),
        ("1xh100+1xcpu", "deployment-not-live"),
        ("1xcpu+4xh20", "deployment-not-live"),
        ("2xcpu+1xcpu", "deployment-too-few-cores"),
    ],
)
def test_deployments_that_this_machine_is_not(deployment: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        check(a_setup(deployment))


def test_what_it_is() -> None:
    check(a_setup())
    check(a_setup("2xcpu+2xcpu", oversubscribe=True, network="gloo"))
    check(a_setup(network="verbs"))
    with pytest.raises(UserError, match="deployment-heads"):
        check(a_setup("1xcpu+3xcpu", oversubscribe=True))
    for unknown in ("fhbn", "softnic"):
        with pytest.raises(UserError, match="network-not-live"):
            check(a_setup(network=unknown))


def test_a_model_that_does_not_fit() -> None:
    with pytest.raises(UserError, match="model-does-not-fit"):
        kv_tokens(a_setup(name="llama3-70b"), a_trace([5]), 20 * GB)


def test_kv_memory_by_default_is_a_quarter_of_what_is_free_or_what_can_be_used() -> None:
    setup, each = a_setup(max_sequences=2), 16_384
    assert kv_tokens(setup, a_trace([10**6] * 3), 8 * GB) == 2 * GB // each
    # The two longest at once, and a little to spare.
    assert kv_tokens(setup, a_trace([90, 5, 190]), 8 * GB) == int(300 * 1.02) + 1
    by_requests = a_setup("1xcpu+2xcpu", max_sequences=2, partition="requests")
    assert kv_tokens(by_requests, a_trace([90, 5, 190]), 8 * GB) == 2 * (int(300 * 1.02) + 1)


def test_kv_memory_as_asked_for() -> None:
    assert kv_tokens(a_setup(kv_tokens=1000), a_trace([5]), 8 * GB) == 1000
    with pytest.raises(UserError, match="kv-tokens-too-many"):
        kv_tokens(a_setup(kv_tokens=10**6), a_trace([5]), 8 * GB)


def test_the_layout_is_one_that_the_engine_takes() -> None:
    import lamina

    layout = lamina.Layout(**a_setup("2xcpu+2xcpu", batches=3, stream_chunks=2, network="shm").layout())
    assert (layout.model_workers, layout.attention_workers) == (2, 2)
    assert (layout.batches, layout.pipelining, layout.stream_chunks) == (3, "rotational", 2)
    assert lamina.Layout(**a_setup().layout()).batches == 2


def test_what_the_engine_refuses_is_a_users_error_and_a_bug_is_not() -> None:
    from lamina.fhbn import ChannelError
    from lamina.serve import EngineError

    for error in (EngineError("layout-invalid", "no more heads"), ChannelError("no more heads")):
        with pytest.raises(UserError, match="engine-refused"), refused():
            raise error
    with pytest.raises(ZeroDivisionError), refused():
        raise ZeroDivisionError
