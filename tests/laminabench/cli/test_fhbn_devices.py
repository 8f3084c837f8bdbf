"""`laminabench fhbn devices` as a person types it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("msgpack")

from lamina.fhbn.nic.devices import Device, Gid, Listed, Port
from lamina.fhbn.nic.diagnosis import conclusion, diagnosed
from lamina.fhbn.nic.machine import system_below
from laminabench.cli.fhbn_devices import _render
from laminabench.cli.main import run

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
ENGINES = ["shm", "verbs", "mlx5", "mlx5 on a GPU", "softnic", "gloo", "nccl"]


def test_this_machine_is_explained(shell: Shell) -> None:
    code, out, err = shell("fhbn", "devices")
    assert (code, err) == (0, "")
    for name in ENGINES:
        assert f"\n{name} " in out
    for finding in diagnosed().findings:
        assert f"- {finding.sentence}\n" in out


@pytest.mark.parametrize("libibverbs", [True, False])
@pytest.mark.parametrize("has_verbs", [True, False])
def test_a_machine_without_devices_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], libibverbs: bool, has_verbs: bool
) -> None:
    system = replace(system_below(tmp_path), libibverbs=libibverbs, libmlx5=libibverbs, has_verbs=has_verbs)
    _render(Console(width=160), conclusion(system, Listed((), {}), None), every_gid=False)
    out = capsys.readouterr().out
    first = "there is no RDMA device: " if has_verbs else f"the kernel, {system.kernel}, has no RDMA "
    assert f"- {first}" in out
    assert out.startswith(f"no RDMA device\n- {first if libibverbs else 'libibverbs.so.1 cannot be loaded'}")


def test_json_says_of_each_engine_why_not(as_json: AsJson) -> None:
    found = as_json("fhbn", "devices")
    assert found.keys() == {"devices", "findings", "engines", "system"}
    assert [row["engine"] for row in found["engines"]] == ENGINES
    for row in found["engines"]:
        assert row["usable"] == (not row["because"])
        assert row["needs"]
    assert next(row for row in found["engines"] if row["engine"] == "shm")["usable"]
    sentences = [finding["sentence"] for finding in found["findings"]]
    assert all(sentence and "\n" not in sentence for sentence in sentences)


def test_a_device_is_a_row_and_its_gids_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gid = Gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "dummy0")
    port = Port(1, "active", "Ethernet", 1024, 0, "1X 2.5 Gbps", (gid,))
    device = Device("rxe[0]", "rxe", "InfiniBand", "none", 0xFFFFFF, 0, 1048560, (port,))
    found = conclusion(system_below(tmp_path), Listed((device,), {}), None)
    _render(Console(width=160), found, every_gid=False)
    out = capsys.readouterr().out
    row = out.splitlines()[1].split()
    assert row == ["rxe[0]", "rxe", "none", "1", "Ethernet", "active", "1X", "2.5", "Gbps", "1,024", "0",
                   "1", "dummy0"]  # fmt: skip
    assert gid.address not in out
    _render(Console(width=160), found, every_gid=True)
    assert gid.address in capsys.readouterr().out


def test_a_device_that_cannot_be_opened_is_not_called_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = replace(system_below(tmp_path), kernel_devices=("mlx5[0]",))
    _render(Console(width=160), conclusion(system, Listed((), {}), None), every_gid=False)
    assert capsys.readouterr().out.startswith("RDMA devices of which no more can be told: mlx5[0]\n- ")


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("lamina.fhbn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(SystemExit) as exit_:
        run(["fhbn", "devices"])
    assert exit_.value.code == 2
    assert "this needs msgpack, which is not installed: pip install" in capsys.readouterr().err
