"""The bodies of requests, as they are checked and described in /openapi.json."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    WithJsonSchema,
)

from lamina.http.errors import ApiError

MOST_PROMPTS = 256
MOST_MESSAGES = 2048
COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens
CHAT_TOKENS = 1024  # memory is reserved for them: a chat without max_tokens must not take it all
MOST_STOPS = 4
LONGEST_STOP = 512
MOST_STOP_TOKENS = 32
MOST_LOGPROBS = 20
MOST_CHOICES = 64
INT32, INT64 = 2**31, 2**63

# A JSON number, never a string that looks like one.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[StrictInt, Field(ge=0, lt=INT32)]  # no vocabulary is larger, and journals have 32 bits
# Of a list only the first wrong item is reported: millions would block the event loop for a minute.
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]
# As OpenAI bounds them.
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


def neutral(*values: Any) -> Any:
    """Return the type of a field that other servers know and this one does not serve: it may be sent with a
    value that changes nothing, as many clients do.
    """
    allowed = (*values, None)

    def require(value: Any) -> Any:
        # True is no 1 here.
        if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            return value
        words = ", ".join("null" if one is None else repr(one) for one in allowed)
        raise ValueError(f"this server does not offer it; leave it out, or send {words}")

    return Annotated[Any, AfterValidator(require), WithJsonSchema({"enum": list(allowed)})]


class Strict(BaseModel):
    """Refuse unknown fields."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Strict):
    """The options of a stream."""

    include_usage: StrictBool | None = Field(
        None, description="Counts of tokens in a last chunk of their own."
    )
    continuous_usage_stats: StrictBool | None = Field(
        None, description="With include_usage: counts so far in every chunk."
    )
    include_obfuscation: neutral(False) = None  # type: ignore[valid-type]


class GenerationRequest(Strict):
    """The fields common to completions and chat completions."""

    model: str | None = Field(None, max_length=512, description="As /v1/models names it; may be left out.")
    n: StrictInt | None = Field(None, ge=1, le=MOST_CHOICES, description="Choices for each prompt.")
    temperature: Number | None = Field(None, ge=0, le=100, description="1 if left out; 0 is greedy.")
    top_p: Number | None = Field(None, gt=0, le=1)
    top_k: StrictInt | None = Field(None, ge=-1, lt=INT32, description="0 or -1: all tokens.")
    seed: StrictInt | None = Field(None, ge=-INT64, lt=INT64)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)] | None = None
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
        None,
        pattern="^[A-Za-z0-9_.:-]{1,128}$",
        description="Part of the answer's id; names it to resume.",
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
        """Return the most tokens of an answer."""
        return self.max_tokens or COMPLETION_TOKENS

    def most_logprobs(self) -> int | None:
        """Return how many of the likeliest tokens to report; None without log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        first = self.prompt[0]
        return [self.prompt] if isinstance(first, int) else list(self.prompt)  # type: ignore[list-item, arg-type]


class Part(Strict):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of a conversation."""

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
        """Return the message in the form that chat templates take."""
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
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=16, description="Not used.")
    store: neutral(False) = None  # type: ignore[valid-type]
    reasoning_effort: neutral("none") = None  # type: ignore[valid-type]

    def most_tokens(self, room: int) -> int:
        """Return the most tokens of an answer after a prompt that leaves this many."""
        return self.max_completion_tokens or self.max_tokens or max(1, min(room, CHAT_TOKENS))

    def most_logprobs(self) -> int | None:
        """Return how many of the likeliest tokens to report; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


Body = TypeVar("Body", bound=GenerationRequest)

# Larger ones, or with more lists and objects, are parsed by another thread.
SMALL_BYTES = 65_536
FEW_LISTS = 1024
# The parser does not let go of the interpreter: a wrong list costs it 2.4 us, an unknown field 1.3 us, a
# number 0.3 us. So these are 20, 40 and 80 ms; the last is two of the longest prompts.
MOST_LISTS = 8_192
MOST_TEXTS = 32_768
MOST_VALUES = 262_144
# Unknown fields are wrong one by one; of more it would take seconds to write down what and where.
MOST_WRONG = 1000


async def read(data: bytes, model: type[Body], threads: Executor) -> Body:
    """Return the request, or an ApiError that says what is wrong with it."""
    if len(data) <= SMALL_BYTES and data.count(b"[") + data.count(b"{") <= FEW_LISTS:
        return _checked(data, model)
    return await asyncio.get_running_loop().run_in_executor(threads, _checked_large, data, model)


def _checked_large(data: bytes, model: type[Body]) -> Body:
    require_simple(data)
    return _checked(data, model)


def _checked(data: bytes, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _sentence(error) from error


def require_simple(data: bytes) -> None:
    """Raise an ApiError if it has more lists, texts or values than a request can have."""
    lists = texts = values = at = 0
    while at < len(data):
        text = data.find(b'"', at)
        end = text if text >= 0 else len(data)
        lists += data.count(b"[", at, end) + data.count(b"{", at, end)
        values += data.count(b",", at, end)
        texts += 1
        if lists > MOST_LISTS or texts > MOST_TEXTS or values > MOST_VALUES:
            why = (
                f"the body has more than {MOST_VALUES:,} values, {MOST_TEXTS:,} texts or {MOST_LISTS:,} lists"
            )
            raise ApiError(400, f"{why}: send it in parts", code="body_too_many_values")
        at = _end_of_text(data, end + 1)


def _end_of_text(data: bytes, at: int) -> int:
    """Return the position after the closing quote."""
    while (quote := data.find(b'"', at)) >= 0:
        before = data[at:quote]
        at = quote + 1
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return at
    return len(data)


def _sentence(error: ValidationError) -> ApiError:
    """Return an error that says the first thing wrong, and where."""
    if (count := error.error_count()) > MOST_WRONG:
        return ApiError(400, f"{count:,} things are wrong with the body", code="invalid_body")
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    # A field of several possible types is wrong in the way of each: the deepest is meant.
    field = wrong[0]["loc"][:1]
    first = max((one for one in wrong if one["loc"][:1] == field), key=lambda one: len(one["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    where = [str(part) for part in first["loc"]]
    if not where:
        return ApiError(400, f"the body is not what is asked for: {message}", code="invalid_body")
    if first["type"] == "extra_forbidden":
        message = "this server knows no such field: leave it out"
    named = [part for part in where if part.isidentifier() or part.isdigit()]
    return ApiError(400, f"{'.'.join(named)}: {message}", param=where[0], code=first["type"])
