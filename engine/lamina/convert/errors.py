"""What is raised when a model cannot be converted: one sentence that names what and says why."""

from __future__ import annotations

from lamina.errors import CodedError


class ConversionError(CodedError, ValueError):
    """The model cannot be converted; the message is one sentence for the person who asked."""


def in_short(error: BaseException) -> str:
    """Somebody else's error message on one line, short enough to quote in ours."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
