"""Damaged messages in short; that a process of its own which dies is seen; and what fuzzing has found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiments import messages
from experiments.isolated import run as run_isolated
from lamina.cluster import messages as wire
from lamina.fhbn.control import Deadline


def test_in_short() -> None:
    tally = messages.messages(range(600))
    assert not tally.failures
    assert tally.survived == 600


def test_a_message_that_is_no_text_is_refused() -> None:
    body = wire.encode(wire.Failed("no memory")).replace(b"no memory", b"no m\xff\xfeory")
    with pytest.raises(wire.MessageError) as refused:
        wire.decode(body, "attention 0")
    assert refused.value.code == "worker-message-invalid"


def test_a_length_that_cannot_be_is_refused() -> None:
    ends = os.pipe()
    os.write(ends[1], b"\xff" * 8)
    try:
        with pytest.raises(wire.MessageError, match="18,446,744,073,709,551,615 bytes"):
            wire.read(ends[0], "the front end", Deadline(5))
    finally:
        for end in ends:
            os.close(end)


def test_an_accepted_bad_peer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: True)
    assert messages.messages(range(600)).wrong > 0


DIES = """
import experiments.files as files
def dies_at_seven(seeds):
    import os, signal
    from experiments.tally import Tally
    tally = Tally("dies")
    for seed in seeds:
        if seed == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        tally.add(None, "", seed)
    return tally
files.flipped_bits = dies_at_seven
"""


def test_a_case_that_kills_its_process_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES)
    tally = run_isolated("files:flipped_bits", range(20), {"PYTHONPATH": str(tmp_path)})
    assert (tally.attempts, tally.survived, tally.crashed) == (13, 12, 1)
    assert tally.failures[0].seed == 7
    assert "signal 9" in tally.failures[0].what
