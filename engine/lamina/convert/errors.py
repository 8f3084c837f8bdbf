"""The error of models that cannot be converted, and foreign messages made short enough to quote."""

from __future__ import annotations

from lamina.errors import CodedError


class ConversionError(CodedError, ValueError):
    """The model cannot be converted; the message is one sentence that names what and why."""


def in_short(error: BaseException) -> str:
    """Another library's error message on one line, short enough to quote."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
