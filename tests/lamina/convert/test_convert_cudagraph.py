"""CUDA graphs: what can be tested without a GPU. What torch captures and replays is not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import emulated_gpu
import pytest
import torch
from fhbn_support import segment
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import converted, seeded, tiny

from lamina import gpu
from lamina.convert import ConversionError, graphs
from lamina.convert.graphs import SIZES, buffers_for, captured, fill, size_for
from lamina.fhbn.device import DeviceReceiver, DeviceSender

GPU = torch.device("cuda", 0)


class RecordedGraph:
    """As much of torch's graph as captures use: which pool, in which mode, and whether two overlap."""

    made: list[RecordedGraph]
    open: int
    overlapped: bool

    def __init__(self) -> None:
        self.made.append(self)

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global", **_: object) -> None:
        type(self).overlapped |= self.open > 0
        type(self).open += 1
        self.given, self.mode = pool, capture_error_mode

    def capture_end(self) -> None:
        type(self).open -= 1

    def pool(self) -> object:
        return self.given or id(self)

    def replay(self) -> None:
        """Do nothing."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, emulated: None) -> type[RecordedGraph]:  # noqa: ARG001
    """Torch's captures, over a device-wide wait that is the emulated GPU's."""
    kind: Any = type("Recorded", (RecordedGraph,), {"made": [], "open": 0, "overlapped": False})
    stream = type("Stream", (), {"__init__": lambda *_: None, "wait_stream": lambda *_: None})
    patched = {
        "CUDAGraph": kind,
        "Stream": stream,
        "current_stream": lambda _: stream(),
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
        "synchronize": emulated_gpu.synchronize,
        "empty_cache": lambda: None,
    }
    for name, value in patched.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    monkeypatch.setattr(graphs, "_own", graphs._Own())
    return kind


def test_a_capture_waits_for_nothing_of_other_threads(recorded: type[RecordedGraph]) -> None:
    """A channel of another thread waits on the GPU for what this one sends after its capture."""
    ring, part = segment(), torch.arange(8, dtype=torch.uint8)
    into = torch.zeros_like(part)
    with (
        DeviceSender(ring, "worker 0", timeout_s=60) as sender,
        DeviceReceiver(ring, "worker 1", timeout_s=0.05) as receiver,
        ThreadPoolExecutor(1) as other,
    ):
        waits = other.submit(receiver.recv_into, into)
        while not emulated_gpu.running():
            assert not waits.done()
        captured(lambda: part + 1, GPU)
        sender.send(part)
        waits.result()
        receiver.check()
    assert torch.equal(into, part)
    assert [graph.mode for graph in recorded.made] == ["thread_local"]


def test_graphs_of_two_threads_share_no_memory_and_captures_take_turns(
    recorded: type[RecordedGraph],
) -> None:
    together = threading.Barrier(2)

    def capture() -> list[object]:
        together.wait()
        for _ in range(20):
            captured(lambda: torch.zeros(1), GPU)
        own = graphs._own.first[GPU]
        return [own.pool()]

    with ThreadPoolExecutor(2) as pool:
        first, second = (one.result() for one in [pool.submit(capture) for _ in range(2)])
    assert first != second
    assert len({graph.pool() for graph in recorded.made}) == 2
    assert not recorded.overlapped


def test_a_capture_is_within_what_it_is_given() -> None:
    """A worker's heartbeat does not count it as the slice's time."""
    entered: list[str] = []

    @contextlib.contextmanager
    def capturing() -> Iterator[None]:
        entered.append("begins")
        yield
        entered.append("ends")

    conversion = converted("Llama", torch.float32)
    bound = conversion.bind(seeded(tiny("Llama")))
    piece = graphs.graphed(bound[0], conversion.slices[0].program, torch.device("cpu"), capturing)
    for rows in (3, 4, 3, 2):
        piece.query((torch.zeros(rows, dtype=torch.int64), torch.arange(rows)), None)
    assert entered == ["begins", "ends"] * 2, "one capture for batches of 3 and 4, one for 2"


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


def test_what_the_host_has_is_staged_before_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from pageable memory waits for the stream, and with it for other workers."""
    place, pinned = torch.device("cuda", 0), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda one: pinned.append(one) or one)
    host = torch.arange(3)
    assert gpu.staged(host, torch.device("cpu")) is host
    assert not pinned
    assert gpu.staged(host, place) is host
    assert pinned == [host]
    assert gpu.staged(host.to("meta"), place).device.type == "meta", "what is not the host's stays"
    staged: list[int] = []
    monkeypatch.setattr(gpu, "staged", lambda one, _: staged.append(len(one)) or one)
    fill([torch.zeros(4, dtype=torch.int64)], [host])
    assert staged == [3]


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
