"""How answers are written: the two shapes that OpenAI's API has, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import ClassVar

from lamina.http import answers
from lamina.http.api import GenerationRequest
from lamina.http.choice import Choice, Delta, json_safe
from lamina.http.tokenizer import Tokenizer
from lamina.serve import TokenLogprobs


class _Form:
    """What answers of both kinds have."""

    prefix: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, request: GenerationRequest, model: str, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = None if request.return_tokens_as_token_ids else tokenizer
        self._ids = bool(request.return_token_ids)
        self._head: answers.Head = {
            "id": f"{self.prefix}-{request.request_id or uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def empty_chunk(self) -> answers.Chunk:
        """A chunk that is about no choice."""
        # mypy: what is spread might have more keys.
        return {**self._head, "object": self.chunk_name, "choices": []}  # type: ignore[typeddict-item]

    def _rest(self, choice: Choice, delta: Delta) -> answers.Choice:
        """What choices of both kinds have."""
        body: answers.Choice = {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._ids:
            body["token_ids"] = list(delta.tokens)
        return body

    def _name(self, token: int) -> str:
        return self._tokenizer.token(token) if self._tokenizer else f"token_id:{token}"


class CompletionForm(_Form):
    """/v1/completions. Choices have their prompts themselves: they may differ."""

    prefix, chunk_name = "cmpl", "text_completion"

    def whole(self, deltas: Mapping[Choice, Delta], usage: answers.Usage) -> answers.CompletionAnswer:
        choices = [self._choice(choice, delta) for choice, delta in deltas.items()]
        return {**self._head, "object": "text_completion", "choices": choices, "usage": usage}

    def chunk(self, choice: Choice, delta: Delta, *, first: bool) -> answers.Chunk:  # noqa: ARG002
        return {**self.empty_chunk(), "choices": [self._choice(choice, delta)]}

    def _choice(self, choice: Choice, delta: Delta) -> answers.CompletionChoice:
        body: answers.CompletionChoice = {
            **self._rest(choice, delta),  # type: ignore[typeddict-item]
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta),
        }
        if self._ids and not choice.begun:
            body["prompt_token_ids"] = list(choice.prompt)
        return body

    def _logprobs(self, choice: Choice, delta: Delta) -> answers.CompletionLogprobs | None:
        if not delta.logprobs:
            return None
        names = [self._name(token) for token in delta.tokens]
        offsets = []
        for name in names:
            offsets.append(choice.characters)
            choice.characters += len(name)
        return {
            "tokens": names,
            "token_logprobs": [json_safe(token.chosen) for token in delta.logprobs],
            "top_logprobs": [
                self._top(name, token) for name, token in zip(names, delta.logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def _top(self, name: str, token: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the chosen one. Of two with the same text the likelier one counts."""
        top: dict[str, float] = {}
        for likely, logprob in token.top:
            top.setdefault(self._name(likely), json_safe(logprob))
        top.setdefault(name, json_safe(token.chosen))
        return top


class ChatForm(_Form):
    """/v1/chat/completions."""

    prefix, chunk_name = "chatcmpl", "chat.completion.chunk"

    def whole(self, deltas: Mapping[Choice, Delta], usage: answers.Usage) -> answers.ChatAnswer:
        choices: list[answers.ChatChoice] = []
        for choice, delta in deltas.items():
            message: answers.ChatMessage = {"role": "assistant", "content": delta.text, "refusal": None}
            logprobs = self._logprobs(delta)
            choices.append({**self._rest(choice, delta), "message": message, "logprobs": logprobs})
        body: answers.ChatAnswer = {
            **self._head,  # type: ignore[typeddict-item]
            "object": "chat.completion",
            "choices": choices,
            "usage": usage,
        }
        if self._ids:
            body["prompt_token_ids"] = list(next(iter(deltas)).prompt)
        return body

    def chunk(self, choice: Choice, delta: Delta, *, first: bool) -> answers.Chunk:
        text: answers.ChatDelta = {"content": delta.text}
        if not choice.begun:
            # With the first text and not before it: as many chunks as tokens.
            text["role"] = "assistant"
        logprobs = self._logprobs(delta)
        new: answers.ChatChunkChoice = {**self._rest(choice, delta), "delta": text, "logprobs": logprobs}
        body: answers.Chunk = {**self.empty_chunk(), "choices": [new]}
        if first and self._ids:
            body["prompt_token_ids"] = list(choice.prompt)
        return body

    def _logprobs(self, delta: Delta) -> answers.ChatLogprobs | None:
        if not delta.logprobs:
            return None
        content: list[answers.TokenLogprob] = [
            {
                **self._one(token, logprobs.chosen),
                "top_logprobs": [self._one(likely, logprob) for likely, logprob in logprobs.top],
            }
            for token, logprobs in zip(delta.tokens, delta.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> answers.TopLogprob:
        name = self._name(token)
        as_bytes = list(name.encode()) if self._tokenizer else None
        return {"token": name, "logprob": json_safe(logprob), "bytes": as_bytes}


Form = CompletionForm | ChatForm
