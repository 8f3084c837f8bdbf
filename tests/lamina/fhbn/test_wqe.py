"""Work requests for mlx5 NICs, byte for byte beside those that rdma-core's own definitions make."""

from __future__ import annotations

import ctypes
import importlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina import _softnic
from lamina.fhbn.nic.devices import NoPyverbsError, pyverbs

pytestmark = pytest.mark.outside

BLOCK, SEGMENT = 64, 16
NOTHING, RDMA_WRITE = 0x00, 0x08
SIGNALLED = 0x08
INLINE = 0x80000000

addresses = st.integers(0, 2**64 - 1)
keys = st.integers(0, 2**32 - 1)
numbers = st.integers(0, 2**24 - 1)
blocks = st.sampled_from([8, 16, 64, 1024])
starts = st.integers(0, 2**32 - 1) | st.integers(2**16 - 9, 2**16 + 9)


@pytest.fixture(scope="module")
def mlx5() -> Any:
    try:
        pyverbs()
        return importlib.import_module("pyverbs.providers.mlx5.mlx5dv")
    except (NoPyverbsError, ImportError) as error:
        pytest.skip(f"the bytes are not compared with rdma-core's: {error}")


def of_rdma_core(mlx5: Any, *segments: Any) -> bytes:
    """The bytes that rdma-core lays out for these segments."""
    room = ctypes.create_string_buffer(SEGMENT * len(segments))
    mlx5.Wqe(list(segments), addr=ctypes.addressof(room))
    return room.raw


def control(mlx5: Any, *, opcode: int, block: int, qpn: int, segments: int, requested: bool) -> bytes:
    flags = SIGNALLED if requested else 0
    segment = mlx5.WqeCtrlSeg(
        pi=block & 0xFFFF, opcode=opcode, opmod=0, qp_num=qpn, fm_ce_se=flags, ds=segments, signature=0, imm=0
    )
    return of_rdma_core(mlx5, segment)


def request_at(queue: _softnic.WqeQueue, block: int, segments: int) -> bytes:
    """A request's bytes, put together again where the queue's end divides them."""
    memory = queue.requests
    first = block * BLOCK % len(memory)
    return (memory[first:] + memory[:first])[: segments * SEGMENT]


@given(blocks, numbers, starts, addresses, keys, addresses, keys, st.integers(1, INLINE - 1))
def test_a_write_is_laid_out_as_rdma_core_does_it(
    mlx5: Any,
    size: int,
    qpn: int,
    start: int,
    local: int,
    local_key: int,
    remote: int,
    remote_key: int,
    nbytes: int,
) -> None:
    queue = _softnic.WqeQueue(size, qpn=qpn, first=start)
    for i in range(size):
        queue.put_write(local=local, local_key=local_key, remote=remote, remote_key=remote_key, nbytes=nbytes)
        assert queue.next == (start + i + 1) % 2**32
        requested = (i + 1) % (size // 4) == 0
        assert request_at(queue, start + i, 3) == b"".join(
            [
                control(mlx5, opcode=RDMA_WRITE, block=start + i, qpn=qpn, segments=3, requested=requested),
                struct.pack(">QII", remote, remote_key, 0),
                of_rdma_core(mlx5, mlx5.WqeDataSeg(length=nbytes, lkey=local_key, addr=local)),
            ]
        )
        if size > 64:  # one turn of the smaller queues shows all that moderation does
            break


@given(blocks, numbers, starts, st.binary(max_size=220), addresses, keys)
def test_inline_bytes_go_on_at_the_queues_beginning(
    mlx5: Any, size: int, qpn: int, start: int, data: bytes, remote: int, remote_key: int
) -> None:
    queue = _softnic.WqeQueue(size, qpn=qpn, first=start)
    queue.put_inline(data, remote=remote, remote_key=remote_key)
    segments = 2 + -(-(4 + len(data)) // SEGMENT)
    taken = -(-segments * SEGMENT // BLOCK)
    expected = control(
        mlx5, opcode=RDMA_WRITE, block=start, qpn=qpn, segments=segments, requested=taken >= size // 4
    )
    expected += struct.pack(">QII", remote, remote_key, 0) + struct.pack(">I", INLINE | len(data)) + data
    assert request_at(queue, start, segments) == expected.ljust(segments * SEGMENT, b"\0")
    assert queue.next == (start + taken) % 2**32


@given(blocks, numbers, starts)
def test_a_request_that_does_nothing_asks_for_its_completion(
    mlx5: Any, size: int, qpn: int, start: int
) -> None:
    queue = _softnic.WqeQueue(size, qpn=qpn, first=start)
    queue.put_nothing()
    expected = control(mlx5, opcode=NOTHING, block=start, qpn=qpn, segments=1, requested=True)
    assert request_at(queue, start, 1) == expected


def test_a_full_queue_takes_no_more() -> None:
    queue = _softnic.WqeQueue(8, qpn=1, first=2**32 - 3)
    for _ in range(8):
        queue.put_nothing()
    with pytest.raises(ValueError, match="the queue is full"):
        queue.put_write(local=0, local_key=0, remote=0, remote_key=0, nbytes=1)


@pytest.mark.parametrize("size", [0, 4, 12, 65536])
def test_a_queues_size_is_a_power_of_two_that_16_bits_can_count(size: int) -> None:
    with pytest.raises(ValueError, match="8 to 32,768 blocks"):
        _softnic.WqeQueue(size, qpn=1, first=0)
