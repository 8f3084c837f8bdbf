"""Which RDMA device a worker's GPU is nearest to and what is between them, on a bus laid out in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.fhbn import verbs
from lamina.fhbn.errors import HandshakeError
from lamina.fhbn.nic.bus import nearest, ports_on_the_way, redirecting, translated

DEVICE = "LAMINA_RDMA_DEVICE"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two switches with a NIC and a GPU each, and a NIC at the root port of a third."""
    bus = tmp_path / "sys/devices"
    ways = {
        "0000:17:00.0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
        "0000:18:00.0": "pci0000:15/0000:15:01.0/0000:16:01.0/0000:18:00.0",
        "0000:3a:00.0": "pci0000:38/0000:38:01.0/0000:39:00.0/0000:3a:00.0",
        "0000:3b:00.0": "pci0000:38/0000:38:01.0/0000:39:01.0/0000:3b:00.0",
        "0000:5a:00.0": "pci0000:58/0000:5a:00.0",
    }
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, way in ways.items():
        (bus / way).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(bus / way)
    for name, address in (("mlx5_0", "0000:5a:00.0"), ("mlx5_1", "0000:18:00.0"), ("mlx5_2", "0000:3b:00.0")):
        folder = tmp_path / "sys/class/infiniband" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(bus / ways[address])
    return tmp_path


def test_it_shares_most_of_the_way(root: Path) -> None:
    assert nearest("0000:17:00.0", root) == "mlx5_1"
    assert nearest("0000:3A:00.0", root) == "mlx5_2"


def test_where_there_is_no_choice_there_is_none(root: Path, tmp_path: Path) -> None:
    assert nearest("0000:99:00.0", root) is None
    assert nearest("0000:17:00.0", tmp_path / "elsewhere") is None


def test_devices_behind_an_iommu(root: Path) -> None:
    assert translated(root) == ()
    for name, kind in (("mlx5_0", "DMA-FQ"), ("mlx5_1", "identity"), ("mlx5_2", "DMA")):
        group = root / "sys/class/infiniband" / name / "device/iommu_group"
        group.mkdir()
        (group / "type").write_text(f"{kind}\n")
    assert translated(root) == ("mlx5_0", "mlx5_2")


def config(*capabilities: tuple[int, int]) -> bytes:
    """Of a bridge, with these extended capabilities and what each has behind its first six bytes."""
    result, at = bytes(0x100), 0x100
    for number, (name, control) in enumerate(capabilities, 1):
        after = at + 8 if number < len(capabilities) else 0
        head = (after << 20 | 1 << 16 | name).to_bytes(4, "little")
        result, at = result + head + bytes(2) + control.to_bytes(2, "little"), at + 8
    return result


def test_bridges_that_redirect(root: Path) -> None:
    devices = root / "sys/bus/pci/devices"
    assert redirecting(root) == ()
    gpu = devices / "0000:17:00.0"
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    above = {path.name: path for path in (gpu.resolve().parents[0], gpu.resolve().parents[1])}
    (above["0000:16:00.0"] / "config").write_bytes(config((1, 0), (0x0D, 0x1D)))
    (above["0000:15:01.0"] / "config").write_bytes(config((0x0D, 0x19)))  # all but that
    alongside = (devices / "0000:3b:00.0").resolve().parent
    (alongside / "config").write_bytes(config()[:64])  # what processes other than root's read
    assert redirecting(root) == ("0000:16:00.0",)
    looped = bytes(0x100) + (0x100 << 20 | 7).to_bytes(4, "little") + bytes(4)
    (alongside / "config").write_bytes(looped)
    assert redirecting(root) == ("0000:16:00.0",)


def test_a_worker_takes_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "nearest", {"here": "mlx5_7"}.get)
    monkeypatch.setenv(DEVICE, "")
    verbs.choose(0, None)
    assert verbs.device() == ""
    verbs.choose(0, "here")
    assert verbs.device() == "mlx5_7"
    monkeypatch.setenv(DEVICE, "mlx5_0:1,mlx5_3,mlx5_4")
    verbs.choose(4, "here")
    assert verbs.device() == "mlx5_3"
    verbs.choose(0, "here")
    assert verbs.device() == "mlx5_3"


def test_how_a_network_is_to_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    level, kind = "LAMINA_RDMA_SERVICE_LEVEL", "LAMINA_RDMA_TRAFFIC_CLASS"
    monkeypatch.delenv(level, raising=False)
    monkeypatch.setenv(kind, "106")
    assert verbs.quality() == (0, 106)
    for variable, value in ((level, "16"), (kind, "256"), (kind, "-1"), (kind, "high")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with pytest.raises(HandshakeError, match="channel-quality"):
                verbs.quality()


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
