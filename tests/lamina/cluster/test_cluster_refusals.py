"""What cannot be is refused before anything starts, in a sentence that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cluster_support import Saved, shared, workers_of

from lamina import Engine, host_memory
from lamina.cluster import Layout, Machine
from lamina.serve import EngineError


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"model_workers": 0}, "engine-count-invalid"),
        ({"attention_workers": 1.5}, "engine-count-invalid"),
        ({"attention_workers": True}, "engine-count-invalid"),
        ({"stream_chunks": 0}, "engine-count-invalid"),
        ({"prefill_workers": -1}, "engine-count-invalid"),
        ({"batches": 0}, "engine-count-invalid"),
        ({"batches": "many"}, "engine-count-invalid"),
        ({"pipelining": "round"}, "layout-pipelining-unknown"),
        ({"partition": "layers"}, "layout-partition-unknown"),
        ({"stream_along": "layers"}, "layout-partition-unknown"),
        ({"experts": "dp"}, "layout-experts-unknown"),
        ({"experts": "ep"}, "layout-experts-alone"),
        ({"network": "carrier pigeon"}, "layout-network-unknown"),
        ({"network": "nccl"}, "layout-network-unknown"),
        ({"model_on": "cuda:x"}, "layout-device-unknown"),
        ({"attention_on": ("cpu", 1), "attention_workers": 2}, "layout-device-unknown"),
        ({"attention_on": ("cpu", "cuda:1")}, "layout-devices-count"),
        ({"pipelining": "serial", "batches": 2}, "layout-serial-batches"),
        ({"model_workers": 3, "batches": 3}, "layout-replicas-uneven"),
        ({"pipelining": "fixed"}, "layout-replicas-uneven"),
        ({"model_workers": 3, "pipeline_parallel": 2}, "layout-replicas-uneven"),
        ({"pipeline_parallel": 2, "batches": 3}, "layout-stages-batches"),
        ({"pipeline_parallel": 2, "pipelining": "rotational"}, "layout-stages-batches"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_layouts_that_contradict_themselves(more: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineError, match=f"{code}$"):
        Layout(**({"model_workers": 1} | more))


def test_batches_that_pipelining_settles() -> None:
    assert Layout(pipelining="serial").batches == 1
    assert Layout(batches=1).pipelining == "serial"
    assert (Layout().pipelining, Layout().batches) == ("rotational", 2)
    staged = Layout(4, pipeline_parallel=2)
    assert (staged.pipelining, staged.batches, staged.places, staged.ranks) == ("fixed", 2, 2, 2)


def test_devices_are_those_of_the_workers() -> None:
    assert Layout(2, 1, prefill_workers=1, model_on="cuda:1").devices == ["cuda:1", "cuda:1", "cpu", "cpu"]
    assert Layout(1, 2, attention_on=["cuda", "cpu"]).devices == ["cpu", "cuda:0", "cpu"]  # type: ignore[arg-type]


@pytest.fixture
def unborn() -> Machine:
    """A machine that has not been used."""
    return Machine()


def refused(model: Any, layout: Layout, machine: Machine, **options: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        Engine(model, layout=layout, machine=machine, **options)
    return caught.value


@pytest.mark.parametrize(
    ("model", "layout", "options", "code"),
    [
        (None, Layout(500, 500), {}, "layout-cores-too-few"),
        (None, None, {"device": "cuda"}, "layout-device-elsewhere"),
        (None, None, {"overcommit": 1001.0}, "engine-overcommit-invalid"),
        ("/no/such/model", None, {}, "model-not-found"),
        (5, None, {}, "layout-model-object"),
        (None, shared(attention_on="cuda", kv_copies="host"), {}, "layout-kv-copies-place"),
        ("an object", None, {}, "layout-model-object"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_before_a_process_starts(
    saved: Saved,
    small_model: Any,
    unborn: Machine,
    model: Any,
    layout: Layout | None,
    options: dict[str, Any],
    code: str,
) -> None:
    if model == "an object":
        model = small_model("llama-gqa")
    given = saved("llama-gqa") if model is None else model
    assert refused(given, layout or shared(), unborn, **options).code == code
    assert unborn._process is None


@pytest.mark.parametrize(
    ("family", "layout", "options", "code"),
    [
        ("llama-gqa", shared(1, 3), {}, "layout-heads-uneven"),
        ("llama-gqa", shared(4, 1), {}, "layout-heads-uneven"),
        ("llama", shared(3, 1, batches=2), {}, "layout-heads-uneven"),
        ("llama-gqa", shared(4, 1, pipeline_parallel=4), {}, "layout-too-many-stages"),
        ("llama-gqa", shared(2, 1, batches=3), {"max_sequences": 2}, "engine-max-sequences-too-few"),
        ("llama-gqa", shared(1, 2, partition="requests"), {"kv_tokens": 1}, "engine-kv-too-small"),
        ("llama-gqa", shared(), {"kv_bytes": 3}, "engine-kv-too-small"),
        ("llama-gqa", shared(attention_on="cuda"), {"kv_dtype": "int8"}, "engine-kv-dtype-gpu"),
        ("llama-gqa", shared(prefill_workers=1), {"decode_only": True}, "layout-prefill-without-prompts"),
        ("llama-gqa", shared(), {"kv_tokens": 1 << 24, "overcommit": 1000.0}, "engine-out-of-memory"),
        ("lfm2", shared(2, 1, batches=2), {}, "layout-model-has-state"),
        ("lfm2", shared(2, 1, batches=3), {}, "layout-model-has-state"),
        ("lfm2", shared(prefill_workers=1), {}, "layout-model-has-state"),
        ("lfm2", shared(), {"max_sequences": 1 << 40}, "engine-states-too-large"),
        ("lfm2", shared(), {"max_sequences": 1 << 40, "kv_tokens": 9}, "engine-out-of-memory"),
    ],
)
def test_once_the_model_is_known_and_before_a_worker_starts(
    saved: Saved, machine: Machine, family: str, layout: Layout, options: dict[str, Any], code: str
) -> None:
    assert refused(saved(family), layout, machine, **options).code == code
    assert not workers_of(machine)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_gpu_that_is_not_there(saved: Saved, machine: Machine) -> None:
    """Asked of its driver, by a process that is for nothing else."""
    code = refused(saved("llama-gqa"), shared(model_on="cuda"), machine).code
    assert code in {"cuda-no-library", "cuda-failed", "cuda-torch-without"}
    assert not workers_of(machine)


@pytest.mark.parametrize("ranks", [1, 2])
def test_too_little_memory_is_refused(
    saved: Saved, machine: Machine, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Cut up for ranks, weights are there twice."""
    loaded: list[object] = []
    monkeypatch.setattr(machine, "start", lambda *requested: loaded.append(requested))
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 1_500_000_000)
    layout = shared(ranks, 2, pipelining="serial", partition="requests")
    error = refused(saved("llama-gqa"), layout, machine, kv_bytes=2_000_000_000)
    assert error.code == "engine-out-of-memory"
    assert "2.0 GB of KV are 0.5 GB more than the 1.5 GB" in str(error)
    copied = replace(layout, kv_copies="host")
    error = refused(saved("llama-gqa"), copied, machine, kv_bytes=1_000_000_000)
    assert "1.0 GB of KV and 1.0 GB of copies of KV are 0.5 GB more" in str(error)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 100_000)
    assert refused(saved("llama-gqa"), layout, machine, kv_tokens=2).code == "engine-out-of-memory"
    assert not workers_of(machine)
    assert not loaded


def test_stages_in_ranks_have_their_shares_of_their_slices(
    saved: Saved, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As loaded, and once more for all stages together."""
    folder = saved("llama-gqa")
    weights = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(host_memory, "free_bytes", lambda: int(1.9 * weights))
    layout = shared(4, 1, pipeline_parallel=2)
    assert refused(folder, layout, machine, kv_tokens=2).code == "engine-out-of-memory"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "parrot"}'), "parrot"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no weights"), "model.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "model.safetensors"),
    ],
    ids=["no-json", "no-config", "unknown-kind", "no-weights", "damaged-weights", "cut-off-weights"],
)
def test_a_damaged_folder_leaves_the_machine_as_good_as_before(
    small_model: Any,
    saved: Saved,
    tmp_path: Path,
    machine: Machine,
    damage: Callable[[Path], object],
    sentence: str,
) -> None:
    small_model("llama-gqa").save_pretrained(tmp_path)
    damage(tmp_path)
    message = str(refused(tmp_path, shared(), machine, kv_tokens=100))
    assert sentence in message
    assert len(message) < 500
    assert not workers_of(machine)
    with Engine(saved("llama-gqa"), layout=shared(), machine=machine) as engine:
        assert len(engine.generate([[1, 2]])[0].completions[0].tokens) == 16


def test_a_replaced_model_in_the_same_folder_is_loaded(
    small_model: Any, saved: Saved, tmp_path: Path, machine: Machine
) -> None:
    """A machine remembers models; not those that have been written over."""
    observed = []
    for family in ("llama-gqa", "llama", "llama-gqa"):
        small_model(family).save_pretrained(tmp_path)
        for folder in (tmp_path, saved(family)):
            layout = shared()
            with Engine(folder, layout=layout, machine=machine, kv_tokens=100) as engine:
                observed.append(engine.generate([[1, 2]])[0].completions[0].tokens)
    assert observed[0::2] == observed[1::2]
    assert observed[0] != observed[2]


def test_a_config_needs_dummy_weights(small_model: Any, machine: Machine) -> None:
    config: transformers.PretrainedConfig = small_model("llama-gqa").config
    layout = shared()
    assert "load_format" in str(refused(config, layout, machine))
    with Engine(config, layout=layout, machine=machine, load_format="dummy", kv_tokens=100) as engine:
        assert len(engine.generate([[1, 2]])[0].completions[0].tokens) == 16
        assert engine.core.facts.layers == 3
