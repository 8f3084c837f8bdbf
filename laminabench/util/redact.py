"""Redaction of secrets: values that are never printed or stored, and command lines without them.

A header of `--header 'Name: value'` may be a key, so all of them are. It is `revealed()` where it is sent.
"""

from __future__ import annotations

import hmac
import re
import shlex
from collections.abc import Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, final

# What stands in place of a secret.
HIDDEN = "***"
# Flags of any command whose value is one, and those whose value is a command line of its own.
_FLAGS = ("--header",)
_LINES = ("--live", "--twin")
_UNQUOTED = ":"
# What is shorter is no key, and would be hidden in the middle of words.
SHORTEST = 4
_FLAG_IN_LINE = re.compile(r"--header(?:\s*=\s*|\s+)|^--header=")
_CREDENTIALS = re.compile(r"//[^/\s]*@")


@final
class Secret:
    """A header, or a key. It compares in constant time, and shows a header's name at most."""

    __slots__ = ("__revealed",)

    def __init__(self, text: str) -> None:
        self.__revealed = text

    def revealed(self) -> str:
        return self.__revealed

    def __str__(self) -> str:
        return shown(self.__revealed)

    def __repr__(self) -> str:
        return repr(str(self))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__revealed.encode(), other.__revealed.encode())

    def __hash__(self) -> int:
        return hash(self.__revealed)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of a process that is being started: a client process sends requests too.
        if get_spawning_popen() is None:
            raise TypeError("a secret cannot be pickled")
        return Secret, (self.__revealed,)


def shown(text: str) -> str:
    """Return a header's name; nothing of other values."""
    name, colon, _ = text.partition(":")
    return f"{name.strip()}: {HIDDEN}" if colon else HIDDEN


def without_credentials(url: str) -> str:
    return _CREDENTIALS.sub(f"//{HIDDEN}@", url)


def command_line(words: Sequence[str]) -> str:
    """Return the command line as it is stored and shown."""
    return shlex.join(redacted(words))


def redacted(words: Sequence[str]) -> list[str]:
    """Return the words of a command without secrets, nested command lines included."""
    return list(_redacted(words))


def _redacted(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        flag, equals, value = word.partition("=")
        if before in _FLAGS or (equals and flag in _FLAGS):
            yield shown(word) if before in _FLAGS else f"{flag}={shown(value)}"
            # Without quotes its value is a word of its own.
            before = _UNQUOTED if word.rstrip().endswith(":") else ""
            continue
        if before == _UNQUOTED and not word.startswith("-"):
            yield HIDDEN
            continue
        if before in _LINES:
            yield line(word)
        elif equals and flag in _LINES:
            yield f"{flag}={line(value)}"
        else:
            yield without_credentials(word)
        before = "" if before in _LINES else word


def hidden(text: str, words: Sequence[str]) -> str:
    """Return a sentence about a command line, without the secrets that this has."""
    for word, without in zip(words, redacted(words), strict=True):
        if word != without:
            text = text.replace(word, without)
            for part in _parts(word):
                if len(part) >= SHORTEST and part not in without:
                    text = text.replace(part, HIDDEN)
    return text


def _parts(word: str) -> Iterator[str]:
    """Return a word's parts that may be secret, longest first, so that nothing of them is left."""
    parts = {word, word.partition(":")[2].strip(), *re.split(r"[\s'\"=:@/]+", word)}
    yield from sorted(parts, key=len, reverse=True)


def line(text: str) -> str:
    """Return a command line in one text without its secrets; unchanged if there are none."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its other
        match = _FLAG_IN_LINE.search(text)
        return text[: match.end()] + HIDDEN if match else without_credentials(text)
    without = redacted(words)
    return text if without == words else shlex.join(without)
