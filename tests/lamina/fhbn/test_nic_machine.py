"""The facts below RDMA, read from files laid out as Linux has them, and pyverbs found or missed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("msgpack")

from lamina.fhbn.nic import devices, machine
from lamina.fhbn.nic.devices import NoPyverbsError, _provider, listed, pyverbs
from lamina.fhbn.nic.machine import system_below

pytestmark = pytest.mark.outside

NO_CAPABILITIES = "CapEff:\t0000000000000000\n"
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
OWN_NAMESPACE = "0 1000 1\n"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
INITIAL = "         0          0 4294967295\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were neither loaded nor in this environment."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    result = system_below(tmp_path)
    assert not result.has_verbs
    assert not result.loads_modules
    assert (result.kernel_devices, result.mellanox_on_pci, result.closed_files) == ((), (), {})
    assert not result.gpu.peermem
    assert not result.gpu.maps_registers


def test_a_machine_with_a_nic(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/modules": "",
            "sys/class/infiniband/mlx5_0/node_guid": "",
            "sys/class/infiniband_verbs/abi_version": "6",
            "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
            "sys/class/infiniband_verbs/uverbs1/ibdev": "mlx5_1",
            "dev/infiniband/uverbs0": "",
            "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x15b3\n",
            "sys/bus/pci/devices/0000:3b:00.0/class": "0x020700\n",
            "sys/bus/pci/devices/0000:3c:00.0/vendor": "0x15b3\n",
            "sys/bus/pci/devices/0000:3c:00.0/class": "0x060400\n",  # a bridge of a BlueField
            "sys/module/nvidia_peermem/refcnt": "0",
            "proc/driver/nvidia/params": 'RegistryDwords: "PeerMappingOverride=1;"\n',
        },
    )
    result = system_below(tmp_path)
    assert result.has_verbs
    assert result.loads_modules
    assert result.kernel_devices == ("mlx5_0",)
    assert result.mellanox_on_pci == ("0000:3b:00.0",)
    assert result.closed_files == {"mlx5_1": "/dev/infiniband/uverbs1"}
    assert result.gpu.peermem
    assert result.gpu.maps_registers


@pytest.mark.parametrize(
    ("driver", "vendor", "transport", "expected"),
    [
        ("mlx5_core", 0x2C9, 0, "mlx5"),
        ("mlx5_core.sf", 0x2C9, 0, "mlx5"),  # a part of a NIC
        ("mlx4_core", 0x2C9, 0, "mlx4"),
        ("mlx5_core", 0xFFFFFF, 0, "rxe"),  # soft-RoCE over such a NIC, as older kernels have it
        (None, 0xFFFFFF, 0, "rxe"),
        (None, 0, 1, "siw"),
        (None, 0, 0, "unknown"),
    ],
)
def test_the_provider_is_the_drivers(
    tmp_path: Path, driver: str | None, vendor: int, transport: int, expected: str
) -> None:
    if driver is not None:
        (tmp_path / "device").mkdir()
        (tmp_path / "device/driver").symlink_to(f"../../bus/drivers/{driver}")
    assert _provider(tmp_path, transport, vendor) == expected


@pytest.mark.parametrize(
    ("user", "options", "expected"),
    [
        (0, 'RegistryDwords: ""', True),
        (1000, 'RegistryDwords: ""', False),
        (1000, 'RegistryDwords: "PeerMappingOverride=1;"', True),
    ],
)
def test_a_nics_registers_are_mapped_by_root_or_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, options: str, expected: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    write(tmp_path, {"proc/driver/nvidia/params": options})
    assert system_below(tmp_path).gpu.maps_registers == expected


@pytest.mark.parametrize(
    ("status", "uid_map", "limit", "expected"),
    [
        (NO_CAPABILITIES, INITIAL, 65536, 65536),
        (ALL_CAPABILITIES, INITIAL, 65536, None),
        (ALL_CAPABILITIES, OWN_NAMESPACE, 65536, 65536),
        (NO_CAPABILITIES, INITIAL, -1, None),
    ],
)
def test_memlock_counts_unless_the_process_may_lock_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    uid_map: str,
    limit: int,
    expected: int | None,
) -> None:
    write(tmp_path, {"proc/self/status": status, "proc/self/uid_map": uid_map})
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (limit, limit))
    assert system_below(tmp_path).memlock_bytes == expected


@pytest.mark.usefixtures("no_pyverbs")
@pytest.mark.parametrize(
    ("library", "sentence"),
    [
        (None, "apt-get install python3-pyverbs"),
        ("device.cpython-39-x86_64-linux-gnu.so", r"is for CPython 3\.9 and this is 3\.\d+: pip install"),
        (f"device{SUFFIX}", r"pyverbs cannot be loaded .*install it again"),
    ],
)
def test_a_pyverbs_that_cannot_be_used_says_why(tmp_path: Path, library: str | None, sentence: str) -> None:
    if library:
        write(tmp_path, {"pyverbs/__init__.py": "", f"pyverbs/{library}": "no library"})
    with pytest.raises(NoPyverbsError, match=sentence):
        pyverbs(tmp_path)
    assert "pyverbs" not in sys.modules


def test_the_systems_pyverbs_brings_nothing_else_along() -> None:
    if not (devices.SYSTEM_PACKAGES / "pyverbs" / f"device{SUFFIX}").exists():
        pytest.skip("the system has no pyverbs for this Python")
    code = (
        "import sys; before = list(sys.path); from lamina.fhbn.nic.devices import listed; listed()\n"
        "assert sys.path == before; import pyverbs.device; print(pyverbs.device.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pyverbs/device" in done.stdout


def test_devices_are_as_the_kernel_has_them() -> None:
    try:
        result = listed()
    except NoPyverbsError as error:
        pytest.skip(str(error))
    folder = Path("/sys/class/infiniband")
    known = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    assert {device.name for device in result.devices} | result.refused.keys() <= known
