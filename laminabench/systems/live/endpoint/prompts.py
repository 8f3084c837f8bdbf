"""Prompts of exactly a trace's lengths: the same for the same prefix block, else all their own.

They are token ids, or, where there is a tokenizer, text that it turns into exactly so many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laminabench.systems.live.endpoint.request import Prompt
from laminabench.systems.live.prompts import drawn
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

# Separates these draws from each other and from all others of the same seed.
_ROW, _BLOCK, _WARM_UP = 0x656E6470, 0x626C6F63, 0x7761726D
# Enough words for prompts that share nothing, few enough to be generated quickly.
MOST_WORDS = 4096
FEWEST_WORDS = 8
_MOST_TOKENS = 40_000


@dataclass(frozen=True, slots=True)
class Words:
    """Words of one token each, wherever they stand in a text of such words."""

    words: tuple[str, ...]
    lead: str  # what stands before the first one, so that it is one token too


@dataclass(slots=True)
class Prompts:
    """Prompts of the trace's rows: numbers below `below`, as token ids or as words."""

    trace: Trace
    seed: int
    below: int
    words: Words | None = None
    added: int = 0  # tokens of each text that are the server's own

    @classmethod
    def of_words(cls, trace: Trace, seed: int, words: Words, added: int = 0) -> Prompts:
        return cls(trace, seed, len(words.words), words, added)

    def length(self, row: int) -> int:
        """Return the tokens to send for a row; of a text at least one."""
        tokens = int(self.trace.prompt_tokens[row])
        return tokens if self.words is None else max(1, tokens - self.added)

    def too_short(self) -> int:
        """Count the rows whose prompt cannot be as short as in the trace."""
        return int((self.trace.prompt_tokens <= self.added).sum())

    def of(self, row: int) -> Prompt:
        """Return a row's prompt: the text of its prefix blocks, and its own after them."""
        count = self.length(row)
        blocks, size = self.trace.prefix_blocks, self.trace.meta.block_tokens
        shared = [] if blocks is None else blocks[row].tolist()
        # A block that the prompt ends in begins as the whole one does.
        parts = [drawn(self.seed, _BLOCK, block, size, self.below) for block in shared[: -(-count // size)]]
        rest = count - size * len(parts)
        if rest > 0:
            parts.append(drawn(self.seed, _ROW, row, rest, self.below))
        return self._prompt(np.concatenate(parts)[:count] if parts else np.empty(0, np.uint64))

    def warm_up(self, number: int, tokens: int) -> Prompt:
        """Return a prompt that shares nothing with any row's."""
        count = tokens if self.words is None else max(1, tokens - self.added)
        return self._prompt(drawn(self.seed, _WARM_UP, number, count, self.below))

    def _prompt(self, numbers: NDArray[np.uint64]) -> Prompt:
        ids: list[int] = numbers.tolist()
        if self.words is None:
            return ids
        return self.words.lead + " ".join([self.words.words[number] for number in ids])


def load_tokenizer(path: str) -> Any:
    """Load a `tokenizer.json`, or that of a model's folder."""
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file /= "tokenizer.json"
    if not file.is_file():
        raise UserError(
            "tokenizer-missing",
            f"--tokenizer {path}: there is no tokenizer.json; give the file, or a folder that has it",
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # it raises nothing more special
        raise UserError("tokenizer-invalid", f"--tokenizer {file}: not a tokenizer: {error}") from error


def words_of(tokenizer: Any) -> Words:
    """Return words that are one token each: text made of them has as many tokens as words."""
    candidates = _candidates(tokenizer)
    best = max(
        (_single(tokenizer, candidates, lead) for lead in ("", " ")),
        key=lambda each: len(each.words),
    )
    if len(best.words) < FEWEST_WORDS:
        raise UserError(
            "tokenizer-unfit",
            f"--tokenizer: only {len(best.words)} of its words are one token wherever they stand, and "
            f"prompts need {FEWEST_WORDS}; without it, /v1/completions takes token ids",
        )
    return best


def _candidates(tokenizer: Any) -> list[str]:
    """Return tokens that decode to letters, mostly a word after a space."""
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())[:_MOST_TOKENS]
    decoded = (tokenizer.decode([number], skip_special_tokens=True).strip() for number in ids)
    return sorted({word for word in decoded if word.isascii() and word.isalpha()})


def _single(tokenizer: Any, candidates: list[str], lead: str) -> Words:
    """Return the words of which three make a text of three tokens."""
    texts = [f"{lead}{word} {word} {word}" for word in candidates]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    single = [word for word, encoded in zip(candidates, encodings, strict=True) if len(encoded.ids) == 3]
    return Words(tuple(single[:MOST_WORDS]), lead)


def check_lengths(tokenizer: Any, prompts: Prompts, rows: list[int]) -> int:
    """Count the rows whose text has another number of tokens than intended when it is encoded again."""
    texts = [tokenizer.encode(prompts.of(row), add_special_tokens=False) for row in rows]
    return sum(len(text.ids) != prompts.length(row) for row, text in zip(rows, texts, strict=True))
