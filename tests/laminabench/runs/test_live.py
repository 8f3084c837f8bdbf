"""The file of a replay under way: it is read as it grows, and an ended process is detected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laminabench.runs.live import (
    End,
    FaultEvent,
    Header,
    Line,
    LiveFile,
    Moment,
    alive,
    live_path,
    read_live,
    started,
)
from laminabench.util.errors import UserError

HEADER = Header(
    laminabench="1",
    pid=os.getpid(),
    pid_started=started(os.getpid()),
    began="2026-01-01T12:00:00+00:00",
    command=("laminabench", "replay"),
    request='trace = "azure-conv"\n',
    trace="azure-conv",
    requests=3,
    system="lamina",
    deployment="1xcpu+1xcpu",
    model="llama-mini",
    mode="saturate",
    slo_tbt_ms=100.0,
)
LINES: list[Line] = [
    Moment(at_s=0.25, finished=0, failed=0, requests=3, tokens=10, tokens_per_s=40.0, batch=3, kv_tokens=99),
    FaultEvent(at_s=0.3, workers=("attention 0",), why="struck \u2028 on\npurpose", struck="kill"),
    Moment(at_s=0.5, finished=1, failed=1, requests=3, tokens=30, tbt_ms_p50=float("nan")),
    End(at_s=0.6, state="interrupted", resume="laminabench replay --resume x"),
]
STORED = [*LINES[:2], msgspec.structs.replace(LINES[2], tbt_ms_p50=None), LINES[3]]


def written(path: Path) -> bytes:
    file = LiveFile(path, HEADER)
    for line in LINES:
        file.write(line)
    file.close()
    return path.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_is_cut_off_is_read_later(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.live"
    whole = written(path)
    first = whole.index(b"\n") + 1
    offset, result = 0, []
    for cut in [*sorted(data.draw(st.lists(st.integers(first, len(whole)), max_size=6))), len(whole)]:
        path.write_bytes(whole[:cut])
        lines, offset = read_live(path, offset)
        result += lines
    assert result == [HEADER, *STORED]
    assert read_live(path, offset) == ([], offset)


def test_what_is_not_whole_yet_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.live"
    path.write_bytes(written(path)[:20])
    assert read_live(path) == ([], 0)
    with pytest.raises(FileNotFoundError):
        read_live(tmp_path / "none.live")


def test_lines_of_a_later_version_are_left_out_and_other_files_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.live"
    whole = written(path)
    path.write_bytes(whole + b'{"kind": "weather", "at_s": 1}\n\xff\xfe\n{"kind": "moment"}\n[]\n\n' + whole)
    assert [line for line in read_live(path)[0] if not isinstance(line, Header)] == [*STORED, *STORED]
    for text in (b"hello\n", b'{"kind": "moment"}\n', b'{"kind": "header", "format": "other"}\n'):
        path.write_bytes(text)
        with pytest.raises(UserError, match="live-not-live"):
            read_live(path)


def test_an_orphan_is_replaced_and_readers_start_again(tmp_path: Path) -> None:
    path = tmp_path / "a.live"
    written(path)
    _, offset = read_live(path)
    file = LiveFile(path, msgspec.structs.replace(HEADER, trace="t" * 2000))
    lines, offset = read_live(path, offset)
    assert [type(line) for line in lines] == [Header]
    assert read_live(path, offset) == ([], offset)
    file.remove()
    assert list(tmp_path.iterdir()) == []
    file.remove()


def test_it_is_next_to_its_run() -> None:
    assert live_path(Path("runs/v1.5-x")) == Path("runs/v1.5-x.live")


def test_where_nothing_can_be_written_nothing_ends(tmp_path: Path) -> None:
    full = LiveFile(tmp_path / "a.live", HEADER)
    full.close()
    full._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    for line in LINES:
        full.write(line)
    assert full._file is None
    full.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_ended_process_is_not_taken_for_another() -> None:
    assert alive(HEADER)
    assert alive(msgspec.structs.replace(HEADER, pid_started=None))
    assert not alive(msgspec.structs.replace(HEADER, pid_started=(HEADER.pid_started or 0) + 1))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = msgspec.structs.replace(HEADER, pid=process.pid, pid_started=started(process.pid))
        assert alive(other)
        process.kill()
        assert process.stdin is not None
        while alive(other):  # as a zombie, too
            pass
    assert not alive(other)
    assert not alive(msgspec.structs.replace(other, pid_started=None))
