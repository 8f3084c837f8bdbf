"""Prompts as text that a tokenizer turns into exactly so many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laminabench.errors import UserError
from laminabench.systems.live.endpoint.prompts import Draws

# Enough words for prompts that share nothing, few enough to be found in a moment.
MOST_WORDS = 4096
FEWEST_WORDS = 8
_TRIED = 40_000


@dataclass(frozen=True, slots=True)
class Words:
    """Words of one token each, wherever they stand in a text of such words."""

    words: tuple[str, ...]
    lead: str  # what stands before the first one, so that it is one token too


@dataclass(slots=True)
class TextPrompts:
    """Words drawn as token ids would be; `added` tokens of each prompt are the server's own."""

    words: Words
    draws: Draws
    added: int = 0

    def of(self, row: int) -> str:
        asked = int(self.draws.trace.prompt_tokens[row])
        return self._text(self.draws.of(row, max(1, asked - self.added)))

    def too_short(self) -> int:
        """Rows whose prompt cannot be as short as the trace has it."""
        return int((self.draws.trace.prompt_tokens <= self.added).sum())

    def warm_up(self, number: int, tokens: int) -> str:
        return self._text(self.draws.warm_up(number, max(1, tokens - self.added)))

    def _text(self, drawn: Any) -> str:
        words = self.words.words
        return self.words.lead + " ".join([words[number] for number in drawn.tolist()])


def load_tokenizer(path: str) -> Any:
    """A `tokenizer.json`, or the folder of a model that has one."""
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
    """Words that are one token each: text made of them has as many tokens as words."""
    candidates = _candidates(tokenizer)
    best = max((_kept(tokenizer, candidates, lead) for lead in ("", " ")), key=lambda found: len(found.words))
    if len(best.words) < FEWEST_WORDS:
        raise UserError(
            "tokenizer-unfit",
            f"--tokenizer: only {len(best.words)} of its words are one token wherever they stand, and "
            f"prompts need {FEWEST_WORDS}; without it, /v1/completions takes token ids",
        )
    return best


def _candidates(tokenizer: Any) -> list[str]:
    """What decodes to letters, most of it a word with the space before it."""
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())[:_TRIED]
    decoded = (tokenizer.decode([number], skip_special_tokens=True).strip() for number in ids)
    return sorted({word for word in decoded if word.isascii() and word.isalpha()})


def _kept(tokenizer: Any, candidates: list[str], lead: str) -> Words:
    """Those of which a text of three has three tokens."""
    texts = [f"{lead}{word} {word} {word}" for word in candidates]
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    kept = [word for word, encoded in zip(candidates, found, strict=True) if len(encoded.ids) == 3]
    return Words(tuple(kept[:MOST_WORDS]), lead)


def check_lengths(tokenizer: Any, prompts: TextPrompts, rows: list[int]) -> int:
    """How many of these rows' texts are another number of tokens than they should be, encoded again."""
    wrong = 0
    for row in rows:
        asked = max(1, int(prompts.draws.trace.prompt_tokens[row]) - prompts.added)
        wrong += len(tokenizer.encode(prompts.of(row), add_special_tokens=False).ids) != asked
    return wrong
