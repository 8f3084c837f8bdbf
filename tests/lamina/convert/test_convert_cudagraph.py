"""CUDA graphs: what can be tested without a GPU. Capture and replay are not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import converted, seeded, tiny

from lamina.convert import ConversionError
from lamina.convert.graphs import SIZES, buffers_for, fill, size_for


@given(st.integers(1, SIZES[-1]))
def test_the_smallest_size_that_fits_and_wastes_little(batch: int) -> None:
    size = size_for(batch)
    assert size == min(one for one in SIZES if one >= batch)
    assert size < 2 * batch
    assert batch <= 16 or 3 * (size - batch) < size


@pytest.mark.parametrize("batch", [0, -1, SIZES[-1] + 1])
def test_no_size_for(batch: int) -> None:
    with pytest.raises(ValueError, match=f"captured for 1 to {SIZES[-1]}"):
        size_for(batch)


def test_padding_repeats_the_last_request() -> None:
    buffers = [torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)]
    fill(buffers, [torch.ones(3, 2), torch.tensor([5, 6, 7])])
    assert buffers[0].tolist() == [[1.0, 1.0]] * 4
    assert buffers[1].tolist() == [5, 6, 7, 7]
    fill(buffers, [torch.full((4, 2), 2.0), torch.arange(4)])
    assert buffers[1].tolist() == [0, 1, 2, 3]


def test_padded_requests_change_nothing() -> None:
    model = seeded(tiny("Llama"))
    conversion = converted("Llama", torch.float32)
    first = conversion.bind(model)[0]
    buffers = buffers_for(conversion.slices[0].program, size_for(3), torch.device("cpu"))
    given_ = [torch.tensor([5, 9, 2]), torch.tensor([0, 7, 3])]
    fill(buffers, given_)
    padded, _ = first.query(tuple(buffers), None)
    exact, _ = first.query(tuple(given_), None)
    assert padded.shape[0] == 4
    torch.testing.assert_close(padded[:3], exact)


def test_buffers_of_a_middle_slice_have_room_for_attention() -> None:
    program = converted("Llama", torch.float32).slices[1].program
    shapes = [tuple(buffer.shape) for buffer in buffers_for(program, 8, torch.device("cpu"))]
    assert shapes == [(8, 1, 64), (8, 1, 1, 16), (8, 1, 1, 16), (8, 4, 16)]


def test_without_a_gpu_it_says_so() -> None:
    conversion = converted("Llama", torch.float32)
    with pytest.raises(ConversionError, match="convert-no-gpu"):
        conversion.bind(seeded(tiny("Llama")), backend="cudagraph")
