"""The token slots of a board's KV columns, walked at random beside a set of free numbers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from laminabench._sim import H2m2NoRoomError, H2m2TokenSlots

REQUESTS = st.integers(0, 5)  # few, so that they meet often


class SlotsAgainstModel(RuleBasedStateMachine):
    # Sizes around the 64 slots that the allocator looks at together.
    @initialize(columns=st.integers(1, 5), of_column=st.sampled_from([1, 7, 64, 65]), row=st.integers(1, 5))
    def begin(self, columns: int, of_column: int, row: int) -> None:
        self.slots = H2m2TokenSlots(columns, of_column, row)
        self.columns, self.of_column, self.row = columns, of_column, row
        self.free = set(range(columns * of_column))
        self.stored: list[tuple[int, list[int]]] = []

    def lowest(self) -> int:
        slot = min(self.free)
        self.free.remove(slot)
        return slot

    @rule(request=REQUESTS, tokens=st.integers(-1, 150))
    def join(self, request: int, tokens: int) -> None:
        if request in dict(self.stored) or tokens < 0:
            with pytest.raises(ValueError, match=r"is here already|fewer than no tokens"):
                self.slots.join(request, tokens)
        elif tokens > len(self.free):
            with pytest.raises(H2m2NoRoomError, match=f"^{tokens} token slots were requested"):
                self.slots.join(request, tokens)
        else:
            self.slots.join(request, tokens)
            self.stored.append((request, [self.lowest() for _ in range(tokens)]))

    @rule(times=st.integers(1, 20))
    def grow(self, times: int) -> None:
        for _ in range(times):
            if len(self.stored) > len(self.free):
                with pytest.raises(H2m2NoRoomError):
                    self.slots.grow()
                return
            self.slots.grow()
            for _, slots in self.stored:
                slots.append(self.lowest())

    @rule(request=REQUESTS)
    def leave(self, request: int) -> None:
        if request not in dict(self.stored):
            with pytest.raises(IndexError, match=f"request {request} is not here"):
                self.slots.leave(request)
            return
        self.slots.leave(request)
        at = [each for each, _ in self.stored].index(request)
        self.free.update(self.stored[at][1])
        last = self.stored.pop()
        if at < len(self.stored):
            self.stored[at] = last

    @rule()
    def compact(self) -> None:
        columns = {slot // self.of_column for _, slots in self.stored for slot in slots}
        enough = -(-sum(len(slots) for _, slots in self.stored) // self.of_column)
        copied = 0
        for _, slots in self.stored:
            for i, slot in enumerate(slots):
                if len(columns) > enough and slot >= enough * self.of_column:
                    self.free.add(slot)
                    slots[i] = self.lowest()
                    copied += 1
        assert self.slots.compact() == copied
        assert self.slots.columns_in_use == enough

    @invariant()
    def same_as_model(self) -> None:
        self.slots.check_integrity()
        assert self.slots.requests().tolist() == [request for request, _ in self.stored]
        for request, slots in self.stored:
            assert self.slots.slots(request).tolist() == slots
        columns = [slot // self.of_column for _, slots in self.stored for slot in slots]
        assert self.slots.live().tolist() == [columns.count(column) for column in range(self.columns)]
        assert self.slots.columns_in_use == len(set(columns))
        assert self.slots.tokens == len(columns)
        assert self.slots.free == len(self.free)
        assert self.slots.rows == sum(-(-len(slots) // self.row) for _, slots in self.stored)


TestSlotsAgainstModel = SlotsAgainstModel.TestCase
TestSlotsAgainstModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_more_slots_than_can_be_numbered_are_refused() -> None:
    with pytest.raises(ValueError, match="more than can be numbered"):
        H2m2TokenSlots(2**20, 2**20, 1)
    with pytest.raises(ValueError, match="a row has at least one token"):
        H2m2TokenSlots(1, 1, 0)
