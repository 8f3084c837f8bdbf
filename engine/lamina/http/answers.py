"""The bodies of answers, as /openapi.json tells of them. They are written by forms, not by these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Told):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Told):
    """Every error has this form."""

    error: ErrorDetail


class Model(_Told):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(_Told):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Usage(_Told):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(_Told):
    """By token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(_Told):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionAnswer(_Told):
    """POST /v1/completions; a stream's chunks have the same form, and usage only where it was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(_Told):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token that was chosen, and the likeliest."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Told):
    """By token."""

    content: list[TokenLogprob] | None
    refusal: None


class ChatMessage(_Told):
    """The answer's text."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Told):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatAnswer(_Told):
    """POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class Health(_Told):
    """GET /health while requests are taken."""

    status: Literal["ok"]


class Version(_Told):
    """GET /version."""

    version: str
