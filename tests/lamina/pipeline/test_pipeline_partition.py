"""How attention is divided: every head of every request once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina.pipeline import Partition
from lamina.pipeline.partition import Along, Piece

ALONG: list[Along] = ["heads", "requests"]


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    kv_heads = draw(st.integers(1, 12))
    along = draw(st.sampled_from(ALONG))
    heads = kv_heads * draw(st.integers(1, 4 if kv_heads > 1 else 12))
    shared = kv_heads if kv_heads > 1 else heads
    ranks = draw(st.sampled_from(divisors(shared)))
    workers = draw(st.sampled_from(divisors(shared)) if along == "heads" else st.integers(1, 5))
    chunks_along = draw(st.sampled_from(ALONG))
    return Partition(along, ranks, workers, heads, kv_heads, draw(st.integers(1, 5)), chunks_along)


@given(partitions(), st.lists(st.integers(0, 4), max_size=9))
def test_pieces_cover_every_head_of_every_request_once(partition: Partition, drawn: list[int]) -> None:
    """Heads x rows of a batch whose requests are in any of the pools, also in none of some worker's."""
    pools = np.array(drawn, np.int64) % partition.pools
    times: NDArray[np.int64] = np.zeros((partition.heads, len(pools)), np.int64)
    for rank in range(partition.ranks):
        for worker in range(partition.workers):
            own = np.flatnonzero(pools == worker) if partition.pools > 1 else np.arange(len(pools))
            pieces = partition.pieces(rank, worker)
            for piece in pieces:
                assert set(piece.heads) <= set(partition.of_rank(rank))
                assert set(piece.heads) <= set(partition.of_worker(worker))
                times[piece.heads.start : piece.heads.stop, own[piece.rows(len(own))]] += 1
            assert len(pieces) <= partition.chunks
            assert all(len(piece.heads) for piece in pieces)
    assert (times == 1).all()


@given(partitions())
def test_heads_belong_to_one_rank_and_with_whole_requests_to_every_worker(partition: Partition) -> None:
    everything = list(range(partition.heads))
    assert [head for rank in range(partition.ranks) for head in partition.of_rank(rank)] == everything
    by_worker = [list(partition.of_worker(worker)) for worker in range(partition.workers)]
    if partition.along == "heads":
        assert [head for heads in by_worker for head in heads] == everything
        assert partition.pools == 1
    else:
        assert by_worker == [everything] * partition.workers
        assert partition.pools == partition.workers


@given(partitions())
def test_each_attention_worker_gets_the_kv_of_prompts_once(partition: Partition) -> None:
    stored: list[int] = []
    for worker in range(partition.workers):
        own = list(partition.kv_of(partition.of_worker(worker)))
        givers = [rank for rank in range(partition.ranks) if partition.gives_prompts(rank, worker)]
        given_ = [head for rank in givers for head in partition.kv_of(partition.of_both(rank, worker))]
        assert given_ == own
        stored += own
    if partition.along == "heads":
        assert sorted(stored) == sorted([*range(partition.kv_heads)] * partition.copies)
    else:
        assert partition.copies == 1


@given(st.integers(0, 50), st.integers(1, 9))
def test_parts_of_a_batch_are_as_equal_as_can_be(count: int, parts: int) -> None:
    rows = [Piece(range(1), part, parts).rows(count) for part in range(parts)]
    sizes = [len(range(*each.indices(count))) for each in rows]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_chunks_by_hand() -> None:
    along_heads = Partition("heads", 2, 1, 16, 8, chunks=3, chunks_along="heads")
    assert [piece.heads for piece in along_heads.pieces(1, 0)] == [range(8, 10), range(10, 12), range(12, 16)]
    assert all((piece.part, piece.parts) == (0, 1) for piece in along_heads.pieces(1, 0))
    along_requests = Partition("heads", 1, 2, 16, 8, chunks=2)
    assert along_requests.pieces(0, 1) == [Piece(range(8, 16), 0, 2), Piece(range(8, 16), 1, 2)]
    separate = Partition("heads", 4, 4, 16, 8)
    assert [len(separate.pieces(1, worker)) for worker in range(4)] == [0, 1, 0, 0]


def test_one_kv_head_is_on_all_whose_queries_attend_to_it() -> None:
    latent = Partition("heads", 2, 3, 12, 1)
    assert [piece.heads for piece in latent.pieces(0, 1)] == [range(4, 6)]
    assert [piece.heads for piece in latent.pieces(1, 1)] == [range(6, 8)]
    assert latent.kv_of(range(6, 8)) == range(1)
    assert latent.copies == 3
    assert [latent.gives_prompts(rank, 1) for rank in range(2)] == [True, False]
    assert Partition("requests", 2, 3, 12, 1).copies == 1


def test_refusals_list_possible_values() -> None:
    with pytest.raises(ValueError, match="layout-heads-uneven") as why:
        Partition("requests", 5, 1, 12, 12)
    assert str(why.value).endswith("possible are 1, 2, 3, 4, 6, 12")
    with pytest.raises(ValueError, match="layout-heads-uneven") as why:
        Partition("heads", 1, 3, 8, 2)
    assert str(why.value).endswith("possible are 1, 2, or partition by requests")
    assert Partition("requests", 1, 3, 8, 2).pools == 3
    with pytest.raises(ValueError, match="layout-heads-uneven") as why:
        Partition("requests", 3, 1, 8, 1)
    assert str(why.value).startswith("8 heads do not split over 3 model workers")


@pytest.mark.parametrize("name", ["ranks", "workers", "heads", "kv_heads", "chunks"])
@pytest.mark.parametrize("number", [0, -1])
def test_nothing_is_no_number_of_anything(name: str, number: int) -> None:
    sound: dict[str, Any] = {"ranks": 2, "workers": 2, "heads": 8, "kv_heads": 4, "chunks": 1}
    with pytest.raises(ValueError, match="is no partition"):
        Partition("heads", **(sound | {name: number}))
