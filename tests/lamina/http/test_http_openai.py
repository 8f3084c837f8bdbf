"""OpenAI's own client against the server, and its tokens beside the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import openai
import pytest

from lamina.serve import Sampling

PROMPT = "the quick brown"
MESSAGES: list[Any] = [
    {"role": "system", "content": "the cat"},
    {"role": "user", "content": [{"type": "text", "text": "sat on"}, {"type": "text", "text": " the mat"}]},
]
TEMPLATED = "<system>the cat<end><user>sat on the mat<end><assistant>"


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def complete(client: openai.OpenAI) -> Any:
    """Completions of the model, of one prompt if no other is given."""
    return partial(client.completions.create, model="small", prompt=PROMPT)


@pytest.fixture(scope="module")
def chat(client: openai.OpenAI) -> Any:
    return partial(client.chat.completions.create, model="small", messages=MESSAGES)


@pytest.fixture(scope="module")
def reference(make_engine: Callable[..., Any], tokenizer: Any) -> Callable[..., Any]:
    """What an engine of our own makes of the same."""
    engine = make_engine()

    def complete(text: str | list[int], **sampling: Any) -> Any:
        prompt = tokenizer.encode(text) if isinstance(text, str) else text
        return engine.generate([prompt], Sampling(**sampling))[0].completions

    return complete


def test_lists_its_model(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("small", "model")
    assert client.models.retrieve("small") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 11, "top_p": 0.9}])
def test_completes_as_the_engine_does(
    complete: Any, reference: Any, tokenizer: Any, sampling: dict[str, Any]
) -> None:
    reported = complete(max_tokens=24, extra_body={"return_token_ids": True}, **sampling)
    (expected,) = reference(PROMPT, max_tokens=24, **sampling)
    (choice,) = reported.choices
    extra = choice.model_extra
    assert extra["token_ids"] == list(expected.tokens)
    assert extra["prompt_token_ids"] == tokenizer.encode(PROMPT)
    stopped = expected.finish_reason == "stop"
    assert choice.text == tokenizer.decode(expected.tokens[:-1] if stopped else expected.tokens)
    assert choice.finish_reason == expected.finish_reason
    assert reported.usage.prompt_tokens == len(tokenizer.encode(PROMPT))
    assert reported.usage.completion_tokens == len(expected.tokens)
    assert reported.usage.total_tokens == reported.usage.prompt_tokens + reported.usage.completion_tokens


def test_streamed_and_complete_answers_are_equal(complete: Any) -> None:
    body = {"return_token_ids": True, "ignore_eos": True}
    create = partial(complete, max_tokens=40, temperature=1.0, seed=5, logprobs=2, extra_body=body)
    whole = create()
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(create(stream=True, stream_options=options))
    *pieces, last = chunks
    assert last.choices == []
    assert last.usage == whole.usage
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
    ids = [token for chunk in pieces for token in chunk.choices[0].model_extra["token_ids"]]
    assert ids == whole.choices[0].model_extra["token_ids"]
    assert pieces[0].choices[0].model_extra["prompt_token_ids"]
    assert "prompt_token_ids" not in pieces[1].choices[0].model_extra
    counts = [chunk.usage.completion_tokens for chunk in pieces]
    assert counts == sorted(counts)
    assert counts[-1] == 40
    assert [chunk.choices[0].finish_reason for chunk in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == "length"
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        messages = [value for chunk in pieces for value in getattr(chunk.choices[0].logprobs, name)]
        assert messages == getattr(whole.choices[0].logprobs, name)


def test_log_probabilities_are_reported(complete: Any, reference: Any, tokenizer: Any) -> None:
    reported = complete(max_tokens=6, temperature=0, logprobs=3)
    (expected,) = reference(PROMPT, max_tokens=6, logprobs=3)
    logprobs = reported.choices[0].logprobs
    assert logprobs.tokens == [tokenizer.token(token) for token in expected.tokens]
    assert logprobs.token_logprobs == pytest.approx([each.chosen for each in expected.logprobs])
    for top, each in zip(logprobs.top_logprobs, expected.logprobs, strict=True):
        assert top[tokenizer.token(each.top[0][0])] == pytest.approx(each.top[0][1])
        assert len(top) <= 4
    none = complete(max_tokens=6, temperature=0, logprobs=0)
    reported_tokens = none.choices[0].logprobs
    chosen = zip(reported_tokens.tokens, reported_tokens.token_logprobs, strict=True)
    assert reported_tokens.top_logprobs == [{token: logprob} for token, logprob in chosen]


@pytest.mark.parametrize("prompts", [[PROMPT, "rain in Spain"], [[5, 6, 7], [9]]], ids=["text", "ids"])
def test_makes_several_choices_of_several_prompts(
    complete: Any, reference: Any, tokenizer: Any, prompts: list[Any]
) -> None:
    requested = {"max_tokens": 8, "temperature": 1.0, "seed": 3, "n": 2}
    create = partial(
        complete, prompt=prompts, extra_body={"return_token_ids": True, "ignore_eos": True}, **requested
    )
    reported = create()
    assert [choice.index for choice in reported.choices] == [0, 1, 2, 3]
    for place, prompt in enumerate(prompts):
        expected = reference(prompt, ignore_eos=True, **requested)
        for sample in range(2):
            extra = reported.choices[2 * place + sample].model_extra
            assert extra["token_ids"] == list(expected[sample].tokens)
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            assert extra["prompt_token_ids"] == ids
    assert reported.usage.completion_tokens == 32
    streamed: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
    for chunk in create(stream=True):
        (choice,) = chunk.choices
        streamed[choice.index] += choice.model_extra["token_ids"]
    assert list(streamed.values()) == [choice.model_extra["token_ids"] for choice in reported.choices]


def test_stops_at_a_string(complete: Any, server: Any) -> None:
    body = {"ignore_eos": True}
    create = partial(complete, temperature=1.0, seed=21, max_tokens=60, extra_body=body)
    whole = create().choices[0].text
    before, stop = server.service.meter._ends["stop"], whole[20:23]
    assert whole.index(stop) == 20, "the test needs text that does not repeat itself there"
    reported = create(stop=["never seen", stop])
    assert reported.choices[0].text == whole[:20]
    assert reported.choices[0].finish_reason == "stop"
    assert reported.choices[0].model_extra["stop_reason"] == stop
    assert reported.usage.completion_tokens < 60
    chunks = list(create(stop=[stop], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole[:20]
    assert chunks[-1].choices[0].finish_reason == "stop"
    reported = create(stop=stop, extra_body=body | {"include_stop_str_in_output": True})
    assert reported.choices[0].text == whole[:20] + stop
    assert server.settled()
    assert server.service.meter._ends["stop"] == before + 3


def test_stops_at_a_token(complete: Any, reference: Any, tokenizer: Any) -> None:
    (expected,) = reference(PROMPT, max_tokens=10, ignore_eos=True)
    stop = expected.tokens[4]
    first = expected.tokens.index(stop)
    body = {"stop_token_ids": [stop], "ignore_eos": True, "return_token_ids": True}
    reported = complete(max_tokens=10, temperature=0, extra_body=body)
    (choice,) = reported.choices
    assert choice.model_extra["token_ids"] == list(expected.tokens[: first + 1])
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", stop)
    assert choice.text == tokenizer.decode(expected.tokens[:first])


def test_chats(chat: Any, reference: Any, tokenizer: Any) -> None:
    body = {"return_token_ids": True, "ignore_eos": True}
    reported = chat(max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=2, extra_body=body)
    (expected,) = reference(TEMPLATED, max_tokens=12, ignore_eos=True, logprobs=2)
    (choice,) = reported.choices
    assert reported.model_extra["prompt_token_ids"] == tokenizer.encode(TEMPLATED)
    assert choice.model_extra["token_ids"] == list(expected.tokens)
    assert choice.message.role == "assistant"
    assert choice.message.content == tokenizer.decode(expected.tokens)
    content = choice.logprobs.content
    assert [each.token for each in content] == [tokenizer.token(token) for token in expected.tokens]
    assert [each.logprob for each in content] == pytest.approx([each.chosen for each in expected.logprobs])
    assert all(len(each.top_logprobs) == 2 for each in content)
    assert bytes(content[0].bytes).decode() == content[0].token


def test_streams_a_chat(chat: Any) -> None:
    create = partial(chat, max_tokens=20, temperature=1.0, seed=2, n=2, extra_body={"ignore_eos": True})
    whole = create()
    chunks = list(create(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == whole.usage
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content for choice in own) == whole.choices[index].message.content
        assert [choice.delta.role for choice in own] == ["assistant", *[None] * (len(own) - 1)]
        assert own[-1].finish_reason == "length"


def test_a_chat_that_does_not_say_is_not_cut_short_early(chat: Any, server: Any) -> None:
    assert chat(extra_body={"ignore_eos": True}).usage.total_tokens == server.service.context


def test_an_answer_can_be_sent_back(chat: Any) -> None:
    create = partial(chat, max_tokens=4, temperature=0)
    message = create().choices[0].message
    requested = {"role": "user", "content": "and then?"}
    text = {"role": "assistant", "content": message.content, "annotations": [], "tool_calls": None}
    reported, again = (create(messages=[*MESSAGES, answer, requested]) for answer in (message, text))
    assert again.choices[0].message.content == reported.choices[0].message.content


def test_errors_are_the_clients_own(complete: Any, chat: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="presence_penalty: this server does not offer it"):
        complete(presence_penalty=0.5)
    with pytest.raises(openai.NotFoundError, match="no model is called 'other'") as caught:
        complete(model="other")
    assert caught.value.param == "model"
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="more than the 512 that fit"):
        complete(max_tokens=512)
    with pytest.raises(openai.BadRequestError, match="a system message comes first"):
        chat(messages=[*MESSAGES, MESSAGES[0]])
