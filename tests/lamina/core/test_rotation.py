"""Which replica runs which slice: what simulator and engine share, as Python has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina._native import Rotation

BATCHES, TICKS = st.integers(1, 9), st.integers(0, 2**40)


@given(st.integers(2, 9), TICKS)
def test_rotational_batches_go_round_one_replica_fewer(batches: int, tick: int) -> None:
    rotation = Rotation("rotational", batches)
    assert rotation.replicas == batches - 1
    assert [rotation.replica(batch, tick) for batch in range(batches)] == [
        (batch + tick) % (batches - 1) for batch in range(batches)
    ]
    assert rotation.migrates == (batches > 2), "two batches have one replica, and nowhere to go"


@given(BATCHES, TICKS)
def test_fixed_batches_have_a_replica_each(batches: int, tick: int) -> None:
    rotation = Rotation("fixed", batches)
    assert rotation.replicas == batches
    assert [rotation.replica(batch, tick) for batch in range(batches)] == list(range(batches))
    assert not rotation.migrates


@given(BATCHES, TICKS)
def test_batches_in_ping_pong_share_a_replica(batches: int, tick: int) -> None:
    rotation = Rotation("pingpong", batches)
    assert rotation.replicas == 1
    assert {rotation.replica(batch, tick) for batch in range(batches)} == {0}
    assert not rotation.migrates


@given(TICKS)
def test_one_batch_has_one_replica_however_it_is_called(tick: int) -> None:
    for pipelining in ("serial", "rotational", "fixed", "pingpong"):
        rotation = Rotation(pipelining, 1)
        assert (rotation.replicas, rotation.replica(0, tick), rotation.migrates) == (1, 0, False)


def test_invalid_rotations_are_refused() -> None:
    with pytest.raises(ValueError, match="'serial', 'rotational', 'fixed' or 'pingpong', not 'diagonal'"):
        Rotation("diagonal", 2)
    for pipelining, batches in (("serial", 2), ("rotational", 0), ("fixed", -1)):
        with pytest.raises(ValueError, match="serial has one batch, the others one or more"):
            Rotation(pipelining, batches)
