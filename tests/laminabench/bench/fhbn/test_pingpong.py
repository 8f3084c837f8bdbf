"""The ping-pong measures what it says, and its other process ends with it, however that goes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from lamina import _native
from laminabench.bench.fhbn import peer, results
from laminabench.bench.fhbn.options import engines_of
from laminabench.bench.fhbn.pingpong import Measured, run, two_cores
from laminabench.util.errors import UserError

pytest.importorskip("msgpack")


def result_of(measured: Measured) -> dict[str, Any]:
    return measured.report.json()


def write(target: Path, measured: Measured, command: Sequence[str]) -> None:
    results.write(target, result_of(measured), measured.rounds, command)


@pytest.fixture(scope="module")
def measured() -> Measured:
    before = os.sched_getaffinity(0)
    result = run(engines_of("shm"), [64, 100_000], seconds=0.1)
    assert os.sched_getaffinity(0) == before
    return result


def test_rows_are_those_requested(measured: Measured) -> None:
    result = result_of(measured)
    assert [(each["engine"], each["bytes"]) for each in result["rows"]] == [("shm", 64), ("shm", 100_000)]
    for each in result["rows"]:
        assert 0 < each["rtt_us_min"] <= each["rtt_us_p10"] <= each["rtt_us_p50"] <= each["rtt_us_p99"]
        assert each["gb_per_s"] == pytest.approx(each["bytes"] / each["one_way_us_p50"] / 1e3)
        limits = [result["limits"][f"{name}_gb_per_s"][str(each["bytes"])] for name in results.COPIES]
        assert each["share_of_memcpy"] == pytest.approx(each["gb_per_s"] / limits[0])
        assert each["share_of_limit"] == pytest.approx(each["gb_per_s"] / max(limits))
        assert each["verified"]
        assert each["caveat"] is None
        assert each["read_gb_per_s"] > 0
        shares = each["share_of_memcpy_by_round"]
        assert 0 < shares["min"] <= shares["median"] <= shares["max"]
    small, large = result["rows"]
    assert small["target"] == {"rtt_us_p50": 2.0}
    assert small["met"] == (small["rtt_us_p50"] <= 2.0) == result["met"]
    assert (large["target"], large["met"]) == (None, None)


@pytest.mark.skipif(two_cores() is None, reason="with one core, both take turns as the system likes")
def test_gloo_is_measured_with_shared_memory() -> None:
    pytest.importorskip("torch")
    rows = result_of(run(engines_of("gloo,shm"), [64, 200_000], seconds=0.1))["rows"]
    assert [each["engine"] for each in rows] == ["gloo", "gloo", "shm", "shm"]
    # A socket and a thread beside a cache line.
    assert rows[0]["rtt_us_p50"] > rows[2]["rtt_us_p50"]


def test_a_refusal_by_the_other_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = peer._hand_over

    def badly(child: subprocess.Popen[bytes], task: str) -> None:
        handed(child, json.dumps(json.loads(task) | {"engines": ["smoke"]}))

    monkeypatch.setattr(peer, "_hand_over", badly)
    with (
        pytest.raises(UserError, match=r"cannot open a channel over shm: .*network 'smoke' is unknown"),
        peer.echoing(["shm"], 64, None),
    ):
        pass


@pytest.fixture
def gloo_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its channels cannot be opened, though nothing is missing."""
    opened = peer.channels

    def fail(link: Any, engine: str, *arguments: Any, **keywords: Any) -> Any:
        if engine == "gloo":
            link.close()
            raise RuntimeError("no sockets\nat all")
        return opened(link, engine, *arguments, **keywords)

    monkeypatch.setattr(peer, "channels", fail)


@pytest.mark.usefixtures("gloo_fails")
def test_an_engine_not_requested_is_skipped_if_it_does_not_open() -> None:
    pytest.importorskip("torch")
    result = result_of(run(engines_of("gloo,shm", named=False), [64], seconds=0.01))
    assert result["engines"] == ["shm"] == [each["engine"] for each in result["rows"]]
    assert result["skipped"] == {"gloo": "it could not be opened: no sockets"}


@pytest.mark.usefixtures("gloo_fails")
@pytest.mark.parametrize(("text", "named"), [("shm,gloo", True), ("gloo", False)])
def test_one_that_was_named_or_is_the_last_must_open(text: str, named: bool) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match="fhbn-not-opened"):
        run(engines_of(text, named=named), [64], seconds=0.01)


def test_a_failure_in_the_other_process_is_reported() -> None:
    with (
        pytest.raises(UserError, match="the echoing process is lost: KeyError: 'smoke'"),
        peer.echoing(["shm"], 64, None) as echo,
    ):
        order_and_wait(echo, "smoke")


def order_and_wait(echo: peer.Echo, engine: str) -> None:
    echo.begin(engine, 3)
    echo.ends["shm"][1].recv()


def test_one_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        pytest.raises(UserError, match="the echoing process did not start: it said nothing"),
        peer.echoing(["shm"], 64, None),
    ):
        pass


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_one_that_is_killed_is_reported(engine: str) -> None:
    if engine == "gloo":
        pytest.importorskip("torch")
    with (
        pytest.raises(UserError, match="the echoing process is lost: it was ended by signal 9"),
        peer.echoing([engine], 64, None) as echo,
    ):
        kill_and_wait(echo, engine)


def kill_and_wait(echo: peer.Echo, engine: str) -> None:
    echo.begin(engine, 3)
    os.kill(echo.pid, signal.SIGKILL)
    echo.ends[engine][1].recv()


def test_it_ends_with_the_block() -> None:
    with peer.echoing(["shm"], 64, None) as echo:
        pid = os.pidfd_open(echo.pid)
    assert ended(pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(echo.pid, os.WNOHANG)


@pytest.mark.parametrize("core", [max(os.sched_getaffinity(0)), None])
def test_it_has_the_core_it_was_given(core: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    native = _native.ShmReceiver

    def noted(*arguments: Any, **keywords: Any) -> Any:
        waits.append(keywords["spin_s"])
        return native(*arguments, **keywords)

    monkeypatch.setattr("lamina.fhbn.shm.ShmReceiver", noted)
    with peer.echoing(["shm"], 64, core) as echo:
        sender, receiver = echo.ends["shm"]
        echo.begin("shm", 1)
        sender.send(b"there")
        with receiver.recv() as message:
            assert bytes(message[0]) == b"there"
        assert os.sched_getaffinity(echo.pid) == (os.sched_getaffinity(0) if core is None else {core})
    # Without a core to itself a thread that looks keeps the other one from answering.
    assert [spin_s == 0 for spin_s in waits] == [core is None]


def ended(pid: int) -> bool:
    """Whether the process ends soon; closes the descriptor."""
    try:
        return bool(select.select([pid], [], [], 20)[0])
    finally:
        os.close(pid)


def started(arguments: Sequence[str]) -> tuple[subprocess.Popen[str], int]:
    """The command, measuring, and a descriptor of its other process."""
    command = [sys.executable, "-m", "laminabench", "bench", "fhbn", "-v", "--seconds", "100", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "the echoing process is" in line:
            return process, os.pidfd_open(int(line.split()[-1]))
    raise AssertionError("it has not started")


@pytest.mark.long(but=["15-143-shm"])
@pytest.mark.parametrize("engine", ["shm", "gloo"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_the_other_process_ends_with_a_signal_to_the_first(engine: str, number: int, code: int) -> None:
    if engine == "gloo":
        pytest.importorskip("torch")
    process, child = started(["--engines", engine, "--sizes", "64,1M"])
    with process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    assert len(err.strip().splitlines()) <= 1
    assert ended(child)


def test_the_secret_is_not_on_the_command_line() -> None:
    with peer.echoing(["shm"], 64, None) as echo:
        words = Path(f"/proc/{echo.pid}/cmdline").read_bytes().split(b"\0")
    assert words[1:] == [b"-m", b"laminabench.bench.fhbn.peer", b""]


def test_shared_memory_needs_no_torch() -> None:
    code = (
        "import sys; from laminabench.bench.fhbn.pingpong import run;"
        "from laminabench.bench.fhbn.options import engines_of;"
        "run(engines_of('auto'), [64], 0.01); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_was_measured_is_read_back(measured: Measured, tmp_path: Path) -> None:
    target = tmp_path / "run"
    for _ in range(2):  # the second replaces the first
        write(target, measured, ["laminabench", "bench", "fhbn", "--out", "a b"])
    result = results.read(target)
    assert result["rows"] == result_of(measured)["rows"]
    assert (result["kind"], result["backend"]) == ("fhbn-pingpong", "live")
    assert result["command"] == "laminabench bench fhbn --out 'a b'"
    table = pyarrow.parquet.read_table(target / "pingpong.parquet")
    assert table.to_pylist() == list(measured.rounds)


def test_what_is_not_a_pingpong_is_left_alone(measured: Measured, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": "laminabench-run"}')
    with pytest.raises(UserError, match="exists and is not a ping-pong; it is left alone"):
        write(tmp_path, measured, [])
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(UserError, match="fhbn-run-unknown"):
        results.read(tmp_path)


def changed(manifest: Path, **facts: Any) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | facts))


def test_a_damaged_one_is_reported(measured: Measured, tmp_path: Path) -> None:
    target = tmp_path / "run"
    write(target, measured, [])
    changed(target / "run.json", format_version=99)
    with pytest.raises(UserError, match="fhbn-run-format"):
        results.read(target)
    changed(target / "run.json", format_version=results.FORMAT_VERSION)
    with (target / "pingpong.parquet").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match="fhbn-run-damaged"):
        results.read(target)
