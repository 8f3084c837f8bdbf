"""The copy of an arena's KV: what another process finds in its file is what the arena had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lamina.kv import Arena, ArenaShape
from lamina.kv.copy import PIECE_BYTES, KvCopy, new_file, path_of
from lamina.operators import Sight

SIGHTS = (Sight(), Sight(window=6), Sight(chunk=5))
SHAPE = ArenaShape(layers=3, kv_heads=2, head_dim=8, dtype=torch.bfloat16, sights=SIGHTS)
ROWS, LONGEST = 4, 60
Ints = NDArray[np.int64]


@pytest.fixture
def path() -> Iterator[str]:
    with new_file("disk") as file:
        yield path_of(file)


def arena(**more: float) -> Arena:
    made = Arena(SHAPE, 400, sequences=ROWS + 1, **more)  # type: ignore[arg-type]
    made.fill()
    return made


def decode(of: Arena, copy: KvCopy, names: Ints, iterations: int = 1) -> None:
    for _ in range(iterations):
        slots = of.extend(names)
        for space, new in zip(of.spaces, slots, strict=True):
            of_space = space.storage[:, space.physical(new)]
            space.storage[:, space.physical(new)] = torch.randn_like(of_space.float()).bfloat16()
        copy.append(0, names, slots)


def lengths(copy: KvCopy) -> dict[int, int]:
    names, tokens = copy.stored()
    return dict(zip(names.tolist(), tokens.tolist(), strict=True))


def contents(of: Arena, name: int) -> list[torch.Tensor]:
    """Return the KV of a sequence by space."""
    return [space.storage[:, space.physical(space.slab.indices(name))].clone() for space in of.spaces]


@pytest.mark.parametrize("overcommit", [0.0, 1.0])
def test_a_new_process_reads_back_what_was_copied(path: str, overcommit: float) -> None:
    before = arena(overcommit=overcommit)
    names = np.array([7, 9], np.int64)
    copy = KvCopy(path, before, ROWS, LONGEST)
    for name, tokens in ((7, 20), (9, 3)):
        before.allocate(name, tokens)
    decode(before, copy, names, 15)
    assert lengths(copy) == {7: 35, 9: 18}

    now = arena(overcommit=overcommit)
    again = KvCopy(path, now, ROWS, LONGEST)
    assert lengths(again) == {7: 35, 9: 18}
    for name, tokens in ((9, 18), (7, 35)):
        assert again.read(name, tokens, now.allocate(name, tokens))
        for old, new in zip(contents(before, name), contents(now, name), strict=True):
            assert torch.equal(old, new)
    decode(now, again, names, 3)
    assert lengths(again) == {7: 38, 9: 21}


def test_an_iteration_that_was_not_received_is_repeated(path: str) -> None:
    """The copy has one token more, and what the token before it sees."""
    before, names = arena(), np.array([5], np.int64)
    copy = KvCopy(path, before, ROWS, LONGEST)
    before.allocate(5, 11)
    decode(before, copy, names, 5)
    expected = contents(before, 5)
    decode(before, copy, names)

    now = arena()
    again = KvCopy(path, now, ROWS, LONGEST)
    slots = now.allocate(5, 16)
    assert not again.read(5, 18, slots)
    assert again.read(5, 16, slots)
    assert lengths(again) == {5: 16}
    for old, new, sight in zip(expected, contents(now, 5), SIGHTS, strict=True):
        observed = 17 - sight.first(17) - 1  # by the token to come
        assert torch.equal(old[:, len(old[0]) - observed :], new[:, len(new[0]) - observed :])


def test_a_long_sequence_is_copied_behind(path: str) -> None:
    """A piece with each iteration, others in between; until then it cannot be read back."""
    shape = ArenaShape(layers=1, kv_heads=1, head_dim=PIECE_BYTES // 32, dtype=torch.float32)
    of, names = Arena(shape, 40), np.array([3, 4], np.int64)
    copy = KvCopy(path, of, ROWS, LONGEST)
    of.allocate(3, 10)
    of.allocate(4, 1)
    copy.append(0, names, of.extend(names))
    assert lengths(copy) == {3: 4, 4: 0}
    assert not copy.read(3, 10, of.allocate(30, 10))
    assert copy.catch_up()
    assert lengths(copy) == {3: 8, 4: 0}
    assert copy.catch_up()
    assert not copy.catch_up()
    assert lengths(copy) == {3: 10, 4: 1}
    copy.append(0, names, of.extend(names))
    assert not copy.catch_up()  # the tokens that have been made meanwhile too
    copy.append(0, names, of.extend(names))
    assert lengths(copy) == {3: 13, 4: 4}


def test_a_piece_has_several_short_sequences(path: str) -> None:
    """A copy that is begun anew, as that of a lost worker, is whole again after as few iterations."""
    of, names = arena(), np.arange(1, 4, dtype=np.int64)
    for name in names.tolist():
        of.allocate(name, 5)
    copy = KvCopy(path, of, ROWS, LONGEST)
    decode(of, copy, names, 1)
    assert lengths(copy) == {1: 6, 2: 6, 3: 6}


def test_rows_are_used_again(path: str) -> None:
    of, copy = arena(), None
    copy = KvCopy(path, of, ROWS, LONGEST)
    names = np.arange(1, 6, dtype=np.int64)  # one more than there are rows
    for name in names.tolist():
        of.allocate(name, 2)
    decode(of, copy, names, 8)
    assert len(lengths(copy)) == ROWS
    copy.release([2, 99])
    assert 2 not in lengths(copy)
    decode(of, copy, names[2:].copy(), 8)
    assert {3, 4, 5} < lengths(copy).keys()
    copy.keep({5})
    assert lengths(KvCopy(path, of, ROWS, LONGEST)).keys() == {5}


def test_memory_is_given_back_beyond_the_arenas_size(path: str) -> None:
    """Rows that were used keep theirs for the next sequence, up to that."""
    of = Arena(ArenaShape(layers=1, kv_heads=1, head_dim=1024, dtype=torch.float32), 60)
    copy = KvCopy(path, of, ROWS, LONGEST)
    token_bytes, copied = 2 * 1024 * 4, []
    for first, count, tokens in ((1, 3, 15), (4, 4, 10)):
        names = np.arange(first, first + count, dtype=np.int64)
        for name in names.tolist():
            of.allocate(name, tokens)
        for _ in range(2):
            copy.append(0, names, of.extend(names))
            while copy.catch_up():
                pass
        of.release(names)
        copy.release(names.tolist())
        copied.append(Path(path).stat().st_blocks * 512 // token_bytes)
    assert copied[0] >= 3 * 16
    assert copied[1] < 3 * 16
