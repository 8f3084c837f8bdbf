"""Iterations as CUDA graphs, one for each size of batch: one launch instead of some hundreds.

Run on an H200: docs/gpu.md says what. Without a GPU, tests call again what is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from lamina.convert.graphs import Replay, captured, fill, size_for, warm_up

Context: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Iteration:
    """A CUDA graph captured for one batch size."""

    context: Context  # what it reads
    replay: Replay
    logits: Tensor


class IterationGraphs:
    """Slices and attention of a whole iteration, captured at the first batch of each size.

    Attention has been planned for as many rows, filled up with none: its lists have fixed addresses.
    To run an iteration again changes nothing: the new token's keys and values are stored where they are.
    """

    def __init__(self, decode: Callable[[Context], Tensor], device: torch.device) -> None:
        self._decode, self._device = decode, device
        self._iterations: dict[int, _Iteration] = {}
        self.rows = size_for  # what a batch is filled up to

    def __call__(self, context: Context) -> Tensor:
        """Return the logits [B, vocab], valid until the next call. The context has a row for each request."""
        batch = len(context[0])
        size = self.rows(batch)
        iteration = self._iterations.get(size)
        if iteration is None:
            buffers = tuple(one.new_zeros(size, *one.shape[1:]).to(self._device) for one in context)
        else:
            buffers = iteration.context
        fill(buffers, context)
        if iteration is None:
            run = partial(self._decode, buffers)
            warm_up(run, self._device)
            iteration = _Iteration(buffers, *captured(run, self._device))
            self._iterations[size] = iteration
        iteration.replay()
        return iteration.logits[:batch]
