"""Cost sets that bring devices and networks of their own: the file, and every command that names devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from laminabench.catalog.cost_file import load_costs, write_costs
from laminabench.catalog.cost_terms import HostCost, Origin
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.hardware import Device, load_devices
from laminabench.catalog.network import Network, network_of, parse_network
from laminabench.catalog.provenance import provenance
from laminabench.cli.main import run
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.modelled.prepared import prepare
from laminabench.systems.registry import system
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT

MY_CORE = Device("my-core", "mine", {"bf16": 1e14}, 64e9, 2e12, 2e12, 2e12, None, "measured here")
SHM = Network("shm", "mine", 64 * 1e-6, 2e10, 2e12, "measured", "here")
SMALL = "--trace azure-code --offline --num-requests 30 -q"


def own(**changes: Any) -> CostSet:
    ideal = replace(load_costs("roofline"), name="mine", devices={"my-core": MY_CORE}, networks={"shm": SHM})
    return replace(ideal, **changes)


@pytest.fixture
def set_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    write_costs(own(), tmp_path / "mine.toml")
    return "mine.toml"


def test_a_file_has_what_the_set_brings(set_file: str, tmp_path: Path) -> None:
    result = load_costs(set_file)
    assert (result.devices, result.networks) == ({"my-core": MY_CORE}, {"shm": SHM})
    assert result.host == own().host
    origin = Origin("measured", "here", errors={"spread": 12.0}, samples=3, unstable=True)
    write_costs(own(host=HostCost(1e-3, 2e-6, origin)), tmp_path / "more.toml")
    host = load_costs("more.toml").host
    assert (host.per_step_s, host.per_request_s, host.origin.unstable) == (1e-3, 2e-6, True)
    rows = provenance(load_costs("more.toml"), MY_CORE)
    assert [row["term"] for row in rows if row.get("unstable")] == ["host"]


def test_known_are_the_catalogue_s_devices_and_its_own() -> None:
    assert known_devices([]) == load_devices()
    assert set(known_devices([own(), own()])) == {*load_devices(), "my-core"}
    for other in (replace(own(), devices={"h100": MY_CORE}), own(devices={"my-core": load_devices()["cpu"]})):
        with pytest.raises(UserError) as raised:
            known_devices([own(), other])
        assert raised.value.code == "costs-device-twice"


def test_its_network_goes_before_the_catalogue_s() -> None:
    networks = own().networks
    assert parse_network("shm", networks) == network_of(networks, "fhbn") == SHM
    assert network_of({}, "fhbn") == parse_network("fhbn", networks)


@pytest.mark.parametrize(
    ("requested", "network"), [(None, SHM), ("shm", SHM), ("fhbn", parse_network("fhbn"))]
)
def test_a_replay_takes_its_network_unless_asked(
    set_file: str, requested: str | None, network: Network
) -> None:
    request = ReplayRequest(
        model="llama3.1-8b",
        costs=set_file,
        deployment="1xmy-core+1xmy-core",
        network=requested,
        trace="azure-code",
    )
    assert prepare(request, system("lamina"), SILENT).setup.network == network


@pytest.mark.parametrize(
    "words",
    [
        f"replay {SMALL} --no-out --deployment 1xmy-core+1xmy-core --model llama3.1-8b --costs",
        f"compare {SMALL} --systems vllm,lamina --model llama3.1-8b --deployment vllm=1xmy-core "
        "--deployment lamina=1xmy-core+1xmy-core --price my-core=1 --costs",
        f"plan {SMALL} --model llama3.1-8b --devices my-core --price my-core=1 --slo-tbt-p99-ms 1000 "
        "--budget 4 --jobs 1 --costs",
        "costs show --device my-core",
    ],
)
def test_every_command_knows_its_devices(
    set_file: str, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run([*words.split(), set_file, "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert "my-core" in out
