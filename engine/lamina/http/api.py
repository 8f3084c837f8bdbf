"""The bodies of requests, as they are checked and described in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from lamina.http.fields import INT64, MOST_LOGPROBS, GenerationRequest, neutral

MOST_PROMPTS = 256
MOST_MESSAGES = 2048
COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens
CHAT_TOKENS = 1024  # memory is kept for them: a chat that does not say must not take it all

TokenId = Annotated[StrictInt, Field(ge=0, lt=INT64)]
# Of a list only the first wrong item is reported: millions would block the event loop for a minute.
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: (
        Text
        | Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    ) = Field(description="Text or token ids; or a list of either.")
    max_tokens: StrictInt | None = Field(
        None, ge=1, lt=INT64, description=f"{COMPLETION_TOKENS} if left out."
    )
    logprobs: StrictInt | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_special_tokens: StrictBool | None = Field(
        None, description="To a prompt of text; they are if left out."
    )
    echo: neutral(False) = None  # type: ignore[valid-type]
    best_of: neutral(1) = None  # type: ignore[valid-type]
    suffix: neutral("") = None  # type: ignore[valid-type]

    def most_tokens(self, room: int) -> int:  # noqa: ARG002 - of a chat
        """Of an answer."""
        return self.max_tokens or COMPLETION_TOKENS

    def most_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report; None without log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more of them."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        first = self.prompt[0]
        return [self.prompt] if isinstance(first, int) else list(self.prompt)  # type: ignore[list-item, arg-type]


class Part(BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1, max_length=256, fail_fast=True)]
    name: str | None = Field(None, max_length=256)
    # What an answer's message has, which clients send back as it came.
    refusal: neutral() = None  # type: ignore[valid-type]
    annotations: neutral([]) = None  # type: ignore[valid-type]
    audio: neutral() = None  # type: ignore[valid-type]
    function_call: neutral() = None  # type: ignore[valid-type]
    tool_calls: neutral([]) = None  # type: ignore[valid-type]

    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        # What OpenAI calls developer, templates know as system.
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)
    max_tokens: StrictInt | None = Field(
        None, ge=1, lt=INT64, description="max_completion_tokens' older name."
    )
    max_completion_tokens: StrictInt | None = Field(
        None, ge=1, lt=INT64, description=f"What fits, at most {CHAT_TOKENS:,}, if left out."
    )
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: neutral(True) = None  # type: ignore[valid-type]
    continue_final_message: neutral(False) = None  # type: ignore[valid-type]
    add_special_tokens: neutral(False) = None  # type: ignore[valid-type]
    chat_template: neutral() = None  # type: ignore[valid-type]
    chat_template_kwargs: neutral({}) = None  # type: ignore[valid-type]
    tools: neutral([]) = None  # type: ignore[valid-type]
    tool_choice: neutral("none", "auto") = None  # type: ignore[valid-type]
    parallel_tool_calls: neutral(True, False) = None  # type: ignore[valid-type]
    modalities: neutral(["text"]) = None  # type: ignore[valid-type]
    metadata: dict[str, Any] | None = Field(None, max_length=16, description="Not used.")
    store: neutral(False) = None  # type: ignore[valid-type]
    reasoning_effort: neutral("none") = None  # type: ignore[valid-type]

    def most_tokens(self, room: int) -> int:
        """Of an answer, where a prompt leaves so many."""
        return self.max_completion_tokens or self.max_tokens or max(1, min(room, CHAT_TOKENS))

    def most_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
