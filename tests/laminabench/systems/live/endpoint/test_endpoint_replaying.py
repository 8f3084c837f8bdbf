"""Whole replays against a server that behaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from laminabench.runs.status import DONE
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.redact import Secret

Replayed = Callable[..., Any]
MakeTrace = Callable[..., Trace]


def test_every_request_is_sent_as_the_trace_has_it(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    result = observed(make_trace(requests=5, prompt=9, output=4))
    outcome, calls, chunks = result.outcome, result.outcome.calls, result.outcome.chunks
    bodies = server.bodies[1:]
    assert [len(body["prompt"]) for body in bodies] == [9] * 5
    assert {(body["max_tokens"], body["min_tokens"], body["ignore_eos"]) for body in bodies} == {(4, 4, True)}
    assert {(body["temperature"], body["stream"], body["model"]) for body in bodies} == {(0, True, "m")}
    assert outcome.requests["status"].tolist() == [DONE] * 5
    assert np.bincount(chunks["request"], chunks["tokens"]).tolist() == [4] * 5
    assert (np.diff(chunks["at_s"]) >= 0).all()
    assert calls["prompt_counted"].tolist() == [9] * 5
    assert calls["completion_counted"].tolist() == [4] * 5
    assert (calls["sent_s"] >= calls["due_s"]).all()
    assert (outcome.requests["finished_s"] <= outcome.end_s).all()
    assert not calls["even"].any()
    assert result.partial is None


def test_the_same_seed_sends_the_same_prompts_and_another_does_not(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    for seed in (1, 1, 2):
        observed(make_trace(requests=1), seed=seed)
    first, again, other = (body["prompt"] for body in server.bodies[1::2])
    assert first == again != other


def test_open_requests_go_out_at_their_times(observed: Replayed, make_trace: MakeTrace) -> None:
    trace = make_trace(requests=6, gap_s=0.03)
    calls = observed(trace).outcome.calls
    np.testing.assert_allclose(calls["due_s"], trace.arrival_s, atol=1e-9)
    assert (calls["sent_s"] >= trace.arrival_s).all()


@pytest.mark.parametrize(
    ("mode", "more", "most"),
    [("closed", {"concurrency": 2}, 2), ("saturate", {"connections": 3}, 3), ("saturate", {}, 8)],
)
def test_no_more_are_in_flight_than_there_are_places(
    server: Any, observed: Replayed, make_trace: MakeTrace, mode: str, more: dict[str, int], most: int
) -> None:
    result = observed(make_trace(requests=8, output=6), mode=mode, **more)
    assert server.most_at_once <= most
    assert result.facts["connections_opened"] <= most
    assert result.facts["in_flight_at_most"] == most
    assert result.outcome.queue_empty_s == result.outcome.calls["sent_s"].max()


def test_clients_in_processes_of_their_own_share_the_requests(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    alone = observed(make_trace(requests=7))
    sent_alone = {json.dumps(body["prompt"]) for body in server.bodies[1:]}
    before = len(server.bodies)
    together = observed(make_trace(requests=7), client_workers=3)
    sent_together = {json.dumps(body["prompt"]) for body in server.bodies[before + 1 :]}
    assert sent_alone == sent_together
    assert together.facts["client_workers"] == 3
    for name in ("request", "tokens"):
        assert sorted(alone.outcome.chunks[name]) == sorted(together.outcome.chunks[name])
    assert together.outcome.requests["status"].tolist() == [DONE] * 7
    assert together.outcome.end_s < 30


def test_warm_up_is_not_counted(server: Any, observed: Replayed, make_trace: MakeTrace) -> None:
    result = observed(make_trace(requests=3), warm_up=2)
    assert len(server.bodies) == 1 + 2 + 3
    assert len(result.outcome.requests["status"]) == 3
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("reported", ["token_ids", "logprobs"])
def test_tokens_of_a_chunk_are_known_from_what_it_says_of_them(
    server: Any, observed: Replayed, make_trace: MakeTrace, reported: str
) -> None:
    async def answer(requested: Any) -> None:
        requested.stream()
        for size in (2, 1):
            result = (
                {"token_ids": [7] * size}
                if reported == "token_ids"
                else {"logprobs": {"tokens": ["x"] * size}}
            )
            await requested.token(**result)
        await requested.end(usage=3)

    server.usual = answer
    result = observed(make_trace(requests=2, output=3))
    assert sorted(result.outcome.chunks["tokens"]) == [1, 1, 2, 2]
    assert not result.outcome.calls["even"].any()
    assert result.facts["requests_by_how_tokens_are_known"] == {reported: 2}


@pytest.mark.parametrize(("usage", "expected"), [(5, [2, 2, 1]), (2, [1, 1]), (None, [1, 1, 1])])
def test_uncounted_tokens_are_spread_evenly_with_a_note(
    server: Any, observed: Replayed, make_trace: MakeTrace, usage: int | None, expected: list[int]
) -> None:
    async def answer(requested: Any) -> None:
        requested.stream()
        for text in (" a", " b", " c"):
            await requested.token(text)
        await requested.end(usage)

    server.usual = answer
    result = observed(make_trace(requests=1, output=5))
    assert result.outcome.chunks["tokens"].tolist() == expected
    assert result.outcome.calls["even"].all()
    assert any("split evenly" in note for note in result.notes)


def test_usage_with_the_last_chunk_alone_is_that_of_the_whole_answer(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    async def answer(requested: Any) -> None:
        requested.stream()
        await requested.token()
        await requested.token()
        await requested.token(usage=3, finish_reason="length")
        await requested.end()

    server.usual = answer
    result = observed(make_trace(requests=1, output=3))
    assert result.outcome.chunks["tokens"].tolist() == [1, 1, 1]
    assert result.outcome.calls["even"].all()


def test_streams_are_read_whatever_their_line_ends_and_wherever_they_are_cut(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    events = ": hello\r\n\r\n"
    for made in (1, 2):
        message = {"choices": [{"text": "é"}], "usage": {"prompt_tokens": 8, "completion_tokens": made}}
        events += f"event: x\r\ndata: {json.dumps(message, ensure_ascii=False)}\r\n\r\n"
    stream = (events + "data: [DONE]\r\n\r\n").encode()

    async def bytewise(requested: Any) -> None:
        requested.stream()
        for place in range(len(stream)):
            await requested.piece(stream[place : place + 1])
        requested.over()

    async def at_once(requested: Any) -> None:
        requested.head(Content_Type="text/event-stream; charset=utf-8", Content_Length=str(len(stream)))
        requested.writer.write(stream)

    server.answers.extend([bytewise, at_once])
    result = observed(make_trace(requests=2, output=2))
    assert result.outcome.requests["status"].tolist() == [DONE, DONE]
    assert result.outcome.chunks["tokens"].tolist() == [1, 1, 1, 1]


def test_an_answer_that_ends_with_its_connection_is_whole(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    async def answer(requested: Any) -> None:
        requested.head(Content_Type="text/event-stream", Connection="close")
        message = {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 8, "completion_tokens": 1}}
        requested.writer.write(f"data: {json.dumps(message)}\n\ndata: [DONE]\n\n".encode())
        requested.writer.close()

    server.usual = answer
    result = observed(make_trace(requests=3, output=1), mode="closed", concurrency=1)
    assert result.outcome.requests["status"].tolist() == [DONE] * 3
    assert result.facts["connections_opened"] == 3


def test_fields_that_a_server_names_are_left_out(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    unknown = ("return_token_ids", "ignore_eos", "continuous_usage_stats")

    def refuse(requested: Any) -> str | None:
        flat = {**requested.body, **requested.body.get("stream_options", {})}
        return next((f"unknown field {name}" for name in unknown if name in flat), None)

    server.refuse = refuse
    result = observed(make_trace(requests=2))
    assert set(result.facts["left_out"]) == set(unknown)
    assert result.outcome.requests["status"].tolist() == [DONE, DONE]
    assert any("ignore_eos" in note for note in result.notes)


def test_a_limit_by_its_newer_name_is_understood(
    server: Any, observed: Replayed, make_trace: MakeTrace
) -> None:
    def refuse(requested: Any) -> str | None:
        return "use max_completion_tokens instead of max_tokens" if "max_tokens" in requested.body else None

    async def answer(requested: Any) -> None:
        requested.body["max_tokens"] = requested.body["max_completion_tokens"]
        await server.good(requested)

    server.refuse, server.usual = refuse, answer
    result = observed(make_trace(requests=1))
    assert result.facts["limit"] == "max_completion_tokens"
    assert result.outcome.requests["status"].tolist() == [DONE]


def test_a_model_that_the_server_does_not_list_is_refused(server: Any, observed: Replayed) -> None:
    server.models = {"data": [{"id": "mm"}, {"id": "other"}]}
    with pytest.raises(UserError, match="endpoint-no-model"):
        observed()


def test_a_server_without_a_list_of_models_is_taken_at_its_word(server: Any, observed: Replayed) -> None:
    server.models = None
    result = observed()
    assert result.facts["lists_models"] is False
    assert result.outcome.requests["status"].tolist() == [DONE] * 4


def test_a_prompt_of_token_ids_that_is_refused_says_what_to_do(server: Any, observed: Replayed) -> None:
    server.refuse = lambda requested: "prompt must be text"
    with pytest.raises(UserError, match="endpoint-refused") as refused:
        observed()
    assert "--tokenizer" in str(refused.value)


def test_the_key_is_sent_and_in_no_sentence(server: Any, observed: Replayed) -> None:
    fields = (("Authorization", Secret("Bearer sk-hidden")), ("X-Mine", Secret("private")))
    server.refuse = lambda requested: (
        f"what you sent: {requested.fields['authorization']}, {requested.fields['x-mine']}"
    )
    with pytest.raises(UserError, match="endpoint-refused") as refused:
        observed(fields=fields)
    assert "hidden" not in str(refused.value)
    assert "private" not in str(refused.value)
    assert server.requested[-1].fields["authorization"] == "Bearer sk-hidden"


def test_chat_needs_a_tokenizer(observed: Replayed) -> None:
    with pytest.raises(UserError, match="replay-flag-needed"):
        observed(api="chat")


def test_chat_prompts_leave_room_for_the_template(
    server: Any, observed: Replayed, make_trace: MakeTrace, tmp_path: Path
) -> None:
    words = {f"{a}{b}": number for number, (a, b) in enumerate(product("bdgk", "aeiou"))}
    made = Tokenizer(WordLevel(words, unk_token="ba"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))

    async def answer(requested: Any) -> None:
        prompt = 5 + len(requested.body["messages"][0]["content"].split())
        requested.stream()
        await requested.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(1, requested.body["max_tokens"] + 1):
            usage = {"prompt_tokens": prompt, "completion_tokens": number}
            await requested.event({"choices": [{"delta": {"content": " x"}}], "usage": usage})
        await requested.end()

    server.usual = answer
    result = observed(make_trace(requests=2, prompt=12, output=3), api="chat", tokenizer=str(tmp_path))
    calls, chunks = result.outcome.calls, result.outcome.chunks
    assert [requested.path for requested in server.requested[2:]] == ["/v1/chat/completions"] * 3
    assert calls["prompt_counted"].tolist() == [12, 12]
    assert np.bincount(chunks["request"], chunks["tokens"]).tolist() == [3, 3]
    assert (result.facts["added_prompt_tokens"], result.facts["prompts_of_wrong_length"]) == (5, 0)
    assert any("chat template adds 5" in note for note in result.notes)
