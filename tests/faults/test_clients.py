"""A few hostile clients and mutated requests against a real server."""

from __future__ import annotations

import pytest

from experiments.clients import KINDS, clients, http_fuzz

pytest.importorskip("fastapi")


def test_nothing_is_left_of_some() -> None:
    tally = clients(range(150))
    assert (tally.attempts, tally.survived) == (150, 150), tally.failures
    assert len(KINDS) == 8


@pytest.mark.long
def test_nothing_is_left_of_mutated_requests() -> None:
    tally = http_fuzz(range(2000))
    assert (tally.attempts, tally.survived) == (2000, 2000), tally.failures
