"""The bodies of answers: forms write them, and /openapi.json describes them."""

from __future__ import annotations

from typing import Literal, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

# Nothing else is in an answer, so that checks against the description notice an undocumented field.
_exact = with_config({"extra": "forbid"})


@_exact
class ErrorDetail(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


@_exact
class ErrorAnswer(TypedDict):
    """Every error has this form."""

    error: ErrorDetail


@_exact
class Model(TypedDict):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


@_exact
class ModelList(TypedDict):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


@_exact
class Usage(TypedDict):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@_exact
class CompletionLogprobs(TypedDict):
    """By token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


@_exact
class CompletionChoice(TypedDict):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int] | None]
    prompt_token_ids: NotRequired[list[int] | None]


@_exact
class CompletionAnswer(TypedDict):
    """POST /v1/completions; a stream's chunks have the same form, and usage only where it was requested."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


@_exact
class TopLogprob(TypedDict):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int] | None


@_exact
class TokenLogprob(TopLogprob):
    """The token that was chosen, and the likeliest."""

    top_logprobs: list[TopLogprob]


@_exact
class ChatLogprobs(TypedDict):
    """By token."""

    content: list[TokenLogprob] | None
    refusal: None


@_exact
class ChatMessage(TypedDict):
    """The answer's text."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatRest(TypedDict):
    """What a choice has beside its text."""

    index: int
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int] | None]


@_exact
class ChatChoice(ChatRest):
    """One answer."""

    message: ChatMessage


@_exact
class ChatAnswer(TypedDict):
    """POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int] | None]


class ChatDelta(TypedDict):
    """The next piece of an answer's text; the first one names its role."""

    role: NotRequired[Literal["assistant"]]
    content: str


class ChatChunkChoice(ChatRest):
    """What is new of one answer."""

    delta: ChatDelta


class Chunk(TypedDict):
    """One server-sent event of a stream."""

    id: str
    object: str
    created: int
    model: str
    prompt_token_ids: NotRequired[list[int]]
    choices: list[CompletionChoice] | list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


@_exact
class Health(TypedDict):
    """GET /health while requests are taken."""

    status: Literal["ok"]


@_exact
class Version(TypedDict):
    """GET /version."""

    version: str
