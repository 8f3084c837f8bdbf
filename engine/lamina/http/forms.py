"""How answers are written: the two shapes that OpenAI's API has, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from lamina.http.choice import Choice, Delta, finite
from lamina.http.fields import Asked
from lamina.http.tokenizer import Tokenizer
from lamina.serve import TokenLogprobs


class Form:
    """What answers of both kinds have."""

    prefix: ClassVar[str]
    whole_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, asked: Asked, model: str, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = None if asked.return_tokens_as_token_ids else tokenizer
        self._ids = bool(asked.return_token_ids)
        self._id = f"{self.prefix}-{asked.request_id or uuid.uuid4().hex}"
        self._created, self._model = int(time.time()), model

    def head(self, *, chunk: bool) -> dict[str, Any]:
        """What every answer and every chunk begins with."""
        return {
            "id": self._id,
            "object": self.chunk_name if chunk else self.whole_name,
            "created": self._created,
            "model": self._model,
        }

    def first(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """What the answer, or its first chunk, has beside its choices."""
        raise NotImplementedError

    def chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """A choice as a chunk has it."""
        raise NotImplementedError

    def whole(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """A choice as a whole answer has it."""
        raise NotImplementedError

    def _end(self, choice: Choice) -> dict[str, Any]:
        return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}

    def _name(self, token: int) -> str:
        return self._tokenizer.token(token) if self._tokenizer else f"token_id:{token}"


class CompletionForm(Form):
    """/v1/completions."""

    prefix, whole_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def first(self, choices: Sequence[Choice]) -> dict[str, Any]:  # noqa: ARG002
        """Choices have their prompts themselves: they may differ."""
        return {}

    def chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        told: dict[str, Any] = {
            "index": choice.index,
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta),
            **self._end(choice),
        }
        if self._ids:
            told["token_ids"] = list(delta.tokens)
            if not choice.begun:
                told["prompt_token_ids"] = list(choice.prompt)
        return told

    whole = chunk

    def _logprobs(self, choice: Choice, delta: Delta) -> dict[str, Any] | None:
        if not delta.logprobs:
            return None
        names = [self._name(token) for token in delta.tokens]
        offsets = []
        for name in names:
            offsets.append(choice.characters)
            choice.characters += len(name)
        return {
            "tokens": names,
            "token_logprobs": [finite(each.chosen) for each in delta.logprobs],
            "top_logprobs": [self._top(name, each) for name, each in zip(names, delta.logprobs, strict=True)],
            "text_offset": offsets,
        }

    def _top(self, name: str, told: TokenLogprobs) -> dict[str, float]:
        """The likeliest, and the one that was chosen. Of two that read the same the likelier is told."""
        top: dict[str, float] = {}
        for token, logprob in told.top:
            top.setdefault(self._name(token), finite(logprob))
        top.setdefault(name, finite(told.chosen))
        return top


class ChatForm(Form):
    """/v1/chat/completions."""

    prefix, whole_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {"prompt_token_ids": list(choices[0].prompt)} if self._ids else {}

    def chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        said = {"content": delta.text}
        if not choice.begun:
            # With the first text and not before it: as many chunks as tokens.
            said = {"role": "assistant", **said}
        return self._told(choice, delta, {"delta": said})

    def whole(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return self._told(choice, delta, {"message": message})

    def _told(self, choice: Choice, delta: Delta, said: dict[str, Any]) -> dict[str, Any]:
        told = {
            "index": choice.index,
            **said,
            "logprobs": self._logprobs(delta),
            **self._end(choice),
        }
        if self._ids:
            told["token_ids"] = list(delta.tokens)
        return told

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if not delta.logprobs:
            return None
        content = [
            {
                **self._one(token, each.chosen),
                "top_logprobs": [self._one(likely, logprob) for likely, logprob in each.top],
            }
            for token, each in zip(delta.tokens, delta.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._name(token)
        told = list(name.encode()) if self._tokenizer else None
        return {"token": name, "logprob": finite(logprob), "bytes": told}
