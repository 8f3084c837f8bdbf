"""KV that is lost with an attention worker is read back from its copy, and every token stays the same."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster_support import Load, Start, harassed, mixed, play, prompts, shared, sound

from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.emulation import Emulation
from lamina.kv.copy import KvCopies
from lamina.serve import EngineError

LAYOUTS = {
    "heads": shared(2, 2, batches=3),
    "requests": shared(2, 2, batches=3, partition="requests"),
    "windows": shared(2, 2, batches=3, partition="requests"),
    "latent": shared(1, 2, partition="requests"),
    "recurrent": shared(1, 2, partition="requests"),
    "streamed": shared(1, 2, stream_chunks=2),
    "ranks": shared(2, 2, pipelining="serial"),
    "prefill": shared(1, 2, prefill_workers=1),
}
FAMILIES = {"windows": "gpt-oss", "latent": "deepseek-v3", "recurrent": "jamba"}


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(20)


@pytest.mark.long(but=["requests-host", "heads-worker"])
@pytest.mark.parametrize("where", ["host", "worker", "disk"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_workers_killed_between_steps(layout: str, where: str, load: Load, start: Start) -> None:
    """One after the other, and once both: then the copies that they have of each other are lost too."""
    family = FAMILIES.get(layout, "llama-gqa")
    expected = play(start(LAYOUTS[layout], family), load)
    recomputed = []
    for kv_copies in (where, "none"):
        engine = start(replace(LAYOUTS[layout], kv_copies=kv_copies), family)

        def inject_fault(step: int, engine: Engine = engine) -> None:
            if step == 9 or step % 5 == 3:
                engine.inject_fault(f"attention {step // 5 % 2}")
            if step == 9:
                engine.inject_fault("attention 0")

        assert play(engine, load, inject_fault) == expected
        sound(engine)
        recomputed.append(sum(fault.kv_tokens for fault in engine.faults))
    with_copies, without = recomputed
    if layout == "recurrent":  # states are computed again, from all tokens
        assert with_copies == without > 0
    else:  # what beams fork, and what has just begun
        assert with_copies < without / 2


@pytest.mark.long(but=["host"])
@pytest.mark.parametrize("where", ["host", "worker"])
def test_workers_killed_and_stopped_at_any_moment(where: KvCopies, load: Load, start: Start) -> None:
    expected = play(start(LAYOUTS["requests"]), load * 2)
    engine = start(replace(LAYOUTS["requests"], kv_copies=where))
    with harassed(engine, 11):
        made = play(engine, load * 2)
    assert made == expected
    sound(engine)


def test_all_of_a_long_sequence_is_read_back(start: Start) -> None:
    """A sequence that is not new is not computed again; its copy is released when it has ended."""
    requests = [(text, Sampling(max_tokens=30, ignore_eos=True)) for text in prompts(90, 40, 7)]
    expected = play(start(LAYOUTS["requests"]), requests)
    engine = start(replace(LAYOUTS["requests"], kv_copies="host"))

    def inject_fault(step: int) -> None:
        if step in (30, 31, 50):
            engine.inject_fault(f"attention {step % 2}")

    assert play(engine, requests, inject_fault) == expected
    assert [fault.kv_tokens for fault in engine.faults] == [0, 0, 0]
    sound(engine)
    rows = 8 * engine.max_sequences
    assert not any(any(os.pread(file.fileno(), rows, 0)) for file in engine.core._copies)


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        ({"kv_copies": "tape"}, "layout-kv-copies-unknown"),
        ({"kv_copies": "worker"}, "layout-kv-copies-alone"),
    ],
)
def test_copies_that_cannot_be(layout: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError, match=code):
        Layout(1, 1, **layout)


def test_copies_of_emulated_devices_are_refused() -> None:
    columns = ("first_slice", "mid_slice", "last_slice", "attention", "q_lead", "q_transfer", "kv_transfer")
    tables: dict[str, Any] = dict.fromkeys((*columns, "out_transfer", "migration"), np.zeros(2, np.int64))
    emulated = Emulation(layers=1, heads=1, ranks=1, pools=1, per_token=np.zeros(2), combine=0, **tables)
    with pytest.raises(EngineError, match="layout-kv-copies-place"):
        Engine(emulated, layout=shared(1, 1, kv_copies="host"), decode_only=True, kv_tokens=100)
