"""Errors as clients get them, in the format of OpenAI; without the engine, for other servers as well."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import with_config
from typing_extensions import TypedDict


@with_config({"extra": "forbid"})
class Strict(TypedDict):
    """The base of answers, strict so that checks against the description notice an undocumented field."""


class ErrorDetail(Strict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Strict):
    """The form of every error."""

    error: ErrorDetail


# OpenAI's names of kinds of errors, by status.
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
OTHERS = "invalid_request_error"
# Headers of answers that allow a retry.
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
    """An error: too many requests wait already."""


class ClosedError(Exception):
    """A request that came after the server had stopped taking any."""
