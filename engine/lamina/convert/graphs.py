"""Slices replayed as CUDA graphs, one for each size of batch. Not verified on hardware.

A captured graph has fixed addresses and a fixed batch: inputs are copied into its buffers, the batch is
padded to the next size up, and what leaves the slice is copied out: the same graph may run for another
batch before the receiver has read it. A slice runs query, keyvalue and rest of one batch before the query
of the next; the state handed between them is a ticket that notices when it is not so.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lamina import gpu
from lamina.convert.errors import ConversionError
from lamina.convert.program import BATCH, Program, Spec
from lamina.convert.slices import BoundSlice
from lamina.cuda_library import CudaError

T = TypeVar("T")
Replay: TypeAlias = Callable[[], None]
# What is entered while a new size of batch is captured.
Around: TypeAlias = Callable[[], contextlib.AbstractContextManager[object]]

# Doubling up to 16, then in steps: less than a third of what runs is padding.
SIZES: tuple[int, ...] = (1, 2, 4, 8, *range(16, 128, 8), *range(128, 512, 32), *range(512, 1025, 64))

_WARM_UPS = 2


def size_for(batch: int) -> int:
    """Return the smallest captured size that holds `batch` requests."""
    place = int(bisect_left(SIZES, batch))
    if batch < 1 or place == len(SIZES):
        raise ConversionError(
            "convert-graph-batch",
            f"a batch of {batch}; CUDA graphs are captured for 1 to {SIZES[-1]} requests",
        )
    return SIZES[place]


def fill(buffers: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy a batch into the first rows of fixed buffers; the rest repeats its last request.

    Repeated, not zeroed: whatever a slice does with padding, it can do with a request.
    """
    for buffer, tensor in zip(buffers, given, strict=True):
        batch = len(tensor)
        buffer[:batch].copy_(gpu.staged(tensor, buffer.device), non_blocking=True)
        if batch < len(buffer):
            buffer[batch:].copy_(buffer[batch - 1 : batch].expand_as(buffer[batch:]), non_blocking=True)


def buffers_for(program: Program, size: int, device: torch.device) -> list[Tensor]:
    """Return the fixed inputs of a slice for one size: its context, then what attention gives."""
    specs = [value.spec for value in program.context]
    if program.attended is not None:
        specs.append(program.attended.spec)
    return [torch.zeros(_sizes(spec, size), dtype=spec.dtype, device=device) for spec in specs]


def _sizes(spec: Spec, size: int) -> list[int]:
    sizes = [size if dim == BATCH else dim for dim in spec.dims]
    if not sizes or spec.dims[0] != BATCH or any(isinstance(dim, str) for dim in sizes):
        raise ConversionError(
            "convert-cudagraph-shape",
            f"CUDA graphs need one row a request; a value has shape {list(spec.dims)}",
        )
    return [int(dim) for dim in sizes]


@dataclass(frozen=True)
class _Captured:
    """The graphs of a slice for one size, and the buffers they read and write."""

    inputs: list[Tensor]
    replays: list[Replay]
    outputs: list[tuple[Tensor, ...]]  # of each piece, without the state
    states: list[Any]  # referenced, or the pool would give their memory to another slice's graphs


@dataclass(frozen=True)
class _Ticket:
    """The run and the graphs that a state belongs to."""

    captured: _Captured
    batch: int
    run: int


class _Graphed:
    """A slice whose pieces are captured at the first batch of each size."""

    def __init__(self, eager: BoundSlice, program: Program, device: torch.device, capturing: Around) -> None:
        self._eager, self._program, self._device = eager, program, device
        self._capturing = capturing
        self._captured: dict[int, _Captured] = {}
        self._run = 0

    def pieces(self) -> Mapping[str, Callable[..., Any]]:
        """Return the functions of a bound slice."""
        return {piece.name: partial(self._call, at) for at, piece in enumerate(self._program.pieces)}

    def _call(self, position: int, *given: Any) -> Any:
        """Return one piece, as the eager slice's: the first begins a batch, the others are given the
        state.
        """
        ticket = given[0] if position else self._begin(*given)
        assert ticket.run == self._run, "another batch has begun this slice before the last one left it"
        ticket.captured.replays[position]()
        outputs = tuple(output[: ticket.batch].clone() for output in ticket.captured.outputs[position])
        if position + 1 < len(self._program.pieces):
            return (*outputs, ticket)
        return outputs[0] if self._program.pieces[position].name == "logits" else outputs

    def _begin(self, context: Sequence[Tensor], attended: Tensor | None) -> _Ticket:
        given = [*context, *(() if attended is None else (attended,))]
        batch = len(given[0])
        size = size_for(batch)
        if size not in self._captured:
            with self._capturing():
                self._captured[size] = self._capture(size)
        captured = self._captured[size]
        self._run += 1
        fill(captured.inputs, given)
        return _Ticket(captured, batch, self._run)

    def _capture(self, size: int) -> _Captured:
        inputs = buffers_for(self._program, size, self._device)
        attended = inputs.pop() if self._program.attended is not None else None
        context = tuple(inputs)

        def once() -> None:
            state: Any = None
            for piece in self._program.pieces:
                _, state = _run_piece(self._eager, piece.name, context, attended, state)

        warm_up(once, self._device)
        replays: list[Replay] = []
        outputs: list[tuple[Tensor, ...]] = []
        states: list[Any] = []
        state: Any = None
        for piece in self._program.pieces:
            replay, (outputs_now, state) = captured(
                partial(_run_piece, self._eager, piece.name, context, attended, state), self._device
            )
            replays.append(replay)
            outputs.append(outputs_now)
            states.append(state)
        return _Captured([*inputs, *(() if attended is None else (attended,))], replays, outputs, states)


# Torch captures one graph at a time in a process.
_CAPTURING = threading.Lock()


class _Own(threading.local):
    """The stream and the first graph of each thread on a device.

    The graphs of a thread replay one after another, so what they only use while they run may lie in the same
    memory, the first one's. Those of two threads run at the same time. What a graph leaves for later,
    `_Captured` holds on to. The first graph stays, since torch captures no more once the last one is freed.
    """

    def __init__(self) -> None:
        self.streams: dict[torch.device, Any] = {}
        self.first: dict[torch.device, torch.cuda.CUDAGraph] = {}

    def stream(self, device: torch.device) -> Any:
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self.streams[device]


_own = _Own()


def warm_up(run: Callable[[], object], device: torch.device) -> None:
    """Run once, so that libraries choose kernels and make workspaces; not on the stream in use."""
    if device.type != "cuda":
        return
    side = _own.stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream(device).wait_stream(side)


def captured(run: Callable[[], T], device: torch.device) -> tuple[Replay, T]:
    """Return a replay of `run`, and its result, which each replay overwrites."""
    if device.type != "cuda":  # a GPU that is emulated, where nothing is captured
        result = run()
        return partial(_again, run, result), result
    graph: Any = torch.cuda.CUDAGraph()
    first, side = _own.first.get(device), _own.stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    # Not by torch.cuda.graph, which waits for all that runs on the GPU: another thread's channel may wait
    # there for what this one sends next. Nor may a capture fail what other threads do meanwhile.
    with _CAPTURING, torch.cuda.device(device), torch.cuda.stream(side), torch.no_grad():
        graph.capture_begin(*([first.pool()] if first else []), capture_error_mode="thread_local")
        try:
            result = run()
        finally:
            graph.capture_end()
    _own.first.setdefault(device, graph)
    return graph.replay, result


def _again(run: Callable[[], T], result: T) -> None:
    for old, new in zip(pytree.tree_leaves(result), pytree.tree_leaves(run()), strict=True):
        if isinstance(old, Tensor):
            old.copy_(new)


def _run_piece(
    eager: BoundSlice, name: str, context: tuple[Tensor, ...], attended: Tensor | None, state: Any
) -> tuple[tuple[Tensor, ...], Any]:
    """Return one piece of the eager slice: what it sends, and the state after it."""
    given = (context, attended) if name in {"query", "logits"} else (state,)
    result = getattr(eager, name)(*given)
    if name == "logits":
        return (result,), None
    return (result, None) if name == "rest" else (result[:-1], result[-1])


def graphed(
    eager: BoundSlice,
    program: Program,
    device: torch.device,
    capturing: Around = contextlib.nullcontext,
) -> BoundSlice:
    """Return the slice as CUDA graphs, captured when a batch size first occurs."""
    pieces = _Graphed(eager, program, device, capturing).pieces()
    return BoundSlice(eager.index, eager.source, eager.weights, pieces)


def require_gpu(device: torch.device) -> None:
    """Raise a ConversionError unless graphs can be captured there."""
    if device.type == "cuda" and torch.cuda.is_available():
        return
    with contextlib.suppress(CudaError):
        if gpu.is_emulated():
            return
    raise ConversionError(
        "convert-no-gpu",
        f"the cudagraph backend needs an NVIDIA GPU (device is {device}); use backend python or aot",
    )
