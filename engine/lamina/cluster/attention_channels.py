"""A model worker's channels to attention workers: q, k and v go out in pieces, outputs come back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.fhbn.channel import Receiver, Sender
from lamina.pipeline.batch_delta import Ints
from lamina.pipeline.partition import Partition

Rows = slice | Tensor
ALL = slice(None)


class Route(NamedTuple):
    """One piece of a batch, and whom it goes to."""

    worker: int
    rows: Rows
    heads: slice  # of this model worker's
    kv_heads: slice


class AttentionChannels:
    """Both ends that one model worker has, and how its batches are divided among them."""

    def __init__(self, partition: Partition, rank: int) -> None:
        self._partition = partition
        self._rank = rank
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._whole = partition.workers == 1 and partition.chunks == 1

    def add(self, worker: int, sender: Sender, receiver: Receiver) -> None:
        """The channels to one attention worker."""
        self._senders[worker], self._receivers[worker] = sender, receiver

    @property
    def network(self) -> str:
        """What moves the messages."""
        return next(iter(self._senders.values())).engine

    def routes(self, pools: Ints) -> list[Route]:
        """The pieces of a batch whose requests are in these pools, in the order in which they are sent."""
        result: list[Route] = []
        for worker in self._senders:
            mine = self._rows(pools, worker)
            count = len(pools) if isinstance(mine, slice) else len(mine)
            for piece in self._partition.pieces(self._rank, worker):
                part = piece.rows(count)
                if part.start == part.stop:
                    continue
                rows: Rows = part if isinstance(mine, slice) else mine[part]
                result.append(Route(worker, rows, *self._local(piece.kv_heads)))
        return result

    def _rows(self, pools: Ints, worker: int) -> Rows:
        if self._partition.along == "heads":
            return ALL
        return torch.from_numpy(np.flatnonzero(pools == worker))

    def _local(self, kv_heads: range) -> tuple[slice, slice]:
        first = kv_heads.start - self._partition.of_rank(self._rank).start
        last, group = first + len(kv_heads), self._partition.group
        return slice(first * group, last * group), slice(first, last)

    def send(self, routes: Sequence[Route], q: Tensor | None, kv: tuple[Tensor, Tensor] | None) -> None:
        """A layer's tensors, or some of them, to everybody who has a part in it."""
        for route in routes:
            parts = [] if q is None else [self._part(q, route.rows, route.heads)]
            parts += [] if kv is None else [self._part(item, route.rows, route.kv_heads) for item in kv]
            self._senders[route.worker].send(*parts)

    def _part(self, tensor: Tensor, rows: Rows, heads: slice) -> Tensor:
        return tensor if self._whole else tensor[rows, heads].contiguous()

    def close(self) -> None:
        """Both ends of all channels."""
        for end in (*self._senders.values(), *self._receivers.values()):
            end.close()
        self._senders.clear()
        self._receivers.clear()

    def collect(self, routes: Sequence[Route], like: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
        """What attention gave for the batch: [rows, heads, head_dim] of this model worker's heads."""
        if self._whole:
            message = self._receivers[routes[0].worker].recv()
            # Where it lies: its slot is free when nobody has the tensor any more.
            return torch.frombuffer(message[0], dtype=dtype).view(like)
        out = torch.empty(like, dtype=dtype)
        for route in routes:
            with self._receivers[route.worker].recv() as message:
                part = torch.frombuffer(message[0], dtype=dtype)
                heads = route.heads.stop - route.heads.start
                out[route.rows, route.heads] = part.view(-1, heads, like[2])
        return out

    def prompt(self, to: Collection[int], known: int, k: Tensor, v: Tensor) -> None:
        """Some tokens of a prompt, for these attention workers; of the first `known` they have the KV."""
        if known >= len(k):
            return
        rows = slice(known, None)
        for worker, sender in self._senders.items():
            if worker not in to:
                continue
            pieces = self._partition.pieces(self._rank, worker)
            heads = range(pieces[0].kv_heads.start, pieces[-1].kv_heads.stop)
            _, local = self._local(heads)
            sender.send(k[rows, local].contiguous(), v[rows, local].contiguous())
