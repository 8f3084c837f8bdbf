"""`laminabench fhbn devices` on a machine whose one device is soft-RoCE."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

LIMIT_S = 100  # of a command in an emulated machine


def devices(*options: str) -> str:
    command = [sys.executable, "-m", "laminabench", "fhbn", "devices", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    answer = json.loads(devices("--json"))
    assert isinstance(answer, dict)
    return answer


def test_the_device_and_its_port(found: dict[str, Any], device: str, near: str) -> None:
    (told,) = found["devices"]
    assert (told["name"], told["provider"], told["transport"]) == (device, "rxe", "InfiniBand")
    (port,) = told["ports"]
    assert (port["number"], port["state"], port["link_layer"]) == (1, "active", "Ethernet")
    assert port["mtu"] in (256, 512, 1024, 2048, 4096)
    last_words = "".join(f"{int(part):02x}" for part in near.split("."))
    by_address = [gid for gid in port["gids"] if gid["address"].replace(":", "").endswith(last_words)]
    assert [gid["kind"] for gid in by_address] == ["RoCE v2"]
    assert by_address[0]["interface"]


def test_verbs_can_be_used_and_mlx5_cannot(found: dict[str, Any]) -> None:
    engines = {row["engine"]: row for row in found["engines"]}
    assert engines["verbs"]["because"] == []
    assert engines["mlx5"]["because"] == ["no usable device is a ConnectX (provider mlx5): rxe only"]


def test_the_table_has_a_row_for_it(device: str) -> None:
    row = next(line for line in devices().splitlines() if line.startswith(device)).split()
    assert row[1] == "rxe"
    assert row[3:6] == ["1", "Ethernet", "active"]
