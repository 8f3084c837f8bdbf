"""What the native attention worker promises, with numpy alone: this file also runs under the sanitizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pairwise import pairwise

from lamina._native import Slab
from lamina.attention import AttentionWorker, attention_isas, combine

HEADS, KV_HEADS, DIM = 4, 2, 16
SCALE = DIM**-0.5


def numbers(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


class Bench:
    """A worker over one float32 layer of `slots` slots, keys and values of a token side by side."""

    def __init__(self, slots: int = 64, threads: int = 2, window: int = 0, isa: str = "") -> None:
        self.arena = numbers(0, slots, 2, KV_HEADS, DIM)
        self.worker = AttentionWorker("float32", HEADS, KV_HEADS, DIM, threads, isa)
        self.layer = self.add_layer(window=window)

    def add_layer(self, *, window: int = 0, softcap: float = 0.0) -> int:
        base, stride = address(self.arena), 2 * KV_HEADS * DIM
        values = base + KV_HEADS * DIM * 4
        return self.worker.add_layer(base, values, len(self.arena), stride, DIM, SCALE, window, softcap)

    def plan(self, *lists: list[int]) -> None:
        offsets = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
        self.worker.plan_lists(offsets, np.array([slot for one in lists for slot in one], dtype=np.int32))

    def partial(self, q: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        out, lse = np.empty_like(q), np.empty(q.shape[:2], np.float32)
        self.worker.partial(self.layer, address(q), address(out), address(lse))
        return out, lse


def attended(
    q: NDArray[np.float32], k: NDArray[Any], v: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One request's attention as the formula says, in double precision."""
    k, v = (np.repeat(x.astype(np.float64), HEADS // KV_HEADS, axis=1) for x in (k, v))
    weights = np.exp(np.einsum("hd,thd->ht", q.astype(np.float64), k) * SCALE)
    total = weights.sum(axis=1)
    return np.einsum("ht,thd->hd", weights, v) / total[:, None], np.log(total)


@pytest.mark.parametrize("isa", attention_isas())
def test_partials_are_the_formula(isa: str) -> None:
    bench = Bench(isa=isa)
    assert bench.worker.isa == isa
    q = numbers(1, 2, HEADS, DIM)
    lists = [[3, 1, 4, 15, 9, 2, 6], [5, 35, 8, 9, 7]]
    bench.plan(*lists)
    out, lse = bench.partial(q)
    for i, slots in enumerate(lists):
        expected, wanted_lse = attended(q[i], bench.arena[slots, 0], bench.arena[slots, 1])
        np.testing.assert_allclose(out[i], expected, atol=2e-6)
        np.testing.assert_allclose(lse[i], wanted_lse, atol=2e-6)


@pytest.mark.parametrize("isa", attention_isas())
@pytest.mark.parametrize("heads", [1, 5, 16])
def test_values_may_be_part_of_their_keys(isa: str, heads: int) -> None:
    """One KV head whose values are its keys' first numbers: stored once, read from there."""
    width, latent, slots = 40, 24, 150
    arena, q, new = numbers(0, slots, width), numbers(1, 1, heads, width), numbers(2, 1, width)
    worker = AttentionWorker("float32", heads, 1, width, 2, isa, latent)
    layer = worker.add_layer(address(arena), address(arena), slots, width, width, SCALE, 0, 0.0)
    observed = list(range(3, slots))
    worker.plan_lists(np.array([0, len(observed)]), np.array(observed, np.int32))
    out = np.empty((1, heads, latent), np.float32)
    worker.run(layer, *map(address, (q, new, new, out)))
    assert (arena[observed[-1]] == new[0]).all()
    keys = arena[observed].astype(np.float64)
    weights = np.exp(q[0].astype(np.float64) @ keys.T * SCALE)
    expected = weights @ keys[:, :latent] / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out[0], expected, atol=2e-6)
    whole, lse = np.empty((1, heads, latent), np.float32), np.empty((1, heads), np.float32)
    worker.partial(layer, *map(address, (q, whole, lse)))
    np.testing.assert_allclose(whole[0], expected, atol=2e-6)
    np.testing.assert_allclose(lse[0], np.log(weights.sum(axis=1)), atol=2e-6)


def test_values_that_are_part_of_their_keys_have_their_address() -> None:
    arena = numbers(0, 4, 2, 16)
    worker = AttentionWorker("float32", 2, 1, 16, latent=8)
    with pytest.raises(ValueError, match="v_ptr is not k_ptr"):
        worker.add_layer(address(arena), address(arena) + 64, 4, 32, 16, 1.0, 0, 0.0)
    with pytest.raises(ValueError, match="latent is 24"):
        AttentionWorker("float32", 2, 1, 16, latent=24)


def test_no_tokens_weigh_nothing() -> None:
    bench = Bench()
    bench.plan([], [1])
    out, lse = bench.partial(numbers(1, 2, HEADS, DIM))
    assert (out[0] == 0).all()
    assert np.isneginf(lse[0]).all()
    assert np.isfinite(lse[1]).all()


@given(lists=st.lists(st.lists(st.integers(0, 63), max_size=20), min_size=1, max_size=4), data=st.data())
def test_parts_of_any_split_combine_to_the_whole(lists: list[list[int]], data: st.DataObject) -> None:
    bench, q = Bench(threads=1), numbers(1, len(lists), HEADS, DIM)
    chosen = [data.draw(st.lists(st.booleans(), min_size=len(one), max_size=len(one))) for one in lists]
    parts = []
    for side in (True, False):
        bench.plan(
            *(
                [s for s, c in zip(one, which, strict=True) if c is side]
                for one, which in zip(lists, chosen, strict=True)
            )
        )
        parts.append(bench.partial(q))
    (out, lse), (other_out, other_lse) = parts
    combine(*map(address, (out, lse, other_out, other_lse, out, lse)), rows=len(lists) * HEADS, head_dim=DIM)
    bench.plan(*lists)
    whole, whole_lse = bench.partial(q)
    np.testing.assert_allclose(out, whole, atol=3e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=3e-6)


def test_combining_is_stable_where_sums_would_overflow() -> None:
    out, lse = numbers(1, 2, 3, DIM), np.array([[1e4, -1e4, 3e38], [1e4, 1e4, -np.inf]], np.float32)
    to, to_lse = np.empty((3, DIM), np.float32), np.empty(3, np.float32)
    parts = (out[0], lse[0], out[1], lse[1], to, to_lse)
    combine(*map(address, parts), rows=3, head_dim=DIM)
    np.testing.assert_allclose(to, np.stack([out[:, 0].mean(axis=0), out[1, 1], out[0, 2]]), atol=1e-6)
    np.testing.assert_allclose(to_lse, np.array([1e4 + np.log(2), 1e4, 3e38], np.float32))


def test_two_halves_of_a_step_are_a_whole_one_to_the_last_bit() -> None:
    lists = [list(range(40)), [50], [51, 52, 53]]
    q, k, v = numbers(1, 3, HEADS, DIM), numbers(2, 3, KV_HEADS, DIM), numbers(3, 3, KV_HEADS, DIM)
    outs = []
    for halves in (True, False):
        for threads in (1, 2, 3):
            bench, out = Bench(threads=threads), np.empty_like(q)
            bench.plan(*lists)
            if halves:
                bench.worker.begin(bench.layer, address(q))
                bench.worker.finish(bench.layer, address(k), address(v), address(out))
            else:
                bench.worker.run(bench.layer, address(q), address(k), address(v), address(out))
            for i, slots in enumerate(lists):
                assert (bench.arena[slots[-1]] == np.stack([k[i], v[i]])).all()
            outs.append(out)
    assert all((out == outs[0]).all() for out in outs)
    expected, _ = attended(q[1], k[1:2], v[1:2])
    np.testing.assert_allclose(outs[0][1], expected, atol=2e-6)  # a first token sees itself alone


@pairwise(
    isa=attention_isas(),
    shape=[(2, 2, 24), (6, 3, 64), (16, 4, 64), (16, 2, 40)],
    dtype=["bfloat16", "float16", "float32"],
    order=["in order", "shuffled"],
)
def test_where_it_fetches_ahead_changes_no_bit(
    isa: str, shape: tuple[int, int, int], dtype: str, order: str
) -> None:
    heads, kv_heads, dim = shape
    kind = np.float32 if dtype == "float32" else np.uint16
    # The upper halves of floats as bfloat16, and as float16 numbers with them.
    wide = numbers(0, 300, 2, kv_heads, dim), numbers(1, 1, heads, dim)
    arena, q = (x if kind is np.float32 else (x.view(np.uint32) >> 16).astype(kind) for x in wide)
    slots = np.arange(300, dtype=np.int32)
    if order == "shuffled":
        np.random.default_rng(2).shuffle(slots)
    outs = []
    for prefetch in ("none", "l1", "l2", "both", "short", "slots"):
        worker = AttentionWorker(dtype, heads, kv_heads, dim, 1, isa, prefetch=prefetch)
        assert worker.prefetch == prefetch
        values = address(arena) + kv_heads * dim * arena.itemsize
        layer = worker.add_layer(address(arena), values, 300, 2 * kv_heads * dim, dim, SCALE, 0, 0.0)
        worker.plan_lists(np.array([0, 290]), slots[:290])
        out, lse = np.empty((1, heads, dim), np.float32), np.empty((1, heads), np.float32)
        worker.partial(layer, *map(address, (q, out, lse)))
        outs.append((out, lse))
    assert np.isfinite(outs[0][0]).all()
    for one, *others in zip(*outs, strict=True):
        assert all((one == other).all() for other in others)


def test_layers_may_have_windows_of_their_own() -> None:
    bench = Bench()
    narrow = bench.add_layer(window=3)
    slots = list(range(10))
    q, k, v = numbers(1, 1, HEADS, DIM), numbers(2, 1, KV_HEADS, DIM), numbers(3, 1, KV_HEADS, DIM)
    bench.plan(slots)
    for layer, observed in ((bench.layer, slots), (narrow, slots[-3:])):
        out = np.empty_like(q)
        bench.worker.run(layer, *map(address, (q, k, v, out)))
        expected, _ = attended(q[0], bench.arena[observed, 0], bench.arena[observed, 1])
        np.testing.assert_allclose(out[0], expected, atol=2e-6)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    arena = (numbers(0, 8, 2, 1, 8).view(np.uint32) >> 16).astype(np.uint16)
    q = (numbers(1, 1, 1, 8).view(np.uint32) >> 16).astype(np.uint16)
    worker = AttentionWorker("bfloat16", 1, 1, 8)
    layer = worker.add_layer(address(arena), address(arena) + 16, 8, 16, 8, 1.0, 0, 0.0)
    worker.plan_lists(np.array([0, 8]), np.arange(8, dtype=np.int32))
    out, lse = np.empty((1, 1, 8), np.float32), np.empty((1, 1), np.float32)
    worker.partial(layer, address(q), address(out), address(lse))
    wide_q, wide = ((x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (q, arena))
    weights = np.exp(wide[:, 0, 0] @ wide_q[0, 0])
    np.testing.assert_allclose(out[0, 0], weights @ wide[:, 1, 0] / weights.sum(), atol=2e-6)
    np.testing.assert_allclose(lse[0, 0], np.log(weights.sum()), atol=2e-6)


def test_a_plan_is_of_its_moment() -> None:
    bench, slab = Bench(), Slab(64)
    slab.allocate(1, 9)
    before = slab.indices(1)
    bench.worker.plan(slab, np.array([1]))
    slab.extend(np.array([1]), 3)
    slab.release(1)
    q = numbers(1, 1, HEADS, DIM)
    out, _ = bench.partial(q)
    expected, _ = attended(q[0], bench.arena[before, 0], bench.arena[before, 1])
    np.testing.assert_allclose(out[0], expected, atol=2e-6)


def test_appended_rows_are_in_their_slots() -> None:
    bench = Bench()
    k, v = numbers(2, 3, KV_HEADS, DIM), numbers(3, 3, KV_HEADS, DIM)
    slots = np.array([9, 0, 63], np.int32)
    bench.worker.append(bench.layer, address(k), address(v), slots)
    assert (bench.arena[slots, 0] == k).all()
    assert (bench.arena[slots, 1] == v).all()


def test_invalid_options_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, q = Bench(slots=8), numbers(1, 1, HEADS, DIM)
    at = address(q)
    for arguments, sentence in (
        (("float64", 1, 1, 8), "dtype is 'float64' but must be"),
        (("float32", 3, 2, 8), "kv_heads must divide heads"),
        (("float32", 1, 1, 260), "head_dim is 260"),
        (("float32", 1, 1, 8, -1), "threads is -1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            AttentionWorker(*arguments)
    with monkeypatch.context() as patch:
        patch.setenv("LAMINA_ISA", "mmx")
        with pytest.raises(ValueError, match="isa is 'mmx' but this processor has baseline"):
            AttentionWorker("float32", 1, 1, 8)
    with monkeypatch.context() as patch:
        patch.setenv("LAMINA_PREFETCH", "l1")
        assert AttentionWorker("float32", 1, 1, 8).prefetch == "l1"
        patch.setenv("LAMINA_PREFETCH", "l3")
        with pytest.raises(
            ValueError, match="prefetch is 'l3' but must be none, l1, l2, both, short or slots"
        ):
            AttentionWorker("float32", 1, 1, 8)
    with pytest.raises(ValueError, match="window is -1"):
        bench.add_layer(window=-1)
    with pytest.raises(ValueError, match="rows of 16 numbers would overlap"):
        bench.worker.add_layer(at, at, 8, 8, 16, 1.0, 0, 0.0)
    with pytest.raises(ValueError, match="offsets must begin with 0"):
        bench.worker.plan_lists(np.array([0, 2]), np.zeros(1, np.int32))
    with pytest.raises(IndexError, match="slot -1 is negative"):
        bench.plan([-1])
    with pytest.raises(TypeError):
        bench.worker.plan_lists(np.array([0.0, 1.0]), np.zeros(1, np.int32))  # type: ignore[arg-type]
    bench.plan([])
    with pytest.raises(ValueError, match="has no token"):
        bench.worker.begin(bench.layer, at)
    bench.plan([8])
    with pytest.raises(IndexError, match="slots up to 8 but layer 0 has only 8"):
        bench.worker.begin(bench.layer, at)
    with pytest.raises(IndexError, match="layer is 1 but there are 1"):
        bench.worker.begin(1, at)
    with pytest.raises(RuntimeError, match="no layer was begun"):
        bench.worker.finish(0, at, at, at)
    bench.plan([0])
    bench.worker.begin(0, at)
    with pytest.raises(RuntimeError, match="layer 0 has begun"):
        bench.worker.begin(0, at)
    with pytest.raises(RuntimeError, match="but layer 0 was begun"):
        bench.worker.finish(1, at, at, at)
    with pytest.raises(KeyError, match="request 7"):
        Bench().worker.plan(Slab(8), np.array([7]))


def test_reading_is_timed() -> None:
    memory = np.zeros(3 << 20, np.uint8)
    assert AttentionWorker("float32", 1, 1, 8, 2).read_bandwidth(address(memory), memory.nbytes) > 1e6
