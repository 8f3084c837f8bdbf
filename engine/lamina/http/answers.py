"""The bodies of answers and of errors, in the format of OpenAI: written, and described in /openapi.json."""

from __future__ import annotations

from typing import Literal, NotRequired

from lamina.http.errors import Strict
from lamina.serve import State


class Model(Strict):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Strict):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Strict):
    index: int
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int] | None]


class CompletionChoice(Choice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int] | None]


class Head(Strict):
    id: str
    created: int
    model: str


class CompletionAnswer(Head):
    """POST /v1/completions; a stream's chunks have the same form, and usage only where it was requested."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(Strict):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that was chosen, and the likeliest."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Strict):
    content: list[TokenLogprob] | None
    refusal: None


class ChatMessage(Strict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Choice):
    logprobs: ChatLogprobs | None
    message: ChatMessage


class ChatAnswer(Head):
    """POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int] | None]


class ChatDelta(Strict):
    """The next piece of an answer's text; the first one names its role."""

    role: NotRequired[Literal["assistant"]]
    content: str


class ChatChunkChoice(Choice):
    logprobs: ChatLogprobs | None
    delta: ChatDelta


class Chunk(Head):
    """One server-sent event of a stream."""

    object: str
    prompt_token_ids: NotRequired[list[int]]
    choices: list[CompletionChoice] | list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class Health(Strict):
    """GET /health while requests are taken."""

    status: Literal["ok"]
    instances: NotRequired[list[State]]  # what each engine does, where there are several


class Version(Strict):
    """GET /version."""

    version: str
