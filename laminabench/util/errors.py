"""Errors a person is meant to read: a stable code, and a sentence that says what, where and what to do."""

from __future__ import annotations

from typing import Self


class CodedError(Exception):
    """The base of laminabench's errors, raised as `UserError("trace-unknown", "no trace is called ...")`.

    Tests and scripts rely on the code, which stays; the sentence may be improved. docs/errors.md lists all.
    """

    def __init__(self, code: str, sentence: str) -> None:
        # Both are arguments, so that the error survives being pickled on its way between processes.
        super().__init__(code, sentence)
        self.code = code
        self.sentence = sentence
        # Shown in tracebacks, and found by `pytest.raises(match=...)`.
        self.__notes__ = [code]

    def __str__(self) -> str:
        return self.sentence

    def within(self, where: str) -> Self:
        """Return the error with where it happened before its sentence; the code stays."""
        return type(self)(self.code, f"{where}: {self.sentence}")


class UserError(CodedError):
    """Wrong use or bad input. The command line prints the sentence and exits with 2."""


class CheckFailedError(CodedError):
    """A check said no (a regression, a checksum, a failed gate). The command line exits with 1."""


class Terminated(BaseException):
    """SIGTERM, as an exception like the KeyboardInterrupt of SIGINT: what is half done is cleaned up."""


class Interrupted(BaseException):
    """Ctrl-C where there is more to say: click makes an Abort of a KeyboardInterrupt, whatever it says."""


def require_text(word: str) -> None:
    """Raise a UserError for a name that is no text: files store names as UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise not_text(word) from None


def not_text(word: str) -> UserError:
    """Return the error for a name that is not UTF-8."""
    shown = "".join(f"\\x{ord(one) & 0xFF:02x}" if "\ud800" <= one <= "\udfff" else one for one in word)
    return UserError("name-not-text", f"{shown} is not UTF-8 and could not be stored: rename it")
