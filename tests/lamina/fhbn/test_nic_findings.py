"""What is missing for RDMA, from facts of machines that are not this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import pytest

pytest.importorskip("msgpack")

from lamina.fhbn.nic import diagnosis
from lamina.fhbn.nic.devices import Device, Gid, Listed, Port
from lamina.fhbn.nic.diagnosis import Diagnosis, conclusion
from lamina.fhbn.nic.machine import Gpu, GpuMemory, System

Item = TypeVar("Item")
GPU = Gpu((GpuMemory(dmabuf=True, ordered=True),), None, peermem=False, maps_registers=True)
V2 = Gid(1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth1")
PORT = Port(1, "active", "Ethernet", 4096, 0, "4X 25.0 Gbps", (V2,))
CONNECTX = Device("mlx5_0", "mlx5", "InfiniBand", "28.39.1002", 0x2C9, 4129, 131072, (PORT,))
SOFT = replace(CONNECTX, name="rxe0", provider="rxe")
SOUND = System(
    kernel="6.1.0",
    loads_modules=True,
    has_verbs=True,
    kernel_devices=("mlx5_0",),
    mellanox_on_pci=("0000:3b:00.0",),
    closed_files={},
    libibverbs=True,
    libmlx5=True,
    registers_dmabuf=True,
    memlock_bytes=None,
    translated=(),
    redirecting=(),
    gpu=GPU,
)


def concluded(system: System, *devices: Device, unlisted: str | None = None) -> Diagnosis:
    return conclusion(system, Listed(devices, {}), unlisted)


def blocked(result: Diagnosis) -> set[str]:
    """Engines that something was found against; what an engine says of this machine is its own matter."""
    return {engine for finding in result.findings for engine in finding.blocks}


def only(result: Iterable[Item]) -> Item:
    (one,) = result
    return one


def test_a_sound_machine_has_nothing_to_say() -> None:
    result = concluded(SOUND, CONNECTX)
    assert result.findings == ()
    assert {"verbs", "mlx5", "mlx5 on a GPU"} <= {ready.engine for ready in result.engines}


@pytest.mark.parametrize(
    ("system", "sentence", "first_blocked"),
    [
        (replace(SOUND, libibverbs=False), "libibverbs.so.1 cannot be loaded: install rdma-core", "verbs"),
        (replace(SOUND, libmlx5=False), "libmlx5.so.1 cannot be loaded", "mlx5"),
        (
            replace(SOUND, has_verbs=False),
            "has no RDMA (no /sys/class/infiniband_verbs): load ib_uv",
            "verbs",
        ),
        (replace(SOUND, has_verbs=False, loads_modules=False), "loads no modules, so take another", "verbs"),
        (
            replace(SOUND, closed_files={"mlx5_0": "/dev/infiniband/uverbs0"}),
            "device mlx5_0 cannot be opened: /dev/infiniband/uverbs0 is not there for this process",
            "verbs",
        ),
        (replace(SOUND, memlock_bytes=32 << 10), "too little for any channel: raise the limit", "verbs"),
        (replace(SOUND, memlock_bytes=8 << 20), "8,388,608 bytes", None),  # enough for small messages
    ],
)
def test_findings_about_the_system(system: System, sentence: str, first_blocked: str | None) -> None:
    finding = only(diagnosis.of_the_system(system))
    assert sentence in finding.sentence
    blocks = diagnosis.RDMA[diagnosis.RDMA.index(first_blocked) :] if first_blocked else ()
    assert finding.blocks == blocks


def test_no_device_says_how_to_get_one() -> None:
    result = concluded(replace(SOUND, kernel_devices=(), mellanox_on_pci=()))
    assert "rdma link add rxe0 type rxe" in result.findings[0].sentence
    assert blocked(result) == set(diagnosis.RDMA)


def test_a_nic_without_a_driver_is_listed_from_pci() -> None:
    results = list(diagnosis.of_the_system(replace(SOUND, kernel_devices=())))
    assert any("on PCI (0000:3b:00.0) and has no driver" in finding.sentence for finding in results)


def test_a_container_with_one_of_two_devices_can_use_that() -> None:
    closed = {"mlx5_1": "/dev/infiniband/uverbs1"}
    system = replace(SOUND, kernel_devices=("mlx5_0", "mlx5_1"), closed_files=closed)
    result = conclusion(system, Listed((CONNECTX,), {"mlx5_1": "Failed to open device mlx5_1"}), None)
    finding = only(result.findings)  # once, with what to do
    assert finding.sentence.startswith("device mlx5_1 cannot be opened: /dev/infiniband/uverbs1 is not there")
    assert finding.blocks == ()


@pytest.mark.parametrize(
    ("device", "port", "sentence"),
    [
        (SOFT, replace(PORT, state="down"), "it is down: plug the cable in, or bring eth1 up"),
        (CONNECTX, replace(PORT, state="initializing", link_layer="InfiniBand"), "see whether a subnet man"),
        (CONNECTX, replace(PORT, link_layer="InfiniBand"), "it has no LID: see whether a subnet manager"),
        (CONNECTX, replace(PORT, gids=()), "no GID of RoCE v2: give its interface an IP address"),
        (CONNECTX, replace(PORT, gids=(replace(V2, kind="RoCE v1"),)), "no GID of RoCE v2"),
        (CONNECTX, replace(PORT, link_layer="unspecified"), "wrong link layer: it is neither"),
        (replace(SOFT, transport="iWARP"), PORT, "wrong link layer: it speaks iWARP"),
    ],
)
def test_a_port_that_cannot_be_used_says_why(device: Device, port: Port, sentence: str) -> None:
    result = concluded(replace(SOUND, kernel_devices=(device.name,)), replace(device, ports=(port,)))
    assert f"port 1 of {device.name} cannot be used: " in result.findings[0].sentence
    assert sentence in result.findings[0].sentence
    assert blocked(result) == set(diagnosis.RDMA)


def test_one_sound_port_is_enough() -> None:
    down = replace(PORT, number=2, state="down")
    results = list(diagnosis.of_the_ports([replace(CONNECTX, ports=(PORT, down))]))
    assert [finding.blocks for finding in results] == [()]


def test_software_roce_is_for_verbs_only() -> None:
    finding = only(diagnosis.of_the_ports([SOFT]))
    assert finding.sentence == "no usable device is a ConnectX (provider mlx5): rxe only"
    assert finding.blocks == ("mlx5", "mlx5 on a GPU")


def test_two_link_layers_are_a_finding() -> None:
    other = replace(CONNECTX, name="mlx5_1", ports=(replace(PORT, link_layer="InfiniBand", lid=7),))
    assert "the same link layer" in only(diagnosis.of_the_ports([CONNECTX, other])).sentence


def test_devices_unknown_to_libibverbs_are_findings() -> None:
    system = replace(SOUND, kernel_devices=("mlx5_0", "odd0", "shut0"))
    results = list(diagnosis.of_the_list(system, [CONNECTX], {"shut0": "Failed to open device"}))
    assert [finding.sentence.partition(":")[0] for finding in results] == [
        "device shut0 cannot be used",
        "the kernel has device odd0 and libibverbs has no provider for it",
    ]


def test_without_pyverbs_the_kernels_devices_are_listed() -> None:
    result = concluded(SOUND, unlisted="pyverbs is not installed: get it")
    assert only(result.findings).sentence.startswith(
        "pyverbs is not installed: get it; the kernel has mlx5_0"
    )
    assert not blocked(result)


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (Gpu((), "there is no driver", False, False), "no GPU can post or poll: there is no dr"),
        (replace(GPU, maps_registers=False), "PeerMappingOverride=1"),
    ],
)
def test_findings_about_gpu_access_to_nics(gpu: Gpu, sentence: str) -> None:
    finding = only(diagnosis.of_the_gpu(replace(SOUND, gpu=gpu)))
    assert sentence in finding.sentence
    assert finding.blocks == ("mlx5 on a GPU",)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"translated": ("mlx5_0", "mlx5_1")}, "an IOMMU translates for mlx5_0, mlx5_1: "),
        ({"redirecting": ("0000:16:01.0",)}, "bridges (0000:16:01.0) send up to the root"),
    ],
)
def test_findings_between_gpu_and_nic(changed: dict[str, tuple[str, ...]], sentence: str) -> None:
    finding = only(diagnosis.of_the_gpu(replace(SOUND, **changed)))  # type: ignore[arg-type]
    assert finding.sentence.startswith(sentence)
    assert not finding.blocks


DMABUF, NEITHER = GpuMemory(dmabuf=True, ordered=True), GpuMemory(dmabuf=False, ordered=True)


@pytest.mark.parametrize(
    ("memory", "peermem", "registers_dmabuf", "place", "because"),
    [
        (DMABUF, True, True, "dmabuf", ""),
        (DMABUF, True, False, "nvidia-peermem", "libibverbs registers no dmabuf: install rdma-core 34"),
        (DMABUF, False, False, "host memory", "registers no dmabuf: install rdma-core 34 or newer, and nvid"),
        (NEITHER, True, True, "nvidia-peermem", "the NVIDIA driver gives no dmabuf"),
        (NEITHER, False, True, "host memory", "gives no dmabuf (its open kernel modules do, on Linux 5.12"),
        (replace(DMABUF, ordered=False), True, True, "host memory", "do not see what a NIC writes"),
    ],
)
def test_where_a_ring_between_a_gpu_and_a_nic_will_be(
    memory: GpuMemory, peermem: bool, registers_dmabuf: bool, place: str, because: str
) -> None:
    gpu = replace(GPU, memories=(DMABUF, memory), peermem=peermem)
    system = replace(SOUND, gpu=gpu, registers_dmabuf=registers_dmabuf)
    assert not list(diagnosis.of_the_gpu(system))  # no channel needs it
    result = concluded(system, CONNECTX, SOFT).rings
    assert [(ring.gpu, ring.nic) for ring in result] == [(0, "mlx5_0"), (1, "mlx5_0")]
    assert result[1].place == place
    assert because in result[1].because
    assert bool(because) == bool(result[1].because)


def test_rings_are_on_the_host_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_FHBN_RING", "host")
    ring = only(concluded(SOUND, CONNECTX).rings)
    assert (ring.place, ring.because) == ("host memory", "LAMINA_FHBN_RING is host")


def test_a_gpu_posts_only_where_the_engine_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was found against it, and the NIC that was asked for is none."""
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", "none_0:1")
    engines = {ready.engine: ready for ready in concluded(SOUND, CONNECTX).engines}
    assert "LAMINA_RDMA_DEVICE is 'none_0:1'" in only(engines["verbs"].because)
    assert engines["mlx5 on a GPU"].because == engines["mlx5"].because
    assert not engines["mlx5 on a GPU"].usable
