"""`laminabench fhbn devices` and `laminabench bench fhbn` as a person types them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lamina.fhbn.nic.devices import Device, Gid, Listed, Port
from lamina.fhbn.nic.diagnosis import conclusion
from lamina.fhbn.nic.machine import system_below
from laminabench.cli.fhbn import render as render_devices
from laminabench.util.errors import UserError

pytest.importorskip("msgpack")

SHORT = ("bench", "fhbn", "--seconds", "0.05", "--engines", "shm", "--sizes", "64,4K")


def test_json_has_the_findings(as_json: Any, tmp_path: Path) -> None:
    result = as_json(*SHORT, "--out", "run", "--plot", "fig.svg")
    assert [(row["engine"], row["bytes"]) for row in result["rows"]] == [("shm", 64), ("shm", 4096)]
    expected = {"rtt_us_p50", "rtt_us_p99", "gb_per_s", "read_gb_per_s", "share_of_memcpy", "share_of_limit"}
    assert expected <= result["rows"][0].keys()
    assert result["skipped"] == {}
    assert "published" in (tmp_path / "fig.svg").read_text()
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["rows"] == result["rows"]


def test_a_picture_that_fails_does_not_take_the_result_away(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UserError("figure-unwritable", "cannot write fig.svg: No space left on device")

    monkeypatch.setattr("laminabench.papers.fig13.draw", full)
    code, out, err = shell(*SHORT, "--plot", "fig.svg", "--json")
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left" in err
    assert len(json.loads(out)["rows"]) == 2


def test_skipped_items_are_reported(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    out = printed("bench", "fhbn", "--seconds", "0.05", "--sizes", "64")
    assert "gloo skipped: torch is not installed" in out
    assert "nccl skipped: torch is not installed" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sizes", "64:16X"], "--sizes '64:16X': give FIRST:LAST or a list such as 64,4K,1M"),
        (["--engines", "pigeon"], "--engines 'pigeon': there is no 'pigeon', give some of auto, shm, verbs"),
        (["--plot", "figure.gif"], "cannot draw figure.gif: give it one of the suffixes"),
        (["--plot", "/dev/null/figure.svg"], "cannot write /dev/null/figure.svg: /dev/null is not a dir"),
        (["--plot", "drawer.svg"], "cannot write drawer.svg: it exists and is not a file"),
        (["--out", "something/run"], "/something is not a directory"),
        (["--device", "cuda", "--out", "run", "--sizes", "64"], "leave out --out, --sizes"),
        (["--seconds", "0"], "is not above zero"),
        (["--out", "."], ". exists and is not a ping-pong; it is left alone"),
    ],
)
def test_mistakes_are_one_sentence(refused: Any, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "something").write_text("")
    (tmp_path / "drawer.svg").mkdir()
    refused(sentence, "bench", "fhbn", *arguments)


@pytest.mark.parametrize("command", [["bench", "fhbn"], ["fhbn", "devices"]])
def test_a_missing_extra_is_reported(
    refused: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("lamina.fhbn", "laminabench.bench.fhbn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    refused("this needs msgpack, which is not installed: pip install", *command)


ENGINES = ["shm", "verbs", "mlx5", "mlx5 on a GPU", "softnic", "gloo", "nccl"]


@pytest.mark.parametrize("libibverbs", [True, False])
@pytest.mark.parametrize("has_verbs", [True, False])
def test_a_machine_without_devices_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], libibverbs: bool, has_verbs: bool
) -> None:
    system = replace(system_below(tmp_path), libibverbs=libibverbs, libmlx5=libibverbs, has_verbs=has_verbs)
    render_devices(Console(width=160), conclusion(system, Listed((), {}), None), every_gid=False)
    out = capsys.readouterr().out
    first = "there is no RDMA device: " if has_verbs else f"the kernel, {system.kernel}, has no RDMA "
    assert f"- {first}" in out
    assert out.startswith(f"no RDMA device\n- {first if libibverbs else 'libibverbs.so.1 cannot be loaded'}")


def test_json_says_of_each_engine_why_not(as_json: Any) -> None:
    result = as_json("fhbn", "devices")
    assert result.keys() == {"devices", "findings", "engines", "rings", "system"}
    assert [row["engine"] for row in result["engines"]] == ENGINES
    for row in result["engines"]:
        assert row["usable"] == (not row["because"])
        assert row["needs"]
    assert next(row for row in result["engines"] if row["engine"] == "shm")["usable"]
    sentences = [finding["sentence"] for finding in result["findings"]]
    assert all(sentence and "\n" not in sentence for sentence in sentences)


def test_a_device_is_a_row_and_its_gids_are_queried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gid = Gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "dummy0")
    port = Port(1, "active", "Ethernet", 1024, 0, "1X 2.5 Gbps", (gid,))
    device = Device("rxe[0]", "rxe", "InfiniBand", "none", 0xFFFFFF, 0, 1048560, (port,))
    result = conclusion(system_below(tmp_path), Listed((device,), {}), None)
    render_devices(Console(width=160), result, every_gid=False)
    out = capsys.readouterr().out
    row = out.splitlines()[1].split()
    assert row == ["rxe[0]", "rxe", "none", "1", "Ethernet", "active", "1X", "2.5", "Gbps", "1,024", "0",
                   "1", "dummy0"]  # fmt: skip
    assert gid.address not in out
    render_devices(Console(width=160), result, every_gid=True)
    assert gid.address in capsys.readouterr().out


def test_a_device_that_cannot_be_opened_is_not_called_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = replace(system_below(tmp_path), kernel_devices=("mlx5[0]",))
    render_devices(Console(width=160), conclusion(system, Listed((), {}), None), every_gid=False)
    assert capsys.readouterr().out.startswith("RDMA devices without further information: mlx5[0]\n- ")
