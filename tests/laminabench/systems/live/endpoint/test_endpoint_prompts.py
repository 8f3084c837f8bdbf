from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from laminabench.systems.live.endpoint.prompts import Prompts, check_lengths, load_tokenizer, words_of
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta
from laminabench.util.errors import UserError

BLOCK = 4
ROWS = st.lists(
    st.tuples(st.integers(1, 30), st.lists(st.integers(0, 5), max_size=8)), min_size=1, max_size=6
)


def trace_of(rows: list[tuple[int, list[int]]]) -> Trace:
    """Prompts of these lengths, with prefix blocks."""
    return Trace(
        np.zeros(len(rows)),
        np.array([length for length, _ in rows], np.int32),
        np.ones(len(rows), np.int32),
        TraceMeta("t", block_tokens=BLOCK),
        PrefixBlocks.from_lists([blocks for _, blocks in rows]),
    )


@given(ROWS, st.integers(0, 3))
def test_prompts_are_as_long_as_the_trace_says_and_share_the_tokens_of_blocks(
    rows: list[tuple[int, list[int]]], seed: int
) -> None:
    prompts = Prompts(trace_of(rows), seed, 1 << 40)
    made = [prompts.of(row) for row in range(len(rows))]
    assert [len(prompt) for prompt in made] == [length for length, _ in rows]
    where: dict[int, list[int]] = {}
    for (length, blocks), prompt in zip(rows, made, strict=True):
        for place, block in enumerate(blocks[: -(-length // BLOCK)]):
            tokens = prompt[place * BLOCK : (place + 1) * BLOCK]
            known = where.setdefault(block, tokens)
            common = min(len(known), len(tokens))
            assert known[:common] == tokens[:common]
            where[block] = max(known, tokens, key=len)


def test_tokens_outside_blocks_are_not_shared() -> None:
    prompts = Prompts(trace_of([(20, [7]), (20, [7]), (20, [])]), 0, 1 << 40)
    made = [prompts.of(row) for row in range(3)] + [prompts.warm_up(0, 20), prompts.warm_up(1, 20)]
    made.append(Prompts(trace_of([(20, [])]), 1, 1 << 40).of(0))
    assert made[0][:BLOCK] == made[1][:BLOCK]
    rest = [token for prompt in made[:2] for token in prompt[BLOCK:]]
    rest += [token for prompt in made[2:] for token in prompt]
    assert len(set(rest)) == len(rest)


def test_token_ids_are_of_the_vocabulary() -> None:
    prompts = Prompts(trace_of([(500, [1, 2])]), 0, 10)
    assert set(prompts.of(0)) == set(range(10))


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of words that were made up."""
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(150)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = [" ".join(draw.choices(words, k=20)) for _ in range(300)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def test_text_is_encoded_again_to_exactly_the_length(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_file.parent))
    words = words_of(tokenizer)
    trace = trace_of([(length, []) for length in (1, 2, 17, 900)])
    prompts = Prompts.of_words(trace, 0, words)
    assert check_lengths(tokenizer, prompts, [0, 1, 2, 3]) == 0
    assert len(set(prompts.of(3).split())) > len(words.words) // 2


def test_text_of_the_same_block_is_the_same_tokens(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_file))
    words = words_of(tokenizer)
    trace = trace_of([(11, [3, 9]), (9, [3, 9]), (9, [3])])
    prompts = Prompts.of_words(trace, 0, words)
    first, second, third = (tokenizer.encode(prompts.of(row)).ids for row in range(3))
    assert first[: 2 * BLOCK] == second[: 2 * BLOCK]
    assert first[:BLOCK] == third[:BLOCK]
    assert first != second


def test_text_leaves_room_for_what_the_server_adds(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_file))
    words = words_of(tokenizer)
    prompts = Prompts.of_words(trace_of([(10, []), (3, [])]), 0, words, added=4)
    assert [len(tokenizer.encode(prompts.of(row)).ids) for row in (0, 1)] == [6, 1]
    assert prompts.too_short() == 1


def test_a_tokenizer_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer-missing"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="tokenizer-invalid"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_without_words_is_refused_with_a_sentence() -> None:
    made: Callable[..., Any] = Tokenizer
    bytes_only = made(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    with pytest.raises(UserError, match="tokenizer-unfit"):
        words_of(bytes_only)
