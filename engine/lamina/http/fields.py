"""Fields that both kinds of requests have, and fields that are known and not served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, WithJsonSchema

MOST_STOPS = 4
LONGEST_STOP = 512
MOST_STOP_TOKENS = 32
MOST_LOGPROBS = 20
MOST_CHOICES = 64
INT64 = 2**63

# A JSON number, never a string that looks like one.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


def neutral(*values: Any) -> Any:
    """The type of a field that other servers know and this one does not serve: it may be sent with a value
    that changes nothing, as many clients do.
    """
    allowed = (*values, None)

    def require(value: Any) -> Any:
        # True is no 1 here.
        if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            return value
        words = ", ".join("null" if one is None else repr(one) for one in allowed)
        raise ValueError(f"this server does not offer it; leave it out, or send {words}")

    return Annotated[Any, AfterValidator(require), WithJsonSchema({"enum": list(_distinct(allowed))})]


def _distinct(values: Iterable[Any]) -> Iterable[Any]:
    """JSON knows one kind of numbers."""
    seen: list[Any] = []
    for value in values:
        if not any(value == one and type(value) is type(one) for one in seen):
            seen.append(value)
    return seen


class StreamOptions(BaseModel):
    """What a stream has beside its text."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool | None = Field(
        None, description="Counts of tokens in a last chunk of their own."
    )
    continuous_usage_stats: StrictBool | None = Field(
        None, description="With include_usage: counts so far in every chunk."
    )
    include_obfuscation: neutral(False) = None  # type: ignore[valid-type]


class GenerationRequest(BaseModel):
    """What completions and chat completions have in common."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, max_length=512, description="As /v1/models names it; may be left out.")
    n: StrictInt | None = Field(None, ge=1, le=MOST_CHOICES, description="Choices for each prompt.")
    temperature: Number | None = Field(None, ge=0, le=100, description="1 if left out; 0 is greedy.")
    top_p: Number | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1, lt=2**31, description="0 or -1: all tokens.")
    seed: StrictInt | None = Field(None, ge=-INT64, lt=INT64)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: (
        Annotated[
            list[Annotated[StrictInt, Field(ge=0, lt=INT64)]],
            Field(max_length=MOST_STOP_TOKENS, fail_fast=True),
        ]
        | None
    ) = None
    include_stop_str_in_output: StrictBool | None = None
    ignore_eos: StrictBool | None = None
    min_tokens: StrictInt | None = Field(
        None, ge=0, lt=INT64, description="Above 0 only with ignore_eos and nothing to stop at."
    )
    skip_special_tokens: StrictBool | None = None
    return_token_ids: StrictBool | None = Field(
        None, description="token_ids of each choice or chunk, and prompt_token_ids."
    )
    return_tokens_as_token_ids: StrictBool | None = Field(
        None, description="In logprobs, name tokens token_id:N."
    )
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=512, description="Not used.")
    request_id: str | None = Field(
        None, pattern="^[A-Za-z0-9_.:-]{1,128}$", description="Becomes part of the answer's id."
    )

    presence_penalty: neutral(0) = None  # type: ignore[valid-type]
    frequency_penalty: neutral(0) = None  # type: ignore[valid-type]
    repetition_penalty: neutral(1) = None  # type: ignore[valid-type]
    length_penalty: neutral(1) = None  # type: ignore[valid-type]
    min_p: neutral(0) = None  # type: ignore[valid-type]
    logit_bias: neutral({}) = None  # type: ignore[valid-type]
    use_beam_search: neutral(False) = None  # type: ignore[valid-type]
    early_stopping: neutral(False) = None  # type: ignore[valid-type]
    spaces_between_special_tokens: neutral(True) = None  # type: ignore[valid-type]
    truncate_prompt_tokens: neutral() = None  # type: ignore[valid-type]
    prompt_logprobs: neutral() = None  # type: ignore[valid-type]
    allowed_token_ids: neutral() = None  # type: ignore[valid-type]
    bad_words: neutral([]) = None  # type: ignore[valid-type]
    response_format: neutral({"type": "text"}) = None  # type: ignore[valid-type]
    priority: neutral(0) = None  # type: ignore[valid-type]
    stream_interval: neutral(1) = None  # type: ignore[valid-type]
    service_tier: neutral("auto", "default") = None  # type: ignore[valid-type]

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
