"""Raw ShareGPT conversations: every answer is a request whose prompt is all messages before it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.traces.formats.reading import BadRows, Reading, Requests
from laminabench.traces.formats.source import Source
from laminabench.traces.formats.wording import label_of, shown, unreadable
from laminabench.traces.table import MAX_TOKENS
from laminabench.util.errors import UserError

ASSISTANT = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
OTHERS = frozenset({"human", "user", "system", "tool"})
# Conversations encoded at a time: enough for all cores, little memory.
_BATCH = 256

Turn = tuple[bool, str]


def read(reading: Reading) -> Requests:
    source = reading.source
    if reading.columns:
        raise UserError(
            "trace-no-columns-in-conversations",
            f"{source.label}: conversations have no columns; leave out --columns",
        )
    tokenizer = _tokenizer(reading.tokenizer, source.label)
    bad = BadRows(source.label, reading.skip_bad)
    prompts, outputs, sessions = [], [], []
    unprompted = 0
    conversations = enumerate(_conversations(source, bad))
    while batch := list(itertools.islice(conversations, _BATCH)):
        texts = [text for _, turns in batch for _, text in turns]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        counts = iter([len(encoding.ids) for encoding in encodings])
        for session, turns in batch:
            before = 0
            for answers, _ in turns:
                tokens = next(counts)
                if max(before, tokens) > MAX_TOKENS:
                    where = f"{source.label}: conversation {session + 1}"
                    bad.add(where, f"is longer than {MAX_TOKENS:,} tokens")
                elif answers and before:
                    prompts.append(before)
                    outputs.append(tokens)
                    sessions.append(session)
                unprompted += answers and before == 0
                before += tokens
    notes = list(bad.notes(len(prompts) + unprompted))
    if unprompted:
        notes.append(f"{unprompted:,} answers follow no prompt and are only context for what comes after")
    return Requests(
        None,
        np.array(prompts, np.int32),
        np.array(outputs, np.int32),
        np.array(sessions, np.int64),
        notes=tuple(notes),
    )


def _tokenizer(path: Path | None, label: str) -> Any:
    if path is None:
        raise UserError(
            "trace-needs-tokenizer",
            f"{label}: conversations must be counted in tokens; pass --tokenizer tokenizer.json",
        )
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            "trace-tokenizers-missing", f'{label}: counting tokens needs: pip install "laminabench[tokenize]"'
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more precise
        raise UserError(
            "trace-bad-tokenizer", f"{label_of(path)}: not a Hugging Face tokenizer.json that can be read"
        ) from error
    # Both would change the counts: many published tokenizers cut at 512.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _conversations(source: Source, bad: BadRows) -> Iterator[list[Turn]]:
    for number, item in enumerate(_items(source), 1):
        turns = _turns(item)
        if isinstance(turns, str):
            bad.add(f"{source.label}: conversation {number}", turns)
        else:
            yield turns


def _items(source: Source) -> list[object]:
    try:
        with source.text("\n") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise UserError(
            "trace-not-text", f"{source.label}: not valid {source.encoding.upper()}; save it as UTF-8"
        ) from error
    if unreadable(text):
        lines = enumerate(text.split("\n"), 1)
        number, trouble = next((number, why) for number, line in lines if (why := unreadable(line)))
        raise UserError("trace-not-text", f"{source.label}:{number}: {trouble}; fetch the file again")
    try:
        items = json.loads(text, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise UserError("trace-not-json", f"{source.label}: nested too deeply for conversations") from error
    except json.JSONDecodeError as error:
        raise UserError(
            "trace-not-json",
            f"{source.label}:{error.lineno}: not JSON: {error.msg} at column {error.colno}; is it whole?",
        ) from error
    if not isinstance(items, list):
        raise UserError("trace-not-json", f"{source.label}: is {shown(items)}, not a list of conversations")
    return items


def _turns(item: object) -> list[Turn] | str:
    """Return the turns, user first; or the reason why the conversation is invalid."""
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        return 'has no list "conversations"'
    result = []
    for number, turn in enumerate(turns, 1):
        role = turn.get("from") if isinstance(turn, dict) else None
        text = turn.get("value") if isinstance(turn, dict) else None
        if not isinstance(role, str) or role not in ASSISTANT | OTHERS:
            return f'turn {number} is from {shown(role)}, not "human", "gpt" or "system"'
        if not isinstance(text, str):
            return f"turn {number} has {shown(text)} for its value, not text"
        # A lone surrogate is valid JSON, but no text for the tokenizer.
        result.append((role in ASSISTANT, text.encode("utf-8", "replace").decode()))
    return result
