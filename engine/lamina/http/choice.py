"""One of the sequences that a request asks for: from its tokens to text, log-probabilities and an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lamina.http.detokenize import Detokenizer, Stopper
from lamina.http.fields import Asked
from lamina.http.tokenizer import Tokenizer
from lamina.serve import Piece, TokenLogprobs

# JSON has no infinity.
LEAST_LOGPROB = -9999.0


@dataclass(slots=True)
class Delta:
    """What is new of a choice."""

    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Choice:
    """What has come of it so far."""

    def __init__(self, index: int, asked: Asked, prompt: Sequence[int], tokenizer: Tokenizer | None) -> None:
        self.index, self.prompt = index, prompt
        self.tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.begun = False  # somebody has been told of it
        self.characters = 0  # of its tokens, where log-probabilities are told
        self._stop_tokens = frozenset(asked.stop_token_ids or ())
        self._include = bool(asked.include_stop_str_in_output)
        self._detokenizer: Detokenizer | None = None
        if tokenizer:
            self._detokenizer = Detokenizer(tokenizer, skip_special=asked.skip_special_tokens is not False)
        self._stopper = Stopper(asked.stop_strings, include=self._include)

    def feed(self, piece: Piece) -> Delta:
        """Its next tokens; those after its end are nobody's."""
        if self.finish_reason:
            return Delta()
        delta = Delta(tokens=piece.tokens)
        if self._detokenizer:
            delta.text = self._read(piece, self._detokenizer)
        if self._stopper.found is not None:
            self.finish_reason, self.stop_reason = "stop", self._stopper.found
        elif piece.finish_reason:
            self._finish(piece, delta)
        self.tokens += len(delta.tokens)
        if piece.logprobs:
            delta.logprobs = list(piece.logprobs[: len(delta.tokens)])
        return delta

    def _read(self, piece: Piece, detokenizer: Detokenizer) -> str:
        # The token that ends a sequence is none of its text.
        last = piece.finish_reason == "stop" and not self._include
        text = detokenizer.feed(piece.tokens[:-1] if last else piece.tokens)
        return self._stopper.feed(text)

    def _finish(self, piece: Piece, delta: Delta) -> None:
        if self._detokenizer:
            delta.text += self._stopper.feed(self._detokenizer.flush())
            if self._stopper.found is not None:
                self.finish_reason, self.stop_reason = "stop", self._stopper.found
                return
            delta.text += self._stopper.flush()
        self.finish_reason = piece.finish_reason
        if piece.finish_reason == "stop" and piece.tokens[-1] in self._stop_tokens:
            self.stop_reason = piece.tokens[-1]


def finite(logprob: float) -> float:
    """As JSON can have it."""
    return max(logprob, LEAST_LOGPROB)
