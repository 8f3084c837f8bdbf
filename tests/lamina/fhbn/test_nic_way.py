"""Which RDMA ports are on the network over which two processes have met, by addresses laid out in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.fhbn.nic.way import ports_on_the_way

GIDS = {
    ("mlx5_0", "1"): ["fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a00:0003"],
    ("mlx5_1", "1"): ["fe80:0000:0000:0000:0e42:a1ff:fe00:0002", "0000:0000:0000:0000:0000:0000:0000:0000"],
    ("mlx5_1", "2"): ["0000:0000:0000:0000:0000:ffff:0a00:0104", "2001:0db8:0000:0000:0000:0000:0000:0007"],
}


@pytest.mark.parametrize(
    ("host", "ports"),
    [
        ("10.0.0.3", ["mlx5_0:1"]),
        ("10.0.1.4", ["mlx5_1:2"]),
        ("2001:db8::7", ["mlx5_1:2"]),
        ("10.0.0.4", []),
        ("127.0.0.1", []),
        ("not an address", []),
    ],
)
def test_ports_with_the_address(host: str, ports: list[str], tmp_path: Path) -> None:
    for (device, port), gids in GIDS.items():
        folder = tmp_path / "sys/class/infiniband" / device / "ports" / port / "gids"
        folder.mkdir(parents=True)
        for number, gid in enumerate(gids):
            (folder / str(number)).write_text(f"{gid}\n")
    assert ports_on_the_way(host, tmp_path) == ports


def test_a_machine_without_any(tmp_path: Path) -> None:
    assert ports_on_the_way("10.0.0.3", tmp_path) == []
