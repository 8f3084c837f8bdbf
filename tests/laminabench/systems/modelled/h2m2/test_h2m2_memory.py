"""A board's paged memory: what it promises, and a random walk beside what the mapping says of every byte."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from h2m2_reference import few_pages
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from laminabench import _sim
from laminabench._sim import H2m2Memory, H2m2NoRoomError

PAGE = 64
SIDES = ("hbm", "lpddr")
Mapping = tuple[int, int, int, bool]
Tables = dict[str, set[int]]


def a_board(hbm_pages: float, lpddr_pages: float) -> dict[str, Any]:
    return few_pages(hbm_pages, lpddr_pages, PAGE) | {"mv_rows": 4}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([1, 2, 3, 4]))
    return {
        "layers": draw(st.integers(1, 3)),
        "hidden": draw(st.integers(1, 12)),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        "head_dim": draw(st.integers(1, 9)),
        "intermediate": draw(st.integers(1, 30)),
        "ff_matrices": draw(st.sampled_from([2, 3])),
        "vocab": draw(st.sampled_from([0, 1, 37])),
        "element_bytes": draw(st.sampled_from([1, 2])),
    }


@st.composite
def tight_boards(draw: st.DrawFn, shape: dict[str, Any]) -> dict[str, Any]:
    """With little more memory than the weights and a few columns need, split anyhow."""
    spacious = a_board(10**5, 10**5)
    reserved = _sim.h2m2_reserve(spacious, shape)
    weights = sum(pages for _, pages, _ in Space(shape, 0).weights())
    column = shape["layers"] * shape["kv_heads"]
    to_share = weights + draw(st.integers(1, 6)) * column + draw(st.integers(2, 4))
    of_hbm = draw(st.integers(0, to_share))
    return a_board(reserved[0] + of_hbm + 1, reserved[1] + to_share - of_hbm + 1)


class Space:
    """Logical space by the book: which bytes each side computes on, and so which pages it has."""

    def __init__(self, shape: dict[str, Any], columns: int) -> None:
        self.shape, self.columns = shape, columns
        self.heads, self.layers, self.kv_heads = shape["heads"], shape["layers"], shape["kv_heads"]
        row = shape["hidden"] * shape["element_bytes"]
        query, kv = self.heads * shape["head_dim"], self.kv_heads * shape["head_dim"]
        self.qkv_bytes = row * (query + 2 * kv)
        self.fc_bytes = row * (query + shape["ff_matrices"] * shape["intermediate"])
        self.lm_head_bytes = row * shape["vocab"]

    def weights(self) -> list[tuple[int, int, str]]:
        """Bytes, pages and name of each region, in the order of logical space."""
        layer = [(self.qkv_bytes, "qkv"), (self.fc_bytes, "fc")]
        regions = layer * self.layers + [(self.lm_head_bytes, "lm_head")]
        return [(size, -(-size // PAGE), name) for size, name in regions]

    def part(self, name: str, layer: int, mapping: Mapping) -> tuple[int, int]:
        qkv, _, fc, whole_layers = mapping
        n = qkv if name == "qkv" else fc
        if not whole_layers:
            return n, self.heads
        return (n, self.layers) if name == "lm_head" else (int(layer < n), 1)

    def tables(self, mapping: Mapping, live_columns: set[int]) -> Tables:
        tables: Tables = {side: set() for side in SIDES}
        page = 0
        for at, (size, pages, name) in enumerate(self.weights()):
            n, parts = self.part(name, at // 2, mapping)
            boundary = size * n // parts
            for i in range(pages):
                first, end = i * PAGE, min((i + 1) * PAGE, size)
                if first < boundary:
                    tables["hbm"].add(page + i)
                if boundary < end:
                    tables["lpddr"].add(page + i)
            page += pages
        for layer, head in product(range(self.layers), range(self.kv_heads)):
            in_hbm = layer < mapping[1] if mapping[3] else head < mapping[1]
            for column in live_columns:
                tables["hbm" if in_hbm else "lpddr"].add(page + column)
            page += self.columns
        return tables

    def mappings(self) -> list[Mapping]:
        by_head = product(range(self.heads + 1), range(self.kv_heads + 1), range(self.heads + 1), [False])
        layers = range(self.layers + 1)
        whole = product(layers, layers, layers, [True])
        return [*by_head, *whole]

    def fits(self, mapping: Mapping, room: dict[str, float]) -> bool:
        """As a policy looks at it: so many heads of one size."""
        *chosen, whole_layers = mapping
        counts = (self.heads, self.kv_heads, self.heads)
        scale = [count / self.layers if whole_layers else 1 for count in counts]
        most = [self.layers] * 3 if whole_layers else counts
        units = [room[name] * by for name, by in zip(("qkv", "attention", "fc"), scale, strict=True)]
        in_hbm = sum(n * unit for n, unit in zip(chosen, units, strict=True))
        in_lpddr = sum((all_ - n) * unit for all_, n, unit in zip(most, chosen, units, strict=True))
        return in_hbm <= room["hbm_bytes"] and in_lpddr <= room["lpddr_bytes"]


class MemoryAgainstSpace(RuleBasedStateMachine):
    @initialize(data=st.data(), shape=shapes())
    def begin(self, data: st.DataObject, shape: dict[str, Any]) -> None:
        native = data.draw(tight_boards(shape))
        columns = H2m2Memory.most_columns(native, shape)
        assume(columns > 0)
        self.memory = H2m2Memory(native, shape, columns)
        self.space = Space(shape, columns)
        self.capacity = columns * H2m2Memory.slots_of_column(native, shape)
        self.slots = _sim.H2m2TokenSlots(columns, H2m2Memory.slots_of_column(native, shape), 4)
        self.tables: Tables = {side: set() for side in SIDES}
        self.frames = {side: self.memory.free(side) for side in SIDES}
        self.apply(data)

    def live_columns(self) -> set[int]:
        return {column for column, live in enumerate(self.slots.live()) if live}

    @rule(request=st.integers(0, 3), share=st.floats(0, 1))
    def join(self, request: int, share: float) -> None:
        if request not in self.slots.requests():
            tokens = int(share * (self.capacity - self.slots.tokens))
            self.memory.join(request, tokens)
            self.slots.join(request, tokens)

    @rule(times=st.integers(1, 3))
    def grow(self, times: int) -> None:
        for _ in range(times):
            if self.slots.tokens + len(self.slots.requests()) <= self.capacity:
                self.memory.grow()
                self.slots.grow()

    @rule(request=st.integers(0, 3))
    def leave(self, request: int) -> None:
        if request in self.slots.requests():
            self.memory.leave(request)
            self.slots.leave(request)

    @rule()
    def compact(self) -> None:
        assert self.memory.compact() == self.slots.compact()

    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        room = self.memory.room()
        possible = [mapping for mapping in self.space.mappings() if self.space.fits(mapping, room)]
        # Whatever is here, both kinds of policies have a mapping.
        assert {whole_layers for *_, whole_layers in possible} == {False, True}
        mapping = data.draw(st.sampled_from(possible))
        traffic = self.memory.apply(*mapping)
        now = self.space.tables(mapping, self.live_columns())
        assert traffic == traffic_between(self.tables, now)
        self.tables = now
        self.compare_waste()
        # What is kept for activations, a page a layer, and the frame through which pages change sides.
        assert self.memory.free("hbm") >= self.space.layers
        assert self.memory.free("lpddr") >= self.space.layers + 1

    @rule(data=st.data())
    def apply_what_does_not_fit(self, data: st.DataObject) -> None:
        mapping = data.draw(st.sampled_from(self.space.mappings()))
        expected = self.space.tables(mapping, self.live_columns())
        free = {side: self.frames[side] - len(expected[side]) for side in SIDES}
        if min(free.values()) < 0 or sum(free.values()) == 0:
            with pytest.raises(H2m2NoRoomError, match="the mapping needs"):
                self.memory.apply(*mapping)

    @rule(data=st.data())
    def leave_and_free_everything(self, data: st.DataObject) -> None:
        for request in self.slots.requests().tolist():
            self.leave(request)
        self.apply(data)
        assert self.memory.columns == 0
        assert self.memory.occupancy()["hbm_kv"] == 0

    def compare_waste(self) -> None:
        shape = self.space.shape
        used = sum(len(pages) for pages in self.tables.values()) * PAGE
        weights = sum(size for size, _, _ in self.space.weights())
        token = shape["layers"] * shape["kv_heads"] * 2 * shape["head_dim"] * shape["element_bytes"]
        assert self.memory.occupancy()["wasted_bytes"] == used - weights - self.slots.tokens * token

    @invariant()
    def same_as_space(self) -> None:
        self.memory.check_integrity()
        for side in SIDES:
            table = self.memory.table(side)
            assert set(np.flatnonzero(table >= 0).tolist()) == self.tables[side]
            assert self.memory.free(side) == self.frames[side] - len(self.tables[side])
        assert self.memory.tokens == self.slots.tokens
        assert self.memory.rows == self.slots.rows
        assert self.memory.columns == self.slots.columns_in_use
        occupancy = self.memory.occupancy()
        assert occupancy["lpddr"] == len(self.tables["lpddr"])
        assert sum(occupancy[part] for part in ("hbm_qkv", "hbm_kv", "hbm_fc")) == len(self.tables["hbm"])


def traffic_between(before: Tables, after: Tables) -> dict[str, int]:
    """What changing one pair of tables into the other takes, by page."""
    known = before["hbm"] | before["lpddr"]
    came = {side: (after[side] - before[side]) & known for side in SIDES}
    lost = (before["hbm"] - after["hbm"] - came["lpddr"], before["lpddr"] - after["lpddr"] - came["hbm"])
    return {
        "allocated": sum(len(after[side] - known) for side in SIDES),
        "freed": sum(map(len, lost)),
        "to_hbm": len(came["hbm"]),
        "to_lpddr": len(came["lpddr"]),
    }


TestMemoryAgainstSpace = MemoryAgainstSpace.TestCase
TestMemoryAgainstSpace.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), shape=shapes())
def test_each_number_of_columns_up_to_the_most_has_mappings_and_the_next_has_none(
    data: st.DataObject, shape: dict[str, Any]
) -> None:
    native = data.draw(tight_boards(shape))
    most = H2m2Memory.most_columns(native, shape)
    space = Space(shape, most)

    def kinds_that_fit(columns: int, spare: float) -> set[bool]:
        room = room_of(native, shape, columns)
        room |= {side: room[side] - spare for side in ("hbm_bytes", "lpddr_bytes")}
        return {mapping[3] for mapping in space.mappings() if space.fits(mapping, room)}

    for columns in range(1, most + 1):
        assert kinds_that_fit(columns, 0) == {False, True}
    # A page is spared; half a byte more, because sums that come to exactly that may be rounded either way.
    assert kinds_that_fit(most + 1, PAGE + 0.5) != {False, True}


def room_of(native: dict[str, Any], shape: dict[str, Any], columns: int) -> dict[str, float]:
    """What memory says there is room for, had it so many columns in use."""
    column = shape["layers"] * shape["kv_heads"]
    ample = {side: native[side] | {"capacity_bytes": 10**5 * PAGE} for side in SIDES}
    memory = H2m2Memory(native | ample, shape, 1)
    memory.join(0, 1)
    room = memory.room()
    assert room["attention"] * shape["kv_heads"] == column * PAGE
    room["attention"] *= columns
    for side in SIDES:
        room[f"{side}_bytes"] -= 10**5 * PAGE - native[side]["capacity_bytes"]
    return room
