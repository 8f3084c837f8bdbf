"""Text of a sequence's tokens as they come, and where it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

# What stands for bytes that are no character, or not yet.
BROKEN = "\ufffd"
# Bytes of a character that its last one completes.
MOST_MISSING = 3
# Tokens that are decoded once more with each new one. Text that is nothing but broken characters for so
# long is told as it is.
LONGEST_WINDOW = 48


class Decodes(Protocol):
    """What of a tokenizer is needed."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...


class Detokenizer:
    """Adds up to what decoding all tokens at once gives.

    A token's text depends on its neighbours: a few tokens before a new one are decoded with it. A character
    may be spread over several tokens: it is told when it is whole.
    """

    def __init__(self, tokenizer: Decodes, *, skip_special: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._window: list[int] = []  # the tokens whose text is not settled, after some whose text is
        self._settled = 0
        self._told = 0  # characters of the window's text

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that these tokens settle."""
        text = ""
        for token in tokens:
            self._window.append(token)
            text += self._step()
        return text

    def _step(self) -> str:
        whole = self._text(self._window)
        broken = len(whole) - len(whole.rstrip(BROKEN))
        firm = len(whole) - min(broken, MOST_MISSING)
        if len(self._window) > LONGEST_WINDOW:
            firm = len(whole)
        new = whole[self._told : firm]
        self._told = max(self._told, firm)
        if firm == len(whole):
            del self._window[: self._settled]
            self._settled = len(self._window)
            self._told = len(self._text(self._window))
        return new

    def flush(self) -> str:
        """What is left when no token comes any more."""
        return self._text(self._window)[self._told :]

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=self._skip)


class Stopper:
    """Holds back text that may be the beginning of a stop string, and finds the first that is whole."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops, self._include = stops, include
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The part of it, and of what was held back, that can be told now."""
        if not self._stops:
            return text
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            # Of those that end first the one that begins first.
            place, self.found = min(places, key=lambda each: (each[0] + len(each[1]), each[0]))
            self._held = ""
            return text[: place + len(self.found)] if self._include else text[:place]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back for nothing."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that the stop string begins with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
