"""What the events of a stream say: the fields of a completion that a replay needs, and the tokens in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

# More than any answer has, and no more than columns of numbers hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# How the number of tokens in an event is known; `even`: it is not.
Told = Literal["usage", "token_ids", "logprobs", "even"]


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Logprobs(msgspec.Struct):
    tokens: list[Any] | None = None  # of a completion
    content: list[Any] | None = None  # of a chat


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


class Chunk(msgspec.Struct):
    """One event: fields that are not here are passed over without being read."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode


def tokens_in(choice: Choice) -> tuple[int, Told]:
    """How many tokens one event says to have; 0 and `even` if it does not say."""
    if choice.token_ids is not None:
        return len(choice.token_ids), "token_ids"
    if choice.logprobs is not None:
        named = choice.logprobs.tokens if choice.logprobs.tokens is not None else choice.logprobs.content
        if named is not None:
            return len(named), "logprobs"
    return 0, "even"


def dealt(tokens: int, chunks: int) -> list[int]:
    """So many tokens over so many chunks, as evenly as whole numbers go, the earlier ones having no fewer."""
    each, more = divmod(tokens, chunks)
    return [each + (place < more) for place in range(chunks)]
