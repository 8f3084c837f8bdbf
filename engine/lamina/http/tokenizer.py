"""Text to token ids and back, and a conversation as one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamina.errors import CodedError
from lamina.http.errors import ApiError

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
        """From a model's folder or a tokenizer.json; nothing is downloaded."""
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
        """A conversation as the prompt for its next message: by the model's template, else a plain one."""
        if self._templated is None:
            lines = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return self.encode(f"{lines}assistant:")
        try:
            text = self._templated.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates refuse what they have no form for
            raise ApiError(400, f"the model's chat template refuses it: {error}", param="messages") from error
        # Templates write special tokens themselves.
        return self.encode(text, special=False)
