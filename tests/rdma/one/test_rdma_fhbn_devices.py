"""`laminabench fhbn devices` on a machine whose one device is soft-RoCE."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 100  # of a command in an emulated machine


def devices(*options: str, before: Sequence[str] = ()) -> str:
    command = [*before, sys.executable, "-m", "laminabench", "fhbn", "devices", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def listing() -> dict[str, Any]:
    answer = json.loads(devices("--json"))
    assert isinstance(answer, dict)
    return answer


def test_the_device_and_its_port(listing: dict[str, Any], device: str, near: str) -> None:
    (entry,) = listing["devices"]
    assert (entry["name"], entry["provider"], entry["transport"]) == (device, "rxe", "InfiniBand")
    (port,) = entry["ports"]
    assert (port["number"], port["state"], port["link_layer"]) == (1, "active", "Ethernet")
    assert port["mtu"] in (256, 512, 1024, 2048, 4096)
    last_words = "".join(f"{int(part):02x}" for part in near.split("."))
    by_address = [gid for gid in port["gids"] if gid["address"].replace(":", "").endswith(last_words)]
    assert [gid["kind"] for gid in by_address] == ["RoCE v2"]
    assert by_address[0]["interface"]


def test_verbs_can_be_used_and_mlx5_cannot(listing: dict[str, Any]) -> None:
    engines = {row["engine"]: row for row in listing["engines"]}
    assert engines["verbs"]["because"] == []
    assert engines["mlx5"]["because"] == ["no usable device is a ConnectX (provider mlx5): rxe only"]


def test_too_little_lockable_memory_is_reported() -> None:
    no_right = ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]
    listing = json.loads(devices("--json", before=[*no_right, "prlimit", "--memlock=32768"]))
    (why,) = next(row["because"] for row in listing["engines"] if row["engine"] == "verbs")
    assert why.startswith("this process may register 32,768 bytes of memory")
    assert "too little for any channel: raise the limit" in why


@pytest.fixture
def closed() -> Iterator[Path]:
    """The device's file, which is root's alone for a while."""
    file = Path("/dev/infiniband/uverbs0")
    mode = file.stat().st_mode
    file.chmod(0o600)
    yield file
    file.chmod(mode)


def test_a_device_in_use_is_reported(device: str, closed: Path) -> None:
    unprivileged = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    first, second, *_ = devices(before=unprivileged).splitlines()
    assert first == f"RDMA devices without further information: {device}"
    assert second.startswith(f"- device {device} cannot be opened: {closed} is not there for this process to")
    assert devices().startswith("device ")  # root may


def test_the_table_has_a_row_for_it(device: str) -> None:
    row = next(line for line in devices().splitlines() if line.startswith(device)).split()
    assert row[1] == "rxe"
    assert row[3:6] == ["1", "Ethernet", "active"]
