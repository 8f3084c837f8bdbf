"""Workers on GPUs make the tokens that transformers makes. The GPUs are emulated: see tests/helpers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_support import Check, Start, combined, every_combination, mixed, play, prompts, shared, sound
from emulated_gpu import in_use
from tiny_models import seeded, tiny

from lamina import Engine, Sampling
from lamina.cluster import Machine
from lamina.pipeline import EngineError

FAMILY = "qwen3"  # whose heads GPUs take
BOTH = {"model_on": "cuda", "attention_on": "cuda:0"}


@pytest.fixture(scope="module")
def machine(emulated_library: Path) -> Iterator[Machine]:
    """Where workers find an emulated GPU."""
    with in_use(emulated_library), Machine() as made:
        yield made


@pytest.fixture
def check(check: Check) -> Check:
    """A kernel's threads take turns here: half of each answer is enough to join and leave in between."""
    return partial(check, share=0.5)


@pytest.mark.long(but=["rotational-2-heads-overlap-2-1"])
@every_combination
def test_every_combination(
    check: Check, turns: str, partition: Any, overlap: bool, attention: int, ranks: int
) -> None:
    check(combined(turns, partition, attention, ranks, **BOTH), FAMILY, overlap=overlap)


@pytest.mark.long(but=["mixed-softnic"])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(shared(2, 1, batches=3, together=True, **BOTH), id="together-rotational"),
        pytest.param(shared(2, 2, pipelining="serial", together=True, **BOTH), id="together-ranks"),
        pytest.param(
            shared(1, 2, model_on="cuda", attention_on=("cuda", "cpu"), together=True, network="softnic"),
            id="together-with-a-cpu-softnic",
        ),
        pytest.param(shared(1, 2, model_on="cuda"), id="model"),
        pytest.param(shared(1, 2, attention_on="cuda"), id="attention"),
        pytest.param(
            shared(
                2, 2, batches=3, model_on=("cuda", "cpu"), attention_on=("cpu", "cuda"), network="softnic"
            ),
            id="mixed-softnic",
        ),
        pytest.param(shared(1, 1, network="softnic", **BOTH), id="softnic"),
        pytest.param(shared(1, 2, prefill_workers=1, **BOTH), id="prefill-workers"),
        pytest.param(shared(2, 2, pipeline_parallel=2, stream_chunks=2, **BOTH), id="stages-streamed"),
    ],
)
def test_workers_on_different_devices(layout: Any, check: Check) -> None:
    check(layout, FAMILY)


@pytest.mark.long(but=["overlap-together"])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(shared(2, 2, pipelining="serial", **BOTH), id="ranks"),
        pytest.param(shared(2, 1, batches=3, together=True, **BOTH), id="together"),
        pytest.param(shared(1, 1, model_on="cuda"), id="rotational"),
        pytest.param(shared(2, 1, pipeline_parallel=2, stream_chunks=2, **BOTH), id="stages-streamed"),
    ],
)
@pytest.mark.parametrize("overlap", [False, True], ids=["in-turn", "overlap"])
def test_slices_as_graphs(layout: Any, overlap: bool, check: Check) -> None:
    check(layout, FAMILY, backend="cudagraph", overlap=overlap)


def test_slices_as_graphs_need_a_gpu(start: Start) -> None:
    with pytest.raises(EngineError, match="layout-graphs-device"):
        start(shared(2, 1, model_on=("cuda", "cpu")), FAMILY, backend="cudagraph")


@pytest.mark.long
@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "llama4", "qwen3-moe"])
def test_models_of_today(family: str, check: Check) -> None:
    check(shared(1, 2, partition="requests", **BOTH), family, share=1.0)  # past their windows


@pytest.mark.long
@pytest.mark.parametrize("absorb", ["model", "attention"])
def test_latent_kv(absorb: Any, machine: Machine, tmp_path: Path) -> None:
    """Attention workers may have products of their own then."""
    seeded(tiny("DeepseekV3")).save_pretrained(tmp_path)

    def tokens(layout: Any) -> Any:
        with Engine(tmp_path, layout=layout, machine=machine, absorb=absorb, kv_tokens=500) as engine:
            return play(engine, [(text, Sampling(max_tokens=9)) for text in prompts(3, 12, 7, vocab=99)])

    layout = shared(1, 2, partition="requests", **BOTH)
    assert tokens(layout) == tokens(replace(layout, model_on="cpu", attention_on="cpu"))


@pytest.mark.long
def test_an_arena_that_is_overcommitted(check: Check) -> None:
    check(shared(1, 1, **BOTH), FAMILY, kv_tokens=64, overcommit=2.0)


def test_workers_on_gpus_are_not_killed_but_end(start: Start, machine: Machine) -> None:
    """A kill of one whose kernels wait may stall others that share the GPU."""
    engine = start(shared(1, 1, model_on="cuda"), FAMILY)
    pool = engine.core._workers  # type: ignore[union-attr]
    (pid, _), at = pool.pids, pool.names.index("model 0")
    pool._dismiss([at])
    assert machine.ends([pid])[pid] >= 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(shared(2, 2, batches=3, **BOTH), id="both"),
        pytest.param(shared(2, 2, pipelining="serial", model_on="cuda"), id="ranks"),
        pytest.param(shared(1, 2, partition="requests", attention_on="cuda"), id="attention"),
        pytest.param(shared(1, 2, network="softnic", **BOTH), id="softnic"),
        pytest.param(
            shared(2, 2, batches=3, together=True, model_on=("cuda", "cuda:1"), attention_on="cuda"),
            id="together",
        ),
    ],
)
def test_workers_that_are_lost_are_replaced(layout: Any, how: str, start: Start) -> None:
    load = mixed(10)
    expected = play(start(replace(layout, model_on="cpu", attention_on="cpu"), FAMILY), load)
    engine = start(layout, FAMILY, backend="cudagraph" if layout.model_on == "cuda" else "python")

    def inject_fault(step: int) -> None:
        if step % 4 == 3 and step // 4 < len(engine.workers):
            engine.inject_fault(engine.workers[step // 4], how)

    assert play(engine, load, inject_fault) == expected
    sound(engine)
    assert {name for fault in engine.faults for name in fault.workers} == set(engine.workers)


def test_heads_that_its_kernels_do_not_have_are_refused(start: Start) -> None:
    with pytest.raises(EngineError, match="engine-gpu-heads"):
        start(shared(1, 1, **BOTH), "llama-gqa")
    start(shared(1, 1, model_on="cuda"), "llama-gqa")


def test_a_gpu_that_is_too_small(start: Start, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_on", lambda devices: dict.fromkeys(devices, 200_000))
    with pytest.raises(EngineError, match="engine-out-of-memory") as refused:
        start(shared(1, 1, **BOTH), FAMILY)
    assert "free on cuda:0" in str(refused.value)
    with pytest.raises(EngineError, match="engine-out-of-memory"):
        start(shared(1, 1, attention_on="cuda"), FAMILY, kv_tokens=None, kv_bytes=300_000)
    # Without a size it is what the GPU has left.
    engine = start(shared(1, 1, attention_on="cuda"), FAMILY, kv_tokens=None)
    token = engine.core.facts.kv_shape.token_bytes  # type: ignore[union-attr]
    assert engine.kv_tokens == int(200_000 * 0.9) // token
