"""The KV arena: what is written for a request is what is read of it, whoever shares or moves its slots."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.kv import Arena, ArenaError, ArenaShape, Faults, SlabFullError
from lamina.kv.arena import BEYOND_FREE, PAGE_TOKENS, Pager, Pages, require_room_for_managed
from lamina.kv.stored import KvDtype, as_stored
from lamina.operators import Sight

SHAPE = ArenaShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32)


def batch(*requests: int) -> np.ndarray:
    return np.array(requests, np.int64)


class Contents:
    """What each request's tokens must be: one number a token, from which K and V are made."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.tokens: dict[int, list[float]] = {}
        self.next = 1.0

    def append(self, request: int, n: int) -> None:
        slots = self.arena.spaces[0].slab.allocate(request, n)
        fresh = [self.next + i for i in range(n)]
        self.next += n
        self.tokens.setdefault(request, []).extend(fresh)
        for layer in range(SHAPE.layers):
            keys = torch.tensor(fresh)[:, None, None].expand(n, SHAPE.kv_heads, SHAPE.head_dim)
            self.arena.write(layer, slots, keys + 1000 * layer, -keys - 1000 * layer)

    def check(self) -> None:
        self.arena.check_integrity()
        for request, tokens in self.tokens.items():
            for layer in range(SHAPE.layers):
                keys, values = self.arena.read(layer, request)
                expected = torch.tensor(tokens)[:, None, None].expand_as(keys) + 1000 * layer
                assert torch.equal(keys, expected)
                assert torch.equal(values, -expected)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "fork", "release", "read"]), st.integers(0, 5), st.integers(1, 70)),
    max_size=30,
)


@pytest.mark.parametrize("overcommit", [0.0, 3.0])
@given(operations=OPERATIONS)
def test_written_kv_is_read_back(overcommit: float, operations: list[tuple[str, int, int]]) -> None:
    arena = Arena(SHAPE, 2 * PAGE_TOKENS, overcommit=overcommit)
    contents = Contents(arena)
    for name, request, n in operations:
        here = request in contents.tokens
        if name == "append" and n <= arena.capacity - arena.used:
            contents.append(request, n)
        elif name == "fork" and here and request + 10 not in contents.tokens:
            shared = min(n, len(contents.tokens[request]))
            arena.fork(request, request + 10, shared)
            contents.tokens[request + 10] = contents.tokens[request][:shared]
        elif name == "release" and here:
            arena.release(batch(request))
            del contents.tokens[request]
        elif name == "read" and here and arena.spaces[0].pager:
            arena.spaces[0].pager.fetch(arena.spaces[0].slab.indices(request))
        contents.check()


def test_pages_that_are_read_come_to_the_device() -> None:
    arena = Arena(SHAPE, PAGE_TOKENS, overcommit=1.0)
    contents = Contents(arena)
    contents.append(1, PAGE_TOKENS)
    contents.append(2, PAGE_TOKENS)
    pager = arena.spaces[0].pager
    assert pager is not None
    assert (pager.fetch(arena.spaces[0].slab.indices(1)) < PAGE_TOKENS).all()
    assert pager.faults.moved == 0
    assert (pager.fetch(arena.spaces[0].slab.indices(2)) < PAGE_TOKENS).all()
    assert pager.faults.moved == 1
    contents.check()
    # Both at once do not fit: one page is read where it is.
    both = np.concatenate([arena.spaces[0].slab.indices(1), arena.spaces[0].slab.indices(2)])
    pager.fetch(both)
    assert (pager.faults.moved, pager.faults.in_place) == (1, 1)
    contents.check()


def test_the_page_unread_for_longest_makes_room() -> None:
    arena = Arena(SHAPE, 2 * PAGE_TOKENS, overcommit=0.5)
    contents = Contents(arena)
    for request in (1, 2, 3):
        contents.append(request, PAGE_TOKENS)
    pager = arena.spaces[0].pager
    assert pager is not None
    for request in (1, 2, 1, 3):
        pager.fetch(arena.spaces[0].slab.indices(request))
    assert pager.faults.moved == 1
    pager.fetch(arena.spaces[0].slab.indices(1))
    assert pager.faults.moved == 1, "request 1 was read later than 2 and had to stay"
    pager.fetch(arena.spaces[0].slab.indices(2))
    assert pager.faults.moved == 2


def test_pages_of_iterations_under_way_stay_where_they_are() -> None:
    arena = Arena(SHAPE, 2 * PAGE_TOKENS, overcommit=1.0)
    contents = Contents(arena)
    for request in range(4):
        contents.append(request, PAGE_TOKENS)
    space = arena.spaces[0]
    pager = space.pager
    assert pager is not None
    slots = [space.slab.indices(request) for request in range(4)]

    def fetched(batch: int, *requests: int) -> tuple[np.ndarray, Faults]:
        before = pager.faults
        where = pager.fetch(np.concatenate([slots[request] for request in requests]), batch)
        return where, Faults(pager.faults.moved - before.moved, pager.faults.in_place - before.in_place)

    first, faults = fetched(0, 0, 3)
    assert faults == Faults(moved=1)
    # Of what batch 1 reads, 0 is shared, 2 finds no page that nobody reads, and 1 lies beside the device.
    assert fetched(1, 0, 1, 2)[1] == Faults(in_place=2)
    assert np.array_equal(pager.physical(np.concatenate([slots[0], slots[3]])), first)
    pager.ended(0)
    assert fetched(2, 1, 2, 3)[1] == Faults(in_place=2), "batch 1 reads them where they are"
    pager.ended(1)
    assert fetched(2, 1, 2, 3)[1] == Faults(moved=1, in_place=1)
    contents.check()


@given(tokens=st.integers(PAGE_TOKENS, 10_000), overcommit=st.floats(0, 8, exclude_min=True))
def test_paging_takes_no_more_memory_than_there_is(tokens: int, overcommit: float) -> None:
    pages = Pager.pages(tokens, overcommit)
    assert tokens - PAGE_TOKENS < pages.device * PAGE_TOKENS <= tokens
    alongside = tokens * overcommit
    assert pages.host * PAGE_TOKENS <= max(alongside, PAGE_TOKENS)
    assert pages.host * PAGE_TOKENS > alongside - PAGE_TOKENS


@pytest.mark.parametrize(
    ("tokens", "overcommit", "pages"),
    [(1, 0.01, (1, 1)), (127, 1.0, (1, 1)), (128, 1.0, (2, 2)), (200, 0.5, (3, 1)), (64, 2.99, (1, 2))],
)
def test_pages_are_whole_and_at_least_one(tokens: int, overcommit: float, pages: tuple[int, int]) -> None:
    assert Pager.pages(tokens, overcommit) == Pages(*pages)
    assert Arena(SHAPE, tokens, overcommit=overcommit).capacity == sum(pages) * PAGE_TOKENS


def test_capacity_follows_from_bytes() -> None:
    assert SHAPE.token_bytes == 2 * 2 * 2 * 8 * 4
    assert SHAPE.tokens_in(1000) == 3
    assert Arena(SHAPE, SHAPE.tokens_in(1000)).capacity == 3


@given(
    sights=st.lists(
        st.sampled_from([Sight(), Sight(window=4), Sight(window=90), Sight(chunk=16)]), min_size=1
    ),
    sequences=st.integers(1, 50),
    nbytes=st.integers(0, 200_000),
)
def test_windows_leave_memory_to_other_layers(sights: list[Sight], sequences: int, nbytes: int) -> None:
    shape = ArenaShape(len(sights), 1, 2, torch.float32, sights=tuple(sights))
    most = 1 << 40
    tokens = shape.tokens_in(nbytes, sequences, most)
    assert shape.nbytes(tokens, sequences) <= nbytes
    assert tokens == most or shape.nbytes(tokens + 1, sequences) > nbytes
    if tokens != most and tokens:
        for overcommit in (0.0, 0.5):
            arena = Arena(shape, tokens, sequences=sequences, overcommit=overcommit)
            stored = sum(space.storage.nbytes for space in arena.spaces)
            assert stored == shape.nbytes(tokens, sequences, overcommit)


def test_a_layer_is_in_the_space_of_its_sight() -> None:
    near, far = Sight(window=4), Sight()
    arena = Arena(ArenaShape(4, 1, 2, torch.float32, sights=(near, far, near, far)), 100, sequences=2)
    assert [arena.space_of(layer) for layer in range(4)] == [0, 1, 0, 1]
    slots = arena.allocate(7, 9)
    assert [len(one) for one in slots] == [4, 9]
    for layer in range(4):
        saved = slots[arena.space_of(layer)]
        arena.write(layer, saved, *torch.full((2, len(saved), 1, 2), layer + 1.0))
    for layer in range(4):
        keys, values = arena.read(layer, 7)
        assert len(keys) == (4, 9)[arena.space_of(layer)]
        assert bool((keys == layer + 1).all())
        assert torch.equal(keys, values)
    arena.fork(7, 8)
    arena.extend(batch(7, 8))
    assert [space.slab.used for space in arena.spaces] == [3 + 2, 11]
    arena.release(batch(7, 8))
    assert arena.used == 0


def test_a_full_arena_says_so_and_changes_nothing() -> None:
    arena = Arena(SHAPE, 4)
    arena.spaces[0].slab.allocate(1, 3)
    with pytest.raises(SlabFullError):
        arena.spaces[0].slab.allocate(2, 2)
    assert arena.used == 3
    arena.check_integrity()


def test_filling_leaves_no_slot_empty() -> None:
    arena = Arena(ArenaShape(2, 2, 64, torch.bfloat16), 5000)
    arena.fill()
    assert bool(arena.spaces[0].storage.isfinite().all())
    assert float(arena.spaces[0].storage.float().std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_an_arena_of_bytes(kv_dtype: KvDtype) -> None:
    """Filled as any other, and what is written to some heads is there, and nowhere else."""
    arena = Arena(ArenaShape(2, 2, 64, torch.bfloat16, kv_dtype=kv_dtype), 500)
    assert arena.shape.layer_bytes == 2 * 2 * (64 if kv_dtype == "fp8" else 64 + 4)
    arena.fill()
    slots = arena.allocate(1, 300)[0]
    for before in arena.read(0, 1):
        assert float(before.float().std()) == pytest.approx(1, abs=0.05)
    keys, values = arena.read(0, 1)
    came = torch.randn(2, 300, 1, 64).to(torch.bfloat16)
    arena.store(0, torch.from_numpy(slots.astype(np.int64)), tuple(came), slice(1, 2))
    for now, before, new in zip(arena.read(0, 1), (keys, values), came, strict=True):
        assert torch.equal(now[:, 0], before[:, 0])
        assert torch.equal(now[:, 1], as_stored(new, kv_dtype)[:, 0])
    arena.check_integrity()


@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="this system does not say how memory is mapped"
)
def test_memory_is_private_in_huge_pages_and_not_copied_by_a_fork() -> None:
    storage = Arena(SHAPE, 4096).spaces[0].storage
    here = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = range(*(int(end, 16) for end in mapping.groups()))
        elif line.startswith("VmFlags:") and here is not None and storage.data_ptr() in here:
            flags = line.split()[1:]
            break
    assert "sh" not in flags
    assert "wf" in flags
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.parametrize(
    ("tokens", "overcommit", "code"),
    [(0, 0.0, "arena-empty"), (4, -1.0, "arena-overcommit"), (2**31 - 1, 0.0, "arena-too-large")],
)
def test_impossible_arenas_are_refused(tokens: int, overcommit: float, code: str) -> None:
    big = ArenaShape(10_000, 1000, 256, torch.float32)
    with pytest.raises(ArenaError, match=code):
        Arena(big, tokens, overcommit=overcommit)


def test_managed_memory_beyond_what_a_gpu_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is not allowed it may hang the GPU: it is an opt-in."""
    monkeypatch.delenv(BEYOND_FREE, raising=False)
    require_room_for_managed(100, 100)
    with pytest.raises(ArenaError, match="arena-managed-beyond-free"):
        require_room_for_managed(101, 100)
    monkeypatch.setenv(BEYOND_FREE, "1")
    require_room_for_managed(101, 100)
