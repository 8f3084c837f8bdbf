"""The slab allocator, walked at random beside a model simple enough to be read as its specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from lamina.kv import Slab, SlabFullError
from lamina.operators import Sight

CAPACITY = 40
# Few, so that they meet often; of every sign and size, because ids are the caller's own.
REQUESTS = st.sampled_from([0, 1, 2, 3, -1, 2**32, 2**63 - 1, -(2**63)])
BATCHES = st.lists(REQUESTS, max_size=6)


def ids(*requests: int) -> NDArray[np.int64]:
    return np.array(requests, dtype=np.int64)


class Model:
    """A list for the stack and a dictionary of lists: slow, and obviously right."""

    def __init__(self, capacity: int, sight: Sight) -> None:
        self.stack = list(reversed(range(capacity)))
        self.lists: dict[int, list[int]] = {}  # of the last tokens
        self.lengths: dict[int, int] = {}
        self.sight = sight
        self.steps = 0

    def misnamed(self, batch: list[int]) -> type[Exception] | None:
        for at, request in enumerate(batch):
            if request not in self.lists:
                return KeyError
            if request in batch[:at]:
                return ValueError
        return None

    def refusal(self, batch: list[int], n: int) -> type[Exception] | None:
        if any(self.sight) and n > 1:
            return ValueError
        if wrong := self.misnamed(batch):
            return wrong
        if len(batch) * n > len(self.stack):
            return SlabFullError
        return ValueError if any(self.lacks(request, n) for request in batch) else None

    def observed(self, request: int, n: int) -> int:
        """How many of its tokens are, once it has n more."""
        tokens = self.lengths.get(request, 0) + n
        return tokens - self.sight.first(tokens)

    def lacks(self, request: int, n: int) -> bool:
        """Whether it began as a fork that shares too little of what is seen then."""
        return len(self.lists.get(request, [])) + n < self.observed(request, n)

    def trim(self, request: int, n: int) -> None:
        """Before it gets n more tokens."""
        here = self.lists.setdefault(request, [])
        saved = self.observed(request, n) - min(n, self.observed(request, n))
        lost = here[: max(len(here) - saved, 0)]
        del here[: len(lost)]
        self.free(lost)

    def turn(self, batch: int) -> None:
        """The next slots of a step, one place further for even batches, so that none gets every 2^k-th."""
        if batch and batch % 2 == 0:
            following = self.stack[-batch:][::-1]
            by, self.steps = self.steps % batch, self.steps + 1
            self.stack[-batch:] = (following[by:] + following[:by])[::-1]

    def append(self, request: int, n: int) -> list[int]:
        self.trim(request, n)
        slots = [self.stack.pop() for _ in range(min(n, self.observed(request, n)))]
        self.lists[request] += slots
        self.lengths[request] = self.lengths.get(request, 0) + n
        return slots

    def fork(self, parent: int, child: int, n: int | None) -> None:
        tokens = self.lengths[parent] if n is None else n
        lost = self.lengths[parent] - len(self.lists[parent])
        self.lists[child], self.lengths[child] = self.lists[parent][: max(tokens - lost, 0)], tokens

    def release(self, request: int) -> None:
        del self.lengths[request]
        self.free(self.lists.pop(request))

    def free(self, slots: list[int]) -> None:
        for slot in reversed(slots):
            if self.refcount(slot) == 0:
                self.stack.append(slot)

    def refcount(self, slot: int) -> int:
        return sum(slot in slots for slots in self.lists.values())


class SlabAgainstModel(RuleBasedStateMachine):
    sight = Sight()

    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(CAPACITY, *self.sight)
        self.model = Model(CAPACITY, self.sight)
        self.views: list[tuple[NDArray[np.int32], list[int]]] = []

    @rule(request=REQUESTS, n=st.integers(0, CAPACITY))
    def allocate(self, request: int, n: int) -> None:
        if self.model.lacks(request, n):
            with pytest.raises(ValueError, match="shares too little"):
                self.slab.allocate(request, n)
        elif min(n, self.model.observed(request, n)) > len(self.model.stack):
            with pytest.raises(SlabFullError):
                self.slab.allocate(request, n)
        else:
            assert self.slab.allocate(request, n).tolist() == self.model.append(request, n)

    @rule(batch=BATCHES, n=st.integers(0, 3))
    def extend(self, batch: list[int], n: int) -> None:
        if refusal := self.model.refusal(batch, n):
            with pytest.raises(refusal):
                self.slab.extend(ids(*batch), n)
        else:
            for request in batch:
                self.model.trim(request, n)
            if n == 1:
                self.model.turn(len(batch))
            expected = [slot for request in batch for slot in self.model.append(request, n)]
            assert self.slab.extend(ids(*batch), n).tolist() == expected

    @rule(n=st.integers(1, 3))
    def extend_all(self, n: int) -> None:
        self.extend(self.slab.requests().tolist(), n)

    @rule(parent=REQUESTS, child=REQUESTS, n=st.none() | st.integers(0, 20))
    def fork(self, parent: int, child: int, n: int | None) -> None:
        lists = self.model.lists
        if parent not in lists:
            with pytest.raises(KeyError):
                self.slab.fork(parent, child, n)
        elif child in lists or (n or 0) > self.model.lengths[parent]:
            with pytest.raises(ValueError):  # noqa: PT011
                self.slab.fork(parent, child, n)
        else:
            self.slab.fork(parent, child, n)
            self.model.fork(parent, child, n)

    @rule(request=REQUESTS)
    def release(self, request: int) -> None:
        if request in self.model.lists:
            self.slab.release(request)
            self.model.release(request)
        else:
            with pytest.raises(KeyError):
                self.slab.release(request)

    @rule(batch=BATCHES)
    def release_batch(self, batch: list[int]) -> None:
        if refusal := self.model.misnamed(batch):
            with pytest.raises(refusal):
                self.slab.release(ids(*batch))
        else:
            self.slab.release(ids(*batch))
            for request in batch:
                self.model.release(request)

    @rule(request=REQUESTS)
    def take_view(self, request: int) -> None:
        if request in self.model.lists:
            self.views.append((self.slab.indices(request), list(self.model.lists[request])))

    @invariant()
    def same_as_model(self) -> None:
        self.slab.check_integrity()
        assert self.slab.free == len(self.model.stack)
        assert self.slab.used + self.slab.free == self.slab.capacity == CAPACITY
        assert sorted(self.slab.requests().tolist()) == sorted(self.model.lists)
        assert len(self.slab) == len(self.model.lists)
        for request, slots in self.model.lists.items():
            assert request in self.slab
            assert self.slab.length(request) == self.model.lengths[request]
            assert self.slab.indices(request).tolist() == slots
        offsets, listed = self.slab.lists(np.array(list(self.model.lists), np.int64))
        lists = list(self.model.lists.values())
        assert np.diff(offsets).tolist() == [len(slots) for slots in lists]
        assert listed.tolist() == [slot for slots in lists for slot in slots]
        for slot in range(CAPACITY):
            assert self.slab.refcount(slot) == self.model.refcount(slot)
        for view, then in self.views:
            assert view.tolist() == then


class Windowed(SlabAgainstModel):
    sight = Sight(window=5)


class Chunked(SlabAgainstModel):
    sight = Sight(chunk=4)


for machine, examples in {SlabAgainstModel: 60, Windowed: 40, Chunked: 40}.items():
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
TestSlabAgainstModel, TestWindowed, TestChunked = (
    each.TestCase for each in (SlabAgainstModel, Windowed, Chunked)
)
