"""What cannot be is refused before anything starts, in a sentence that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lamina import Engine, host_memory
from lamina.cluster import Layout, Machine
from lamina.serve import EngineError

Saved = Callable[..., Path]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"model_workers": 0}, "model_workers is 0: give a whole number from 1"),
        ({"attention_workers": 1.5}, "attention_workers is 1.5: give a whole number from 1"),
        ({"attention_workers": True}, "attention_workers is True: give a whole number from 1"),
        ({"stream_chunks": 0}, "stream_chunks is 0: give a whole number from 1"),
        ({"batches": 0}, "batches is 0: give a whole number from 1"),
        ({"batches": "many"}, "batches is 'many': give a whole number from 1"),
        ({"pipelining": "round"}, "pipelining 'round': known are serial, rotational, fixed"),
        ({"partition": "layers"}, "partition 'layers': known are heads, requests"),
        ({"stream_along": "layers"}, "stream_along 'layers': known are heads, requests"),
        ({"network": "carrier pigeon"}, "network 'carrier pigeon': known between workers on CPUs are auto,"),
        ({"network": "nccl"}, "network 'nccl': known between workers on CPUs are auto,"),
        ({"pipelining": "serial", "batches": 2}, "serial execution has one batch, not 2: choose rotational"),
        (
            {"model_workers": 3, "batches": 3},
            "3 model workers do not divide into the 2 replicas of 3 batches",
        ),
        (
            {"pipelining": "fixed"},
            "1 model workers do not divide into the 2 replicas of 2 batches: give a mul",
        ),
        (
            {"model_workers": 3, "pipeline_parallel": 2},
            "3 model workers do not divide into the 2 stages: give",
        ),
        (
            {"pipeline_parallel": 2, "batches": 3},
            "2 pipeline stages take 2 batches, fixed: leave batches and",
        ),
        ({"pipeline_parallel": 2, "pipelining": "rotational"}, "2 pipeline stages take 2 batches, fixed"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_layouts_that_contradict_themselves(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError) as refused:
        Layout(**({"model_workers": 1} | more))
    assert str(refused.value).startswith(sentence)


def test_batches_that_pipelining_settles() -> None:
    assert Layout(pipelining="serial").batches == 1
    assert Layout(batches=1).pipelining == "serial"
    assert (Layout().pipelining, Layout().batches) == ("rotational", 2)
    staged = Layout(4, pipeline_parallel=2)
    assert (staged.pipelining, staged.batches, staged.places, staged.ranks) == ("fixed", 2, 2, 2)


@pytest.fixture
def unborn() -> Machine:
    """A machine that nobody has asked for anything."""
    return Machine()


def refused(model: Any, layout: Layout, machine: Machine, **options: Any) -> str:
    with pytest.raises(EngineError) as caught:
        Engine(model, layout=layout, machine=machine, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "layout", "options", "sentence"),
    [
        (
            None,
            Layout(500, 500),
            {},
            "500 model and 500 attention workers need 1000 cores, and {cores} may be used: give fewer "
            "workers, or let them share cores (oversubscribe)",
        ),
        (
            None,
            None,
            {"device": "cuda"},
            "workers on GPUs are not there yet: leave device out, or leave layout",
        ),
        (
            None,
            None,
            {"overcommit": 0.5},
            "overcommit is for an engine in one process: leave it out, or leave",
        ),
        (None, None, {"dtype": torch.int8}, "dtype is torch.int8: known are torch.float32, "),
        (None, None, {"kv_tokens": 0}, "kv_tokens is 0: give a whole number from 1"),
        (
            None,
            None,
            {"kv_tokens": 5, "kv_bytes": 5},
            "the KV memory is given in tokens and in bytes: give one",
        ),
        (None, None, {"policy": "luck"}, "policy 'luck': known are fifo, sjf, or a function of your own"),
        (None, None, {"admission": "luck"}, "admission 'luck': known are reserve, grow"),
        (None, None, {"load_format": "luck"}, "load_format 'luck': known are safetensors, dummy"),
        ("/no/such/model", None, {}, "there is no model at /no/such/model: give a folder or a config.json"),
        (5, None, {}, "workers load the model themselves: give its folder or its config, not a model object"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_before_a_process_starts(
    saved: Saved, unborn: Machine, make: Any, layout: Layout | None, options: dict[str, Any], sentence: str
) -> None:
    model = saved("llama-gqa") if make is None else make
    said = refused(model, layout or Layout(oversubscribe=True), unborn, **options)
    assert said.startswith(sentence.format(cores=len(os.sched_getaffinity(0))))
    assert unborn._process is None


def test_a_model_object(small_model: Any, unborn: Machine) -> None:
    said = refused(small_model("llama-gqa"), Layout(oversubscribe=True), unborn)
    assert said == "workers load the model themselves: give its folder or its config, not a model object"
    assert unborn._process is None


@pytest.mark.parametrize(
    ("family", "layout", "options", "sentence"),
    [
        (
            "llama-gqa",
            Layout(1, 3, oversubscribe=True),
            {},
            "2 KV heads do not split over 3 attention workers: possible are 1, 2, or partition by requests",
        ),
        (
            "llama-gqa",
            Layout(4, 1, oversubscribe=True),
            {},
            "2 KV heads do not split over 4 model workers of a replica: possible are 1, 2",
        ),
        (
            "llama",
            Layout(3, 1, batches=2, oversubscribe=True),
            {},
            "8 KV heads do not split over 3 model workers of a replica: possible are 1, 2, 4, 8",
        ),
        (
            "llama-gqa",
            Layout(4, 1, pipeline_parallel=4, oversubscribe=True),
            {},
            "the model has 3 layers, too few for 4 stages",
        ),
        (
            "llama-gqa",
            Layout(2, 1, batches=3, oversubscribe=True),
            {"max_sequences": 2},
            "2 sequences do not fill 3 batches: allow more",
        ),
        (
            "llama-gqa",
            Layout(1, 2, partition="requests", oversubscribe=True),
            {"kv_tokens": 1},
            "1 KV tokens do not divide into 2 attention workers: give more",
        ),
        (
            "llama-gqa",
            Layout(oversubscribe=True),
            {"kv_bytes": 3},
            "3 bytes of KV memory hold no token of 384: give more",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_once_the_model_is_known_and_before_a_worker_starts(
    saved: Saved,
    machine: Machine,
    workers_of: Callable[[Machine], list[int]],
    family: str,
    layout: Layout,
    options: dict[str, Any],
    sentence: str,
) -> None:
    assert refused(saved(family), layout, machine, **options).startswith(sentence)
    assert not workers_of(machine)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_does_not_fit_in_memory(
    saved: Saved,
    machine: Machine,
    workers_of: Callable[[Machine], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
) -> None:
    """Cut up for ranks, weights are there twice."""
    loaded: list[object] = []
    monkeypatch.setattr(machine, "load", loaded.append)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 1_500_000_000)
    layout = Layout(ranks, 2, pipelining="serial", partition="requests", oversubscribe=True)
    said = refused(saved("llama-gqa"), layout, machine, kv_bytes=2_000_000_000)
    assert said.startswith(
        "0.0 GB of weights and 2.0 GB of KV are 0.5 GB more than the 1.5 GB that are free: take"
    )
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 100_000)
    said = refused(saved("llama-gqa"), layout, machine, kv_tokens=2)
    assert said.endswith("take a smaller model, fewer KV tokens or fewer tensor-parallel workers")
    assert not workers_of(machine)
    assert not loaded


def test_stages_in_ranks_have_their_shares_of_all_slices(
    saved: Saved, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As loaded, and once more for each stage."""
    folder = saved("llama-gqa")
    weights = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(host_memory, "free_bytes", lambda: int(2.5 * weights))
    layout = Layout(4, 1, pipeline_parallel=2, oversubscribe=True)
    assert "more than" in refused(folder, layout, machine, kv_tokens=2)


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
    workers_of: Callable[[Machine], list[int]],
    damage: Callable[[Path], object],
    sentence: str,
) -> None:
    small_model("llama-gqa").save_pretrained(tmp_path)
    damage(tmp_path)
    said = refused(tmp_path, Layout(oversubscribe=True), machine, kv_tokens=100)
    assert sentence in said
    assert len(said) < 500
    assert not workers_of(machine)
    with Engine(saved("llama-gqa"), layout=Layout(oversubscribe=True), machine=machine) as engine:
        assert len(engine.generate([[1, 2]])[0].completions[0].tokens) == 16


def test_a_folder_whose_model_is_replaced(
    small_model: Any, saved: Saved, tmp_path: Path, machine: Machine
) -> None:
    """A machine remembers models; not those that have been written over."""
    seen = []
    for family in ("llama-gqa", "llama", "llama-gqa"):
        small_model(family).save_pretrained(tmp_path)
        for folder in (tmp_path, saved(family)):
            layout = Layout(oversubscribe=True)
            with Engine(folder, layout=layout, machine=machine, kv_tokens=100) as engine:
                seen.append(engine.generate([[1, 2]])[0].completions[0].tokens)
    assert seen[0::2] == seen[1::2]
    assert seen[0] != seen[2]


def test_a_config_needs_dummy_weights(small_model: Any, machine: Machine) -> None:
    config: transformers.PretrainedConfig = small_model("llama-gqa").config
    layout = Layout(oversubscribe=True)
    assert "load_format" in refused(config, layout, machine)
    with Engine(config, layout=layout, machine=machine, load_format="dummy", kv_tokens=100) as engine:
        assert len(engine.generate([[1, 2]])[0].completions[0].tokens) == 16
    with Engine(
        small_model("llama-gqa").config, layout=layout, machine=machine, load_format="dummy", kv_tokens=100
    ) as engine:
        assert engine.core.facts.layers == 3
