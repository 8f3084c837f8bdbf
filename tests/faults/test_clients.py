"""A few clients that do what none should, and mutated requests, against a server that is really served."""

from __future__ import annotations

import random

import pytest

from experiments.clients import KINDS, clients, http_fuzz
from experiments.mutations import mutated

pytest.importorskip("fastapi")


def test_mutations_repeat_from_their_seed() -> None:
    request = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
    made = [mutated(request, random.Random(seed)) for seed in range(200)]
    assert made == [mutated(request, random.Random(seed)) for seed in range(200)]
    assert len(set(made)) > 100


def test_nothing_is_left_of_some() -> None:
    tally = clients(range(150))
    assert (tally.tried, tally.survived) == (150, 150), tally.failures
    assert len(KINDS) == 8


@pytest.mark.long
def test_nothing_is_left_of_mutated_requests() -> None:
    tally = http_fuzz(range(2000))
    assert (tally.tried, tally.survived) == (2000, 2000), tally.failures
