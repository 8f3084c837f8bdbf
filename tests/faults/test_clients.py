"""A few clients that do what none should, and mutated requests, against a server that is really served."""

from __future__ import annotations

import os
import random
from pathlib import Path

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
    assert (tally.attempts, tally.survived) == (150, 150), tally.failures
    assert len(KINDS) == 8


# What a server may do wrong, and the kind of failure that it is.
SPOILED = {
    "leaked": (
        "import os, lamina.http.connection as c\n"
        "lost = c.Connection.connection_lost\n"
        "c.Connection.connection_lost = lambda self, error: (os.dup(2), lost(self, error))[1]"
    ),
    "lost": (
        "import itertools, lamina.http.answering as a\n"
        "event, count = a.event, itertools.count()\n"
        "a.event = lambda body: b'' if next(count) > 100 else event(body)"
    ),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of clients that give up
@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_server_is_detected(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(SPOILED[kind])
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert kind in {failure.kind for failure in clients(range(150)).failures}


@pytest.mark.long
def test_nothing_is_left_of_mutated_requests() -> None:
    tally = http_fuzz(range(2000))
    assert (tally.attempts, tally.survived) == (2000, 2000), tally.failures
