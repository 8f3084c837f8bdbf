"""Kernels of a board against the plain Python model, over random boards, models and moments."""

from __future__ import annotations

import h2m2_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench import _sim

SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.floats(0, 1)


@settings(deadline=None, max_examples=150)
@given(
    seed=SEEDS,
    shares=st.tuples(SHARES, SHARES, SHARES),
    translated=st.booleans(),
    whole_layers=st.booleans(),
)
def test_an_iteration_on_two_sides(
    seed: int, shares: tuple[float, ...], translated: bool, whole_layers: bool
) -> None:
    board, shape, moment = h2m2_reference.random_case(seed)
    most = [shape["layers"]] * 3 if whole_layers else h2m2_reference.counts(shape)
    mapping = tuple(round(share * n) for share, n in zip(shares, most, strict=True))
    whole = (*mapping, whole_layers)
    result = _sim.h2m2_time_of(board=board, shape=shape, mapping=whole, moment=moment, translated=translated)
    assert result.pop("mapping") == whole
    if whole_layers:
        expected = h2m2_reference.layers_plan(board, shape, moment, mapping, translated)
        assert result["iteration_ns"] == pytest.approx(expected, rel=1e-9)
    else:
        expected = h2m2_reference.split_plan(board, shape, moment, mapping, translated)
        assert result == pytest.approx(expected, rel=1e-9)


@settings(max_examples=30)
@given(seed=SEEDS)
def test_bytes_of_a_head(seed: int) -> None:
    _, shape, moment = h2m2_reference.random_case(seed)
    result = _sim.h2m2_footprint(shape=shape, kv_tokens=moment[1])
    assert result == pytest.approx(h2m2_reference.units(shape, moment[1]), rel=1e-12)


@pytest.mark.parametrize(
    "mapping", [(-1, 0, 0, False), (0, 99, 0, False), (0, 0, 99, False), (99, 0, 0, True)]
)
def test_a_mapping_of_more_than_there_is_is_refused(mapping: tuple[int, int, int, bool]) -> None:
    board, shape, moment = h2m2_reference.random_case(0)
    with pytest.raises(ValueError, match="more heads, KV groups or layers"):
        _sim.h2m2_time_of(board=board, shape=shape, mapping=mapping, moment=moment, translated=False)


def one_gemm(**changed: object) -> float:
    """The time of a projection of 256 x 256 on one core at full speed, memory being no limit."""
    board, shape, _ = h2m2_reference.random_case(0)
    fast = {"capacity_bytes": 1e9, "bytes_per_ns": 1e9, "latency_ns": 0.0, "chips": 1}
    board |= {"hbm": fast, "lpddr": fast, "cores": 1, "cycle_ns": 1.0, "mm_size": 128, "spm_bytes": 1e9}
    board |= {"weight_load": "before", "page_bytes": 4096.0, "tlb_entries": 1, "tlb_miss_ns": 100.0}
    board |= {"tlb_misses_at_once": 1, **changed}
    shape |= {"hidden": 256, "heads": 2, "kv_heads": 1, "head_dim": 64, "vocab": 0, "element_bytes": 1}
    result = _sim.h2m2_time_of(
        board=board, shape=shape, mapping=(2, 1, 2, False), moment=(32, 0, 0), translated=True
    )
    return float(result["qkv_ns"])


def test_a_gemm_by_hand() -> None:
    # 256 x (2 + 2) * 64: four tiles of 128 cycles to load and 32 for the rows, filling and draining of
    # 3 x 128, 16 pages of 4096 bytes missed.
    assert one_gemm() == pytest.approx(4 * (128 + 32) + 3 * 128 + 16 * 100)
    assert one_gemm(weight_load="behind") == pytest.approx(4 * 128 + 3 * 128 + 16 * 100)
    # Half of a scratchpad that holds 16 of the 32 rows: weights come twice.
    assert one_gemm(spm_bytes=16 * 256.0) == pytest.approx(4 * (2 * 128 + 32) + 3 * 128 + 16 * 100)


def test_what_the_tlb_reaches_is_not_missed() -> None:
    assert one_gemm(tlb_entries=10**6) == pytest.approx(4 * (128 + 32) + 3 * 128)
