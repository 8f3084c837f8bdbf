"""The bodies of answers and of errors, in the format of OpenAI: written, and described in /openapi.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lamina.serve import State


@with_config({"extra": "forbid"})
class _Answer(TypedDict):
    """The base of answers, strict so that checks against the description notice an undocumented field."""


class ErrorDetail(_Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Answer):
    """The form of every error."""

    error: ErrorDetail


class Model(_Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(_Answer):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(_Answer):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(_Answer):
    index: int
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int] | None]


class CompletionChoice(Choice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int] | None]


class Head(_Answer):
    id: str
    created: int
    model: str


class CompletionAnswer(Head):
    """POST /v1/completions; a stream's chunks have the same form, and usage only where it was requested."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(_Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that was chosen, and the likeliest."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    content: list[TokenLogprob] | None
    refusal: None


class ChatMessage(_Answer):
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


class ChatDelta(_Answer):
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


class Health(_Answer):
    """GET /health while requests are taken."""

    status: Literal["ok"]
    instances: NotRequired[list[State]]  # what each engine does, where there are several


class Version(_Answer):
    """GET /version."""

    version: str


# OpenAI's names of kinds of errors, by status.
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
OTHERS = "invalid_request_error"
# Headers of what may be asked again.
RETRY = {"Retry-After": "1"}


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def answer(self) -> ErrorAnswer:
        kind = KINDS.get(self.status, OTHERS)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def body(self) -> bytes:
        return json.dumps(self.answer()).encode()


class FullError(Exception):
    """Too many requests wait already."""


class ClosedError(Exception):
    """A request that came after the server had stopped taking any."""
