"""One of the sequences of a request: from its tokens to text, log-probabilities and an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lamina.errors import CodedError
from lamina.http.api import GenerationRequest
from lamina.http.errors import ApiError
from lamina.serve import Piece, TokenLogprobs

FILE = "tokenizer.json"


class TokenizerError(CodedError, ValueError):
    """A tokenizer that cannot be used; the message says why."""


class Tokenizer:
    """A model's tokenizer, and its chat template if it has one."""

    def __init__(self, backend: Any, templated: Any = None) -> None:
        self._backend = backend
        self._templated = templated
        backend.no_truncation()
        backend.no_padding()

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """Load a tokenizer from a model's folder or a tokenizer.json; nothing is downloaded."""
        import tokenizers

        try:
            if path.is_file():
                return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
            import transformers

            known: Any = transformers
            if (path / "tokenizer_config.json").is_file():
                loaded = known.AutoTokenizer.from_pretrained(
                    str(path), local_files_only=True, trust_remote_code=False
                )
            else:
                loaded = known.PreTrainedTokenizerFast(tokenizer_file=str(path / FILE))
        except Exception as error:
            raise TokenizerError(
                "tokenizer-unreadable", f"{path} is no tokenizer that can be read: {error}"
            ) from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise TokenizerError(
                "tokenizer-no-file", f"{path} has no {FILE}, which is the only kind that is served"
            )
        return Tokenizer(backend, loaded if getattr(loaded, "chat_template", None) else None)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special)
        return text

    def token(self, token: int) -> str:
        return self.decode([token], skip_special=False)

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return a conversation as the prompt for its next message: by the model's template, else a plain
        one.
        """
        if self._templated is None:
            lines = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return self.encode(f"{lines}assistant:")
        try:
            text = self._templated.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates refuse what they have no form for
            raise ApiError(400, f"the model's chat template refuses it: {error}", param="messages") from error
        # Templates write special tokens themselves.
        return self.encode(text, special=False)


# JSON has no infinity.
LEAST_LOGPROB = -9999.0
# What stands for bytes that are no character, or not yet.
BROKEN = "\ufffd"
# Bytes of a character that its last one completes.
MOST_MISSING = 3
# Tokens that are decoded once more with each new one. Text that is nothing but broken characters for so
# long is sent as it is.
LONGEST_WINDOW = 48


@dataclass(slots=True)
class Delta:
    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @staticmethod
    def joined(deltas: Sequence[Delta]) -> Delta:
        """Concatenate them, each copied once."""
        if len(deltas) == 1:
            return deltas[0]
        return Delta(
            "".join([delta.text for delta in deltas]),
            list(chain.from_iterable(delta.tokens for delta in deltas)),
            list(chain.from_iterable(delta.logprobs for delta in deltas)),
        )


class Choice:
    def __init__(
        self, index: int, request: GenerationRequest, prompt: Sequence[int], tokenizer: Tokenizer | None
    ) -> None:
        self.index, self.prompt = index, prompt
        self.tokens = 0
        self.finish_reason: Literal["stop", "length"] | None = None
        self.stop_reason: int | str | None = None
        self.begun = False  # a chunk of it has been sent
        self.characters = 0  # of its tokens, where log-probabilities are given
        self._stop_tokens = frozenset(request.stop_token_ids or ())
        self._include = bool(request.include_stop_str_in_output)
        self._detokenizer: Detokenizer | None = None
        if tokenizer:
            skip_special = request.skip_special_tokens is not False
            self._detokenizer = Detokenizer(partial(tokenizer.decode, skip_special=skip_special))
        self._stops = StopStrings(request.stop_strings, include=self._include)

    def feed(self, piece: Piece) -> Delta:
        """Return its next tokens; those after its end are dropped."""
        if self.finish_reason:
            return Delta()
        delta = Delta(tokens=piece.tokens)
        if self._detokenizer:
            delta.text = self._read(piece, self._detokenizer)
        if self._stops.met is not None:
            self.finish_reason, self.stop_reason = "stop", self._stops.met
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
        return self._stops.feed(text)

    def _finish(self, piece: Piece, delta: Delta) -> None:
        if self._detokenizer:
            delta.text += self._stops.feed(self._detokenizer.flush())
            if self._stops.met is not None:
                self.finish_reason, self.stop_reason = "stop", self._stops.met
                return
            delta.text += self._stops.flush()
        self.finish_reason = "stop" if piece.finish_reason == "stop" else "length"
        if piece.finish_reason == "stop" and piece.tokens[-1] in self._stop_tokens:
            self.stop_reason = piece.tokens[-1]


def json_safe(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Detokenizer:
    """A decoder of tokens to text piece by piece, whose sum is the text of all tokens at once.

    A token's text depends on its neighbours: a few tokens before a new one are decoded with it. A character
    may be spread over several tokens: it is sent once it is whole.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._text = decode
        self._window: list[int] = []  # the tokens whose text is not settled, after some whose text is
        self._settled = 0
        self._given = 0  # characters of the window's text

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens settle."""
        text = ""
        for token in tokens:
            self._window.append(token)
            text += self._step()
        return text

    def _step(self) -> str:
        current = self._text(self._window)
        broken = len(current) - len(current.rstrip(BROKEN))
        firm = len(current) - min(broken, MOST_MISSING)
        if len(self._window) > LONGEST_WINDOW:
            firm = len(current)
        new = current[self._given : firm]
        self._given = max(self._given, firm)
        if firm == len(current):
            del self._window[: self._settled]
            self._settled = len(self._window)
            self._given = len(self._text(self._window))
        return new

    def flush(self) -> str:
        return self._text(self._window)[self._given :]


class StopStrings:
    """A filter that holds back text which may begin a stop string, and finds the first whole one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops, self._include = stops, include
        self._pending = ""
        self.met: str | None = None

    def feed(self, text: str) -> str:
        """Return the part of it, and of withheld text, that can be sent now."""
        if not self._stops:
            return text
        text = self._pending + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            # Of those that end first the one that begins first.
            place, self.met = min(places, key=lambda at: (at[0] + len(at[1]), at[0]))
            self._pending = ""
            return text[: place + len(self.met)] if self._include else text[:place]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        pending, self._pending = self._pending, ""
        return pending


def _overlap(text: str, stop: str) -> int:
    """Return the characters at the end of the text that the stop string begins with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
