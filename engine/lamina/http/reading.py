"""From a body's bytes to a checked request, in a bounded time whatever they are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TypeVar

from pydantic import ValidationError

from lamina.http.answers import ApiError
from lamina.http.api import GenerationRequest

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
    """The request, or an ApiError that says what is wrong with it."""
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
    """An ApiError if it has more lists, texts or values than a request can have; what texts say is free."""
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
    """Behind the quote that ends it."""
    while (quote := data.find(b'"', at)) >= 0:
        before = data[at:quote]
        at = quote + 1
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return at
    return len(data)


def _sentence(error: ValidationError) -> ApiError:
    """Of all that is wrong the first, and where."""
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
