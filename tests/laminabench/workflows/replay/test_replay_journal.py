"""Resuming from a damaged journal reports what is replayed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.requests.replay import ReplayRequest
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT, Listener
from laminabench.workflows.replay.journal import ReplayJournal
from laminabench.workflows.replay.run import load


class Noting(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


def test_a_run_that_was_written_meanwhile_is_left_alone(tmp_path: Path) -> None:
    request = ReplayRequest(trace="profile:azure-conv", num_requests=5)
    journal = ReplayJournal.begun(tmp_path / "run", request, load(request, SILENT))
    journal.open()
    journal.close()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="run-exists"):
        ReplayJournal.reopened(journal.path)


def test_lost_records_of_a_damaged_journal_are_reported(tmp_path: Path) -> None:
    request = ReplayRequest(trace="profile:azure-conv", num_requests=5)
    begun = ReplayJournal.begun(tmp_path / "run", request, load(request, SILENT))
    journal = begun.open()
    places = []
    for row in range(4):
        places.append(begun.path.stat().st_size)
        journal.append(["Arrived", row, 0.0, None])
        journal.flush()
    begun.close()
    data = bytearray(begun.path.read_bytes())
    data[places[1] + 9] ^= 1
    begun.path.write_bytes(data)
    listener = Noting()
    reopened = ReplayJournal.reopened(begun.path, listener)
    reopened.close()
    assert reopened.events == [["Arrived", 0, 0.0, None]]
    (note,) = listener.notes
    assert "2 whole records" in note
    assert f"{begun.path}.damaged-1" in note
    assert Path(f"{begun.path}.damaged-1").read_bytes() == bytes(data)
