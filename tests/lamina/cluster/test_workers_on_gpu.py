"""Workers on a GPU, and beside one, make the tokens that transformers makes, where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cluster_support import Check, Start, mixed, play, shared, sound

from lamina.cluster import Machine

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device for torch here"
)
FAMILY = "qwen3"
BOTH = {"model_on": "cuda", "attention_on": "cuda"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Workers are no clients of an MPS daemon that may run, which a kill can stall."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path_factory.mktemp("no-mps")))
        # No kernel waits longer, whatever goes wrong.
        patch.setenv("LAMINA_FHBN_LONGEST_S", "30")
        with Machine() as made:
            yield made


@pytest.mark.parametrize(
    ("layout", "backend"),
    [
        pytest.param(shared(1, 2, partition="requests", model_on="cuda"), "cudagraph", id="model"),
        pytest.param(shared(1, 1, attention_on="cuda"), "python", id="attention"),
        pytest.param(shared(1, 1, **BOTH), "python", id="two-processes"),
        # Last, because they hung on the one GPU that has run them.
        pytest.param(shared(1, 1, together=True, network="softnic", **BOTH), "python", id="together-softnic"),
        pytest.param(shared(1, 1, together=True, **BOTH), "cudagraph", id="together"),
    ],
)
def test_tokens_are_those_of_transformers(layout: Any, backend: str, check: Check) -> None:
    check(layout, FAMILY, backend=backend)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_worker_is_replaced(how: str, start: Start) -> None:
    load, layout = mixed(6), shared(1, 1, model_on="cuda")
    expected = play(start(replace(layout, model_on="cpu"), FAMILY), load)
    engine = start(layout, FAMILY, backend="cudagraph")

    def inject_fault(step: int) -> None:
        if step == 4:
            engine.inject_fault(next(name for name in engine.workers if "model" in name), how)

    assert play(engine, load, inject_fault) == expected
    sound(engine)
    assert engine.faults
