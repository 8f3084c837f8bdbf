"""The slab allocator, walked at random beside a model simple enough to be read as its specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from lamina.kv import Slab, SlabFullError

CAPACITY = 40
# Few, so that they meet often; of every sign and size, because ids are the caller's own.
REQUESTS = st.sampled_from([0, 1, 2, 3, -1, 2**32, 2**63 - 1, -(2**63)])
BATCHES = st.lists(REQUESTS, max_size=6)


def ids(*requests: int) -> NDArray[np.int64]:
    return np.array(requests, dtype=np.int64)


class Model:
    """A list for the stack and a dictionary of lists: slow, and obviously right."""

    def __init__(self, capacity: int) -> None:
        self.stack = list(reversed(range(capacity)))
        self.lists: dict[int, list[int]] = {}

    def refusal(self, batch: list[int], n: int = 0) -> type[Exception] | None:
        for at, request in enumerate(batch):
            if request not in self.lists:
                return KeyError
            if request in batch[:at]:
                return ValueError
        return SlabFullError if len(batch) * n > len(self.stack) else None

    def append(self, request: int, n: int) -> list[int]:
        slots = [self.stack.pop() for _ in range(n)]
        self.lists.setdefault(request, []).extend(slots)
        return slots

    def release(self, request: int) -> None:
        for slot in reversed(self.lists.pop(request)):
            if self.refcount(slot) == 0:
                self.stack.append(slot)

    def refcount(self, slot: int) -> int:
        return sum(slot in slots for slots in self.lists.values())


class SlabBesideModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slab = Slab(CAPACITY)
        self.model = Model(CAPACITY)
        self.views: list[tuple[NDArray[np.int32], list[int]]] = []

    @rule(request=REQUESTS, n=st.integers(0, CAPACITY))
    def allocate(self, request: int, n: int) -> None:
        if n > len(self.model.stack):
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
        elif child in lists or (n or 0) > len(lists[parent]):
            with pytest.raises(ValueError):  # noqa: PT011
                self.slab.fork(parent, child, n)
        else:
            self.slab.fork(parent, child, n)
            lists[child] = lists[parent][:n]

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
        if refusal := self.model.refusal(batch):
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
            assert self.slab.length(request) == len(slots)
            assert self.slab.indices(request).tolist() == slots
        for slot in range(CAPACITY):
            assert self.slab.refcount(slot) == self.model.refcount(slot)
        for view, then in self.views:
            assert view.tolist() == then


TestSlabBesideModel = SlabBesideModel.TestCase
TestSlabBesideModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
