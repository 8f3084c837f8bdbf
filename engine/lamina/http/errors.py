"""Errors in OpenAI's format, and which status goes with what."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lamina.http.answers import ErrorAnswer

# OpenAI's names of kinds of errors, by status.
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
OTHERS = "invalid_request_error"


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
    """No requests are taken any more."""
