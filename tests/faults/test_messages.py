"""Damaged messages in short, and two that fuzzing discovered."""

from __future__ import annotations

import os

import pytest

from experiments import messages
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
