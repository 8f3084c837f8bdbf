"""A journal is as good as its last whole record, whatever became of its writer."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laminabench.runs.journal import MAGIC, Journal, journal_path
from laminabench.util.errors import UserError

HEADER = {"what": "header"}
RECORDS = st.lists(st.lists(st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)))


def written(path: Path, records: list[Any]) -> list[int]:
    """A journal with these records; where each of them ends, the header first."""
    journal = Journal.create(path, HEADER)
    ends = [path.stat().st_size]
    for record in records:
        journal.append(record)
        journal.flush()
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def read(path: Path) -> list[Any]:
    journal, records = Journal.reopen(path)
    journal.close()
    return records


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(records=RECORDS, data=st.data())
def test_any_cut_leaves_the_records_before_it_and_it_goes_on_there(
    tmp_path: Path, records: list[Any], data: st.DataObject
) -> None:
    path = tmp_path / "one.journal"
    path.unlink(missing_ok=True)
    ends = written(path, records)
    cut = data.draw(st.integers(ends[0], ends[-1]))
    path.write_bytes(path.read_bytes()[:cut])
    whole = sum(end <= cut for end in ends[1:])
    journal, result = Journal.reopen(path)
    assert result == [HEADER, *records[:whole]]
    journal.append(["more"])
    journal.close()
    assert read(path) == [HEADER, *records[:whole], ["more"]]


def test_of_a_flipped_bit_what_is_lost_is_said_and_what_is_whole_is_kept(tmp_path: Path) -> None:
    path, copy = tmp_path / "one.journal", tmp_path / "one.journal.damaged-1"
    intact = [HEADER, ["first", 1.5], ["second"]]
    ends = written(path, intact[1:])
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 7):  # each bit of a byte comes its turn
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        before = sum(end <= place // 8 for end in ends)
        if not before:
            code = "journal-not-a-journal" if place // 8 < len(MAGIC) else "journal-damaged"
            with pytest.raises(UserError, match=code):
                read(path)
            assert path.read_bytes() == damaged
            continue
        journal, result = Journal.reopen(path)
        journal.close()
        assert result == intact[:before]
        assert journal.damage is not None
        assert journal.damage.behind == len(intact) - before - 1
        # The last record may as well be the torn end of a write.
        assert copy.exists() == (before < len(intact) - 1)
        if copy.exists():
            assert copy.read_bytes() == damaged
            copy.unlink()


def test_after_one_damaged_record_in_a_long_journal_it_goes_on_before_it(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    ends = written(path, [["record", number] for number in range(1000)])
    data = bytearray(path.read_bytes())
    data[ends[9] + 2] ^= 1  # in the length of a record
    path.write_bytes(data)
    journal, result = Journal.reopen(path)
    assert result == [HEADER, *(["record", number] for number in range(9))]
    assert journal.damage is not None
    assert (journal.damage.behind, journal.damage.at_byte) == (990, ends[9])
    journal.append(["more"])
    journal.close()
    assert read(path)[-2:] == [["record", 8], ["more"]]
    assert (tmp_path / "one.journal.damaged-1").read_bytes() == bytes(data)


def test_records_behind_a_damaged_one_do_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    ends = written(path, [["record", number] for number in range(9)])
    data = bytearray(path.read_bytes())
    data[ends[3] + 2] ^= 1
    path.write_bytes(data)
    journal, _ = Journal.reopen(path)
    journal.append(["newest", 0])  # as long as the one it takes the place of
    journal.close()
    assert read(path) == [HEADER, *(["record", number] for number in range(3)), ["newest", 0]]


def test_what_was_flushed_is_forced_to_the_disk_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = threading.Event()
    monkeypatch.setattr("laminabench.runs.journal.SYNC_EVERY_S", 0.01)
    monkeypatch.setattr("os.fdatasync", lambda _: forced.set())
    journal = Journal.create(tmp_path / "one.journal", HEADER)
    journal.append(["record"])
    journal.flush()
    assert forced.wait(30)
    journal.close()


def test_a_disk_that_takes_nothing_more_is_told_of_at_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("laminabench.runs.journal.SYNC_EVERY_S", 0.01)
    monkeypatch.setattr("os.fdatasync", broken)
    journal = Journal.create(tmp_path / "one.journal", HEADER)
    journal.flush()
    journal._forcing.join(30)
    with pytest.raises(UserError, match="file-not-writable"):
        journal.flush()
    journal.close()


def test_what_is_no_journal_or_has_no_beginning(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    ends = written(path, [])
    path.write_bytes(path.read_bytes()[: ends[0] - 1])
    with pytest.raises(UserError, match="journal-damaged"):
        read(path)
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match="journal-not-a-journal"):
        read(path)
    with pytest.raises(UserError, match="file-not-readable"):
        read(tmp_path / "none.journal")


def test_only_one_has_it_at_a_time(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "deep" / "run")
    journal = Journal.create(path, HEADER)
    with pytest.raises(UserError, match="journal-in-use"):
        Journal.reopen(path)
    with pytest.raises(UserError, match="journal-exists"):
        Journal.create(path, HEADER)
    journal.remove()
    assert not path.exists()
    Journal.create(path, HEADER).close()


def test_one_that_is_removed_while_it_is_opened_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.journal"
    written(path, [])

    def just_missed(*_: Any) -> None:
        path.unlink()

    monkeypatch.setattr("fcntl.flock", just_missed)
    with pytest.raises(UserError, match="journal-gone"):
        Journal.reopen(path)
