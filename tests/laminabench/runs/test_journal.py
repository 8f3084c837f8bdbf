"""A journal is as good as its last whole record, whatever became of its writer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laminabench.errors import UserError
from laminabench.runs.journal import MAGIC, Journal, beside

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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
    journal, found = Journal.reopen(path)
    assert found == [HEADER, *records[:whole]]
    journal.append(["more"])
    journal.close()
    assert read(path) == [HEADER, *records[:whole], ["more"]]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    ends = written(path, [["first", 1.5], ["second"], ["third", [1, 2, 3]]])
    whole = path.read_bytes()
    intact = [HEADER, ["first", 1.5], ["second"], ["third", [1, 2, 3]]]
    for place in range(len(MAGIC), len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            before = sum(end <= place for end in ends)
            # Refused, or taken for the torn end of a write: nothing that is wrong is believed.
            found = None
            with contextlib.suppress(UserError):
                found = read(path)
            assert found is None or (found and found == intact[:before])


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
    path = beside(tmp_path / "deep" / "run")
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
