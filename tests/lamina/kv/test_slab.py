"""What the slab allocator promises, one promise a test. test_slab_model.py compares it with a model."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lamina.kv import Slab, SlabFullError


def ids(*requests: int) -> NDArray[np.int64]:
    return np.array(requests, dtype=np.int64)


def test_new_slots_are_the_callers_own_array() -> None:
    slab = Slab(8)
    slab.allocate(1, 2)
    new = slab.extend(ids(1))
    assert new.dtype == np.int32
    new[:] = 99
    slab.check_integrity()
    assert slab.indices(1).tolist() == [0, 1, 2]


def test_a_full_slab_reports_sizes_and_changes_nothing() -> None:
    slab = Slab(10)
    slab.allocate(1, 4)
    slab.allocate(2, 4)
    with pytest.raises(SlabFullError, match=r"^3 slots were requested, but only 2 of 10 are free$"):
        slab.allocate(3, 3)
    assert 3 not in slab
    with pytest.raises(SlabFullError, match="4 slots were requested"):
        slab.extend(ids(1, 2), 2)
    assert slab.length(1) == slab.length(2) == 4
    assert slab.extend(ids(1, 2)).tolist() == [8, 9]
    assert slab.free == 0


def test_a_wrong_batch_is_reported_before_a_full_slab() -> None:
    slab = Slab(1)
    slab.allocate(1, 1)
    with pytest.raises(KeyError, match="request 9 is not in this slab"):
        slab.extend(ids(1, 9))
    with pytest.raises(ValueError, match="request 1 appears more than once"):
        slab.extend(ids(1, 1))


def test_views_are_read_only_and_share_the_slabs_memory() -> None:
    slab = Slab(64)
    slab.allocate(1, 3)
    first, second = slab.indices(1), slab.indices(1)
    assert first.dtype == np.int32
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        first.flags.writeable = True


def test_views_outlive_growth_release_reuse_and_the_slab_itself() -> None:
    slab = Slab(4096)
    slab.allocate(1, 10)
    before = slab.indices(1)
    slab.extend(ids(1))  # within the same buffer
    slab.extend(ids(1), 1000)  # into a larger one
    grown = slab.indices(1)
    slab.release(1)
    slab.allocate(2, 16)  # would write over the two buffers, were they recycled
    slab.allocate(3, 1024)
    assert before.tolist() == list(range(10))
    assert grown.tolist() == list(range(1011))
    del slab
    gc.collect()
    assert before.tolist() == list(range(10))
    assert grown.tolist() == list(range(1011))


def test_unknown_requests_are_key_errors() -> None:
    slab = Slab(4)
    for call in (slab.release, slab.length, slab.indices):
        with pytest.raises(KeyError, match="request 7 is not in this slab"):
            call(7)
    with pytest.raises(KeyError, match="request 7"):
        slab.fork(7, 8)
    with pytest.raises(KeyError, match="request 7"):
        slab.lists(np.array([7]))
    assert 7 not in slab


@pytest.mark.parametrize("capacity", [0, -1, 2**31])
def test_impossible_capacities_are_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"^capacity is {capacity} but must be between 1 and 2147483647$"):
        Slab(capacity)


def test_impossible_counts_are_refused() -> None:
    slab = Slab(4)
    slab.allocate(1, 2)
    for n in (-1, 2**31, 2**63 - 1):
        with pytest.raises(ValueError, match=f"n is {n} but must be between 0 and 2147483647"):
            slab.allocate(1, n)
        with pytest.raises(ValueError, match=f"n is {n} but must be"):
            slab.extend(ids(1), n)
    for n in (-1, 3):
        with pytest.raises(ValueError, match=f"n is {n} but request 1 has 2 tokens to share"):
            slab.fork(1, 2, n)
    with pytest.raises(ValueError, match="request 1 is already in this slab"):
        slab.fork(1, 1)
    for slot in (-1, 4):
        with pytest.raises(IndexError, match=f"slot {slot} is outside this slab of 4"):
            slab.refcount(slot)
    assert slab.used == 2


@pytest.mark.parametrize(
    "batch",
    [[1], np.array([1.0]), np.array([1], dtype=np.int32), np.array([[1]]), np.array([1, 1, 2])[::2]],
    ids=["list", "float", "int32", "2d", "strided"],
)
def test_batches_are_never_converted_behind_the_callers_back(batch: Any) -> None:
    slab = Slab(8)
    slab.allocate(1, 1)
    slab.allocate(2, 1)
    for call in (slab.extend, slab.release, slab.lists):
        with pytest.raises(TypeError, match="dtype=int64"):
            call(batch)
    assert slab.used == len(slab) == 2


def test_repr_says_how_full() -> None:
    slab = Slab(8)
    slab.allocate(1, 3)
    assert repr(slab) == "Slab(capacity=8, used=3, requests=1)"


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 63, 64])
def test_slots_of_a_request_are_at_odd_distances(batch: int) -> None:
    slab, requests = Slab(batch * 40), np.arange(batch)
    for request in requests.tolist():
        slab.allocate(request, 0)
    for step in range(40):
        next_ones = list(range(step * batch, (step + 1) * batch))
        assert sorted(slab.extend(requests).tolist()) == next_ones
    for request in requests.tolist():
        assert (np.diff(slab.indices(request)) % 2 == 1).all()
