"""Workers killed and stopped, and a server soaked, in short; and that what is wrong is seen."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from experiments import child_environment, kills, near_ties
from experiments.kills_http import kills_http
from experiments.processes import facts
from experiments.soak import Minute, _judge, soak
from experiments.stream_client import SeededRequest, Times, WrongAnswerError, check_tokens, seeded_requests
from experiments.tally import Tally


def require_none_failed(tally: Tally, least: int) -> None:
    assert not tally.failures
    assert tally.attempts == tally.survived >= least


# All workers of a process are struck, and this one's may be another test's.
SHORT = """
import sys, msgspec
from experiments import kills
kills.LAYOUTS = (("1xcpu+1xcpu", "model"),)
sys.stdout.buffer.write(msgspec.json.encode(kills.{}([1], strikes=4)))
"""


@pytest.mark.long
@pytest.mark.parametrize("experiment", ["kills_replay", "kills_copies"])
def test_a_replay_has_the_same_tokens(experiment: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", SHORT.format(experiment)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    require_none_failed(msgspec.json.decode(child.stdout, type=Tally), 2)


@pytest.mark.long
def test_streams_have_the_same_tokens() -> None:
    require_none_failed(kills_http([1], strikes=6, connections=200), 200)


@pytest.mark.long
def test_a_soak() -> None:
    tally = soak([1, 2], minute_s=12, peak_s=3)
    # Half of those that were due at the rate that it found: a busy machine answers few.
    require_none_failed(tally, max(6, round(tally.facts["requests_per_s"] * 24 / 2)))
    assert tally.facts["stops"] >= 1


def test_a_lost_wrong_or_repeated_token_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    request = seeded_requests(1, 1, 20)[0]
    right = list(range(request.max_tokens))
    check_tokens(request, right, right)
    for made, kind in ((right[1:], "lost"), ([*right, 0], "wrong"), ([7, *right[1:]], "wrong")):
        with pytest.raises(WrongAnswerError) as raised:
            check_tokens(request, made, right)
        assert raised.value.kind == kind

    undisturbed = kills._undisturbed

    def replayed(*_: Any) -> Mapping[int, list[int]]:
        return {row: tokens[:-1] for row, tokens in undisturbed(("", 1), 2, 200).items()}

    monkeypatch.setattr(kills, "_undisturbed", lambda *_: {0: [1, 2, 3]})
    undisturbed = kills._undisturbed
    monkeypatch.setattr(kills, "_replay", replayed)
    assert kills.kills_replay([1], strikes=2).lost == 1


def test_of_two_tokens_that_are_equally_likely_either_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [3, 1, 4, 1, 5]
    made: list[int] = []
    for _ in range(4):
        scores = near_ties._original(kills.MODEL)(torch.tensor([[*prompt, *made]])).logits[0, -1]
        made.append(int(scores.argmax()))
    other = [*made[:3], made[3] ^ 1]
    assert near_ties.likeliest(kills.MODEL, prompt, made)
    assert not near_ties.likeliest(kills.MODEL, prompt, other)
    monkeypatch.setattr(near_ties, "NEAR", 100.0)
    assert near_ties.likeliest(kills.MODEL, prompt, other)


def test_growth_and_slowness_are_detected() -> None:
    def minute(seed: int, rss: float, between: float) -> Minute:
        takes = {"front_end_rss_bytes": rss, "workers_rss_bytes": 1e9}
        return Minute(seed, Times([0.1], [between] * 10, 1), takes=takes)

    flat = [minute(seed, 3e8, 0.01) for seed in range(10)]
    for last, kind in (((3e8, 0.01), None), ((6e8, 0.01), "leaked"), ((3e8, 0.02), "wrong")):
        tally = Tally("soak")
        _judge([*flat, minute(10, *last)], tally)
        assert {each.kind for each in tally.failures} == ({kind} if kind else set())


def test_what_a_process_takes() -> None:
    before = facts([os.getpid()])
    assert before["rss_bytes"] > 1e6
    with open(os.devnull):  # noqa: PTH123
        assert facts([os.getpid()])["descriptors"] == before["descriptors"] + 1


def test_a_body_that_breaks_off_is_lost() -> None:
    from experiments.stream_client import Client

    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:")
        writer.close()

    async def request() -> None:
        server = await asyncio.start_server(broken, "127.0.0.1", 0)
        async with server:
            with pytest.raises(WrongAnswerError) as raised:
                await Client(server.sockets[0].getsockname()[1]).answer(SeededRequest((1,), 2, 3))
        assert raised.value.kind == "lost"

    asyncio.run(request())
