"""What this machine cannot run is refused before anything starts, with what to change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.systems.live import gpus
from laminabench.systems.live.lamina.checks import check
from laminabench.systems.live.lamina.memory import absorbing_bytes, kv_tokens
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.lamina.starting import on_cores, opened, refused
from laminabench.systems.live.local import in_dtype
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener

GB = 1e9


def a_setup(deployment: str = "1xcpu+1xcpu", name: str = "llama-mini", **more: Any) -> LiveSetup:
    return LiveSetup(model(name), name, parse_deployment(deployment), **more)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})


@pytest.fixture(autouse=True)
def _three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "names", lambda: ["NVIDIA H20", "NVIDIA H200 SXM", "NVIDIA H20"])


@pytest.mark.parametrize(
    ("deployment", "code"),
    [
        ("3xcpu", "deployment-too-few-cores"),
        ("1xh100+1xcpu", "deployment-no-gpu"),
        ("1xcpu+2xh200", "deployment-no-gpu"),
        ("2xh20", "deployment-not-live"),
        ("2xcpu+1xcpu", "deployment-too-few-cores"),
    ],
)
def test_deployments_that_this_machine_is_not(deployment: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        check(a_setup(deployment))


@pytest.mark.parametrize(
    ("deployment", "more", "devices"),
    [
        ("2xcpu", {}, {"model": ("cpu", "cpu")}),
        ("1xh200", {}, {"model": ("cuda:1",)}),
        ("1xh200+1xcpu", {}, {"model": ("cuda:1",), "attention": ("cpu",)}),
        ("1xh20+1xh20", {}, {"model": ("cuda:0",), "attention": ("cuda:2",)}),
        ("1xh200+1xh20", {}, {"model": ("cuda:1",), "attention": ("cuda:0",)}),
        ("1xh200+2xh200", {"oversubscribe": True}, {"model": ("cuda:1",), "attention": ("cuda:1",) * 2}),
    ],
)
def test_gpus_are_those_of_this_machine(deployment: str, more: dict[str, Any], devices: Any) -> None:
    made = a_setup(deployment, **more)
    check(made)
    assert made.devices() == devices


@pytest.mark.parametrize(
    ("deployment", "for_kv"),
    [
        ("1xcpu+1xh200", 0.9 * 141e9),
        ("1xh20+1xh200", 0.9 * 141e9),
        ("1xh200", 0.9 * 141e9 - 16.1e9),  # beside the weights
        ("1xh20+1xh20", 0.9 * 96e9),
        ("1xh200+1xcpu", 15e9),
    ],
)
def test_kv_fills_what_a_gpu_has_left(deployment: str, for_kv: float, trace_of: Any) -> None:
    long, shape = trace_of([10**7] * 3, [10] * 3), model("llama3.1-8b")
    result = kv_tokens(a_setup(deployment, "llama3.1-8b"), long, 60 * GB)
    assert result == pytest.approx(for_kv / shape.kv_bytes_per_token, rel=0.01)


def test_models_that_cannot_run_here() -> None:
    # Nothing here multiplies by quantized weights, and windows give no KV back.
    with pytest.raises(UserError, match="model-narrow-live"):
        in_dtype(model("gpt-oss-20b"), None)
    stored = in_dtype(model("gpt-oss-20b"), "bf16")
    assert stored.expert_dtype == "bf16"
    assert stored.kv_bytes_per_token == 2 * model("gpt-oss-20b").kv_bytes_per_token


def test_what_it_is() -> None:
    check(a_setup())
    check(a_setup("2xcpu+2xcpu", oversubscribe=True, network="gloo"))
    check(a_setup(network="verbs"))
    with pytest.raises(UserError, match="deployment-heads"):
        check(a_setup("1xcpu+3xcpu", oversubscribe=True))
    for unknown in ("fhbn", "softnic"):
        with pytest.raises(UserError, match="network-not-live"):
            check(a_setup(network=unknown))


def test_an_engine_in_one_process_has_threads_and_nothing_that_is_for_workers() -> None:
    check(a_setup("2xcpu"))
    assert a_setup("2xcpu").names() == []
    several = (parse_deployment("1xcpu"),) * 2
    for chosen in (
        {"batches": 2},
        {"network": "shm"},
        {"partition": "requests"},
        {"prefill": 1},
        {"ray": "auto"},
        {"deployments": several},
    ):
        with pytest.raises(UserError, match="deployment-no-attention"):
            check(a_setup("1xcpu", **chosen))


def test_threads_and_cores_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    pinned: list[list[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: pinned.append(list(cores)))
    threads = torch.get_num_threads()
    with on_cores(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
    assert pinned == [[0], [0, 1]]


def test_a_model_that_does_not_fit(trace_of: Any) -> None:
    with pytest.raises(UserError, match="model-does-not-fit"):
        kv_tokens(a_setup(name="llama3-70b"), trace_of([5], [10] * 1), 20 * GB)


def test_kv_memory_by_default_is_a_quarter_of_what_is_free_or_what_can_be_used(trace_of: Any) -> None:
    setup, each = a_setup(max_num_seqs=2), 16_384
    assert kv_tokens(setup, trace_of([10**6] * 3, [10] * 3), 8 * GB) == 2 * GB // each
    # The two longest at once, and a little to spare.
    assert kv_tokens(setup, trace_of([90, 5, 190], [10] * 3), 8 * GB) == int(300 * 1.02) + 1
    by_requests = a_setup("1xcpu+2xcpu", max_num_seqs=2, partition="requests")
    assert kv_tokens(by_requests, trace_of([90, 5, 190], [10] * 3), 8 * GB) == 2 * (int(300 * 1.02) + 1)


def test_kv_of_a_byte_a_number_has_room_for_twice_as_many_tokens(trace_of: Any) -> None:
    trace, result = trace_of([10**6] * 3, [10] * 3), {}
    for kv_dtype in ("auto", "fp8", "int8"):
        setup = a_setup(kv_dtype=kv_dtype)
        result[kv_dtype] = kv_tokens(setup, trace, 8 * GB)
    dim = a_setup().model.head_dim
    assert result["fp8"] == 2 * result["auto"]
    assert result["int8"] == 2 * GB * dim // (dim + 4) // (16_384 // 2)


def test_one_kv_head_is_stored_by_all_workers_that_share_its_queries(trace_of: Any) -> None:
    trace, shape = trace_of([10**6] * 3, [10] * 3), replace(model("llama-mini"), kv_heads=1)
    result = {
        (count, partition): kv_tokens(
            replace(a_setup(f"1xcpu+{count}xcpu", oversubscribe=True, partition=partition), model=shape),
            trace,
            8 * GB,
        )
        for count in (1, 4)
        for partition in ("heads", "requests")
    }
    assert result[4, "heads"] == result[1, "heads"] // 4
    assert result[4, "requests"] == result[1, "requests"] == result[1, "heads"]


def test_attention_workers_that_absorb_hold_what_they_multiply_by() -> None:
    latent = a_setup(name="deepseek-mini", absorb="attention")
    check(latent)
    shape = latent.model
    assert shape.latent
    numbers = shape.layers * shape.heads * shape.latent.kv_rank * (shape.latent.nope + shape.latent.value)
    assert absorbing_bytes(latent) == 2 * numbers
    assert absorbing_bytes(replace(latent, absorb="model")) == 0
    with pytest.raises(UserError, match="replay-flag-unused"):
        check(a_setup(absorb="attention"))


def test_kv_memory_as_requested(trace_of: Any) -> None:
    assert kv_tokens(a_setup(kv_tokens=1000), trace_of([5], [10] * 1), 8 * GB) == 1000
    with pytest.raises(UserError, match="kv-tokens-too-many"):
        kv_tokens(a_setup(kv_tokens=10**6), trace_of([5], [10] * 1), 8 * GB)


def test_a_copy_of_kv_takes_half_of_its_memory(trace_of: Any) -> None:
    trace = trace_of([10**6] * 3, [10] * 3)
    alone = kv_tokens(a_setup(), trace, 8 * GB)
    assert kv_tokens(a_setup(kv_copy="host"), trace, 8 * GB) == alone // 2
    assert kv_tokens(a_setup(kv_copy="disk"), trace, 8 * GB) == alone
    assert a_setup(kv_copy="disk").layout().kv_copies == "disk"
    with pytest.raises(UserError, match="deployment-no-attention"):
        check(a_setup("1xcpu", kv_copy="host"))


def test_overcommitted_kv_memory_is_in_addition_to_the_devices(trace_of: Any) -> None:
    trace, each = trace_of([10**6] * 3, [10] * 3), 16_384
    # By default the devices are as large as ever, where there is room for the rest as well.
    assert kv_tokens(a_setup(kv_overcommit=2.0), trace, 8 * GB) == 2 * GB // each
    assert kv_tokens(a_setup(kv_overcommit=100.0), trace, 8 * GB) < 0.08 * GB // each
    assert kv_tokens(a_setup(kv_tokens=100_000, kv_overcommit=3.0), trace, 8 * GB) == 100_000
    with pytest.raises(UserError, match="kv-tokens-too-many"):
        kv_tokens(a_setup(kv_tokens=100_000, kv_overcommit=5.0), trace, 8 * GB)


def test_the_layout_is_one_that_the_engine_takes() -> None:

    layout = a_setup("2xcpu+2xcpu", batches=3, stream_chunks=2, network="shm").layout()
    assert (layout.model_workers, layout.attention_workers) == (2, 2)
    assert (layout.batches, layout.pipelining, layout.stream_chunks) == (3, "rotational", 2)
    assert a_setup().layout().batches == 2


def test_the_engine_computes_so_many_tokens_of_prompts_with_an_iteration() -> None:
    from lamina.pipeline import CoreOptions
    from lamina.serve import Sampling

    setup = a_setup("1xcpu", "llama-tiny", prefill="model", max_batched_tokens=64)
    received: list[str] = []

    class Recorder(Listener):
        @contextlib.contextmanager
        def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
            received.append(f"{what}{unit}")
            yield lambda done, total: None
            received.append("there")

    with opened(setup, 1024, "fifo", listener=Recorder()) as engine:
        assert received == ["starting", "there"]  # so that nothing else is shown beside it
        engine.submit([1] * 100, Sampling(max_tokens=2))
        steps = []
        while not engine.idle:
            steps.append(engine.step().prompt_tokens)
    assert (max(steps), sum(steps)) == (64, 99)
    assert a_setup().max_batched_tokens == CoreOptions().prompt_tokens


def test_what_the_engine_refuses_is_a_users_error_and_a_bug_is_not() -> None:
    from lamina.fhbn import ChannelError
    from lamina.serve import EngineError

    with pytest.raises(UserError, match="engine-no-heads"), refused():
        raise EngineError("engine-no-heads", "no more heads")
    with pytest.raises(UserError, match=ChannelError.code), refused():
        raise ChannelError("it is gone")
    with pytest.raises(ZeroDivisionError), refused():
        raise ZeroDivisionError
