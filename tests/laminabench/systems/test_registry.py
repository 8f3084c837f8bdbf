"""Each choice is for some systems, and refused for the others in one way."""

from __future__ import annotations

from typing import Any

import pytest

from laminabench.requests.replay import FIELDS, ReplayRequest
from laminabench.systems.registry import LIVE, MODULES, NAMES, live_system, prepare, system
from laminabench.util.errors import UserError


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("vllm", {"batches": 2}, "--batches is for lamina, lamina-v1, afd, live lamina, not for vllm"),
        ("vllm", {"overlap": False}, "--no-overlap is for lamina"),
        ("vllm", {"mapping": "greedy"}, "--mapping is for h2m2, not for vllm"),
        ("lamina", {"board": "h2m2"}, "--board is for h2m2, not for lamina"),
        ("lamina", {"chaos": ("random@t=1s",)}, "--chaos is for live lamina, not for lamina"),
        ("lamina", {"url": "http://x"}, "--url is for live openai, not for lamina"),
        ("lamina", {"enforce_eager": True}, "--enforce-eager is for live vllm, not for lamina"),
        ("lamina", {"enforce_eager": True, "backend": "live"}, "not for live lamina"),
        ("lamina", {"costs": "roofline", "backend": "live"}, "not for live lamina: times are the clock's"),
        ("vllm", {"policy": "sjf", "backend": "live"}, "not for live vllm: it has one batch"),
        ("h2m2", {"batches": 2}, "not for h2m2: a board has the whole model"),
        ("h2m2", {"overlap": False}, "--no-overlap is for lamina"),
        ("h2m2", {"prefix_sharing": True}, "--prefix-sharing is for lamina"),
        ("h2m2", {"block_size": 16}, "--block-size is for lamina"),
        ("h2m2", {"gpu_memory_utilization": 0.8}, "--gpu-memory-utilization is for lamina"),
        ("openai", {"timeline": "t.json"}, "its workers are not visible"),
        ("vllm", {"instances": 2, "backend": "live"}, "--instances is for lamina"),
        ("vllm", {"slo_ttft_ms": 9.0}, "add --prefill colocated, or pool:2xh100"),
        ("lamina", {"router": "prefix"}, "--router is for several instances, and 2xh100+4xh20 is one"),
        ("lamina", {"queue": "global", "backend": "live"}, "--queue is for several instances"),
        ("h2m2", {"router": "fit"}, "--router is for several instances, and 1xh2m2 is one"),
    ],
)
def test_what_a_system_does_not_take(name: str, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="replay-flag-unused") as error:
        prepare(ReplayRequest(trace="t", system=name, **chosen))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("vllm", {"instances": 2}),
        ("vllm", {"instances": 1}),  # of a sweep
        ("vllm", {"deployment": "4xh100,8xh100"}),
        ("h2m2", {"deployment": "2xh2m2"}),
    ],
)
def test_several_instances_have_a_router_and_a_queue(name: str, chosen: dict[str, Any]) -> None:
    requested = ReplayRequest(trace="t", system=name, router="fit", queue="global", **chosen)
    assert prepare(requested).request.router == "fit"


@pytest.mark.parametrize(("name", "backend"), [("lamina", "live"), ("vllm", "live"), ("openai", None)])
def test_live_prompts_have_no_devices_of_a_catalogue(name: str, backend: Any) -> None:
    with pytest.raises(UserError, match=r"replay-prefill|replay-flag-unused"):
        prepare(ReplayRequest(trace="t", system=name, backend=backend, prefill="pool:2xh100"))


@pytest.mark.parametrize("name", MODULES)
def test_what_a_system_does_anyway_may_be_chosen(name: str) -> None:
    result = system(name)
    assert prepare(ReplayRequest(trace="t", system=name, **result.ANYWAY)).request.system == name


@pytest.mark.parametrize(
    ("name", "backend", "code"),
    [
        ("h2m2", "live", "replay-not-live"),
        ("lamina-v1", "live", "replay-not-live"),
        ("openai", "modelled", "replay-not-modelled"),
        ("lamina-v3", "modelled", "system-unknown"),
    ],
)
def test_what_is_there_on_one_backend_or_not_at_all(name: str, backend: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        prepare(ReplayRequest(trace="t", system=name, backend=backend))


def test_what_systems_say_of_choices_is_of_choices_there_are() -> None:
    for result in [*map(system, MODULES), *map(live_system, LIVE)]:
        assert result.TAKES | set(result.ANYWAY) <= set(FIELDS)
    assert set(NAMES) == set(MODULES) | set(LIVE)


def test_a_request_is_settled_and_stays_so() -> None:
    settled = prepare(ReplayRequest(trace="t", system="vllm")).request
    assert (settled.model, settled.deployment, settled.backend) == ("llama3-70b", "4xh100", "modelled")
    assert prepare(settled).request == settled
