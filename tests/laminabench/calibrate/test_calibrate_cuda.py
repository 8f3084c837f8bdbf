"""A GPU's kernels as a cost set, on one that is emulated: what is measured of which points, and its names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import tiny

from laminabench.calibrate import cuda, terms
from laminabench.calibrate.clock import Clock
from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.models import ModelShape
from laminabench.catalog.provenance import attention_sources, step_sources
from laminabench.cli.main import run
from laminabench.util.errors import UserError

EMULATED = Clock("cuda")
LAYERS = 12
SHAPE = ModelShape("tiny", LAYERS, 64, 4, 2, 16, 96, 99)


def config() -> object:
    return tiny("Llama", hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS)


@pytest.mark.usefixtures("emulated")
def test_kernels_become_a_set_that_prices_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms.Model, "columns", (1, 4))
    monkeypatch.setattr(terms.Prompts, "columns", (0, 16))
    monkeypatch.setattr(terms, "GPU_KV_TOKENS", (2, 8))
    monkeypatch.setattr(terms, "LEAST_SKEWED", 8)
    monkeypatch.setattr(terms, "GPU_KV_LAYERS", 2)
    monkeypatch.setattr(terms, "REQUESTS", (1, 8))
    for module in (terms, sys.modules["laminabench.calibrate.cost_set"]):  # whose function hides it
        monkeypatch.setattr(module, "SKEWED_REQUESTS", (8,))
    name = cuda.device_name("NVIDIA H100 80GB HBM3")
    result = cuda.kernels(
        config(), SHAPE, "NVIDIA H100 80GB HBM3", name, 80e9, 0.1, lambda *_: None, EMULATED, lambda: 2e12
    )
    points = {row["term"]: (row["points"], row["repeats"]) for row in result.facts["terms"]}
    assert points == {
        "slices": (2, 3), "matrix products": (10, 3), "choosing tokens": (2, 3),
        "decode attention": (2 * 2 + 2, 3), "attention of prompts": (6, 3),
    }  # fmt: skip
    assert result.facts["control_spread_percent"] == 0
    write_costs(result.costs, tmp_path / "kernels.toml")
    costs = load_costs(str(tmp_path / "kernels.toml"))
    on = costs.devices[name]
    assert (name, on.memory_bytes, on.bandwidth_bytes_per_s) == ("measured-h100-80gb-hbm3", 80e9, 2e12)
    # Eight layers were measured, of which all have what they need.
    sources = step_sources(costs, SHAPE, on, 1) + attention_sources(costs, SHAPE, on, 1)
    assert {row["priced_by"] for row in sources} == {"measurements"}
    assert costs.host.origin.kind == "assumed"
    assert not costs.networks


def test_a_gpus_weights_of_one_matrix_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from lamina.convert import convert
    from laminabench.calibrate.gpu_timing import made_up

    requests: list[int] = []

    def seconds(call: object) -> float:
        requests.append(1)
        call()  # type: ignore[operator]
        return 0.25

    made = made_up(config(), "cpu")
    conversion = convert(config(), torch.bfloat16)
    on_core = terms.Model(conversion, made, Clock("cpu", seconds, seconds))
    monkeypatch.setattr("lamina.gpu.tensors_on", lambda device: torch.device("cpu"))
    on_gpu = terms.Model(conversion, made, Clock("cuda", seconds, seconds))
    assert [name for name, _ in on_gpu.products] == ["qkv", "o", "gate_up", "down", "lm_head"]
    assert sum(len(weights) for _, weights in on_gpu.products) == len(on_core.products)
    result = on_gpu.measure(4)
    assert len(requests) == 2 + 5  # slices and the choice
    assert result["gemm o", 4] == 0.25
    assert on_core.measure(4)["gemm o", 4] == LAYERS * 0.25


def test_no_name_is_one_of_the_catalogue() -> None:
    cards = [f"NVIDIA {name.upper()}" for name in load_devices()]
    assert not {cuda.device_name(card) for card in cards} & set(load_devices())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize(
    ("words", "code"),
    [((), "bench-no-gpu"), (("--system", "vllm"), "usage"), (("--ray", "auto"), "usage")],
)
def test_what_cannot_be_measured_is_said(
    words: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "set.toml"
    with pytest.raises(SystemExit) as ended:
        run(["calibrate", "--device", "cuda", "-o", str(target), "--json", *words])
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not target.exists()


def test_a_model_that_is_none_of_the_catalogue_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,'
        ' "num_attention_heads": 4, "vocab_size": 99, "torch_dtype": "bfloat16"}'
    )
    monkeypatch.setattr(cuda, "require_gpu", lambda: None)
    monkeypatch.setattr(cuda.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    with pytest.raises(UserError, match="calibrate-gpu-model"):
        cuda.calibrate_gpu(str(tmp_path / "config.json"), None, 1.0, lambda *_: None)
