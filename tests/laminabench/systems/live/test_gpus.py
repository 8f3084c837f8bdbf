"""This machine's GPUs, by what a driver would say."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.baselines.environment import Environment
from laminabench.calibrate.gpu_timing import slug
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.systems.live import gpus
from laminabench.systems.live.vllm.process import variables
from laminabench.systems.live.vllm.setup import VllmSetup
from laminabench.util.errors import UserError

HERE = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa1)
GPU 1: NVIDIA GeForce RTX 4090 (UUID: GPU-ab2)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-b3)
"""
H100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"


@pytest.fixture(autouse=True)
def _driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{HERE}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [H100, RTX, H100]),
        ("2,1", [H100, RTX]),
        ("GPU-ab2", [RTX]),
        ("1,9,0", [RTX]),
        ("", []),
    ],
)
def test_those_that_this_process_may_use(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.names() == names


@pytest.mark.parametrize(
    ("name", "device", "is_it"),
    [
        (H100, "h100", True),
        (RTX, "rtx-4090", True),
        (RTX, "rtx-4080", False),
        ("NVIDIA A100-SXM4-80GB", "a100-80g-sxm", True),
        ("NVIDIA GH200 480GB", "h200", False),
        ("NVIDIA GB200", "b200", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000", True),
    ],
)
def test_names_of_the_driver_and_of_the_catalogue(name: str, device: str, is_it: bool) -> None:
    assert gpus.is_called(name, device) is is_it


def test_as_many_as_are_wanted() -> None:
    assert gpus.pick("h100", 2, "others") == [0, 2]
    for device, count in (("h100", 3), ("h200", 1)):
        with pytest.raises(UserError, match="deployment-no-gpu"):
            gpus.pick(device, count, "others")


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpus.names() == []


@pytest.mark.parametrize(
    ("visible", "deployment", "chosen"),
    [(None, "1xh100", "0"), (None, "2xh100", "0,2"), ("GPU-ab2,GPU-b3", "1xh100", "GPU-b3")],
)
def test_vllm_has_those_that_its_deployment_names(
    visible: str | None, deployment: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    setup = VllmSetup(model("llama-tiny"), "llama-tiny", parse_deployment(deployment))
    environment = Environment(tmp_path / "bin" / "python", "cuda", {}, ())
    result = variables(environment, [0], 1, tmp_path, setup.gpus())
    assert (result["CUDA_VISIBLE_DEVICES"], result["CUDA_DEVICE_ORDER"]) == (chosen, "PCI_BUS_ID")


def test_a_card_is_called_by_all_of_its_name() -> None:
    assert [gpus.pick(slug(name), 1, "") for name in (H100, RTX)] == [[0], [1]]


def test_whether_processes_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    assert not gpus.shared_by_processes()
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").touch()
    assert gpus.shared_by_processes()
