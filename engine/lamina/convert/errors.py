"""The error of models that cannot be converted, and foreign messages made short enough to quote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lamina.errors import CodedError


class ConversionError(CodedError, ValueError):
    """The model cannot be converted; the message is one sentence that names what and why."""


@contextmanager
def named(label: str) -> Iterator[None]:
    """Put what is converted in front of the errors that are raised in here."""
    try:
        yield
    except ConversionError as error:
        raise ConversionError(error.code, f"{label}: {error}") from error


def in_short(error: BaseException) -> str:
    """Return another library's error message on one line, short enough to quote."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
