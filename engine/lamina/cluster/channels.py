"""A model worker's channels: to attention workers, to the places before and after, to the other ranks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lamina.cluster.heartbeat import Heartbeat
from lamina.fhbn.channel import Message, Receiver, Sender
from lamina.model.prefill import CHUNK, Passed
from lamina.pipeline.batch_delta import Ints
from lamina.pipeline.partition import Partition

if TYPE_CHECKING:  # brings transformers, which attention workers do without
    from lamina.convert import Conversion
    from lamina.convert.program import Value

K = TypeVar("K", bound=Hashable)
Rows = slice | Tensor
ALL = slice(None)
MESSAGE_BYTES = 1 << 20  # of a sum's part


class Channels(Generic[K]):
    """Ends of channels to and from others."""

    def __init__(self) -> None:
        self.senders: dict[K, Sender] = {}
        self.receivers: dict[K, Receiver] = {}

    def close(self) -> None:
        for end in (*self.senders.values(), *self.receivers.values()):
            end.close()
        self.senders.clear()
        self.receivers.clear()


class Route(NamedTuple):
    """One piece of a batch, and the attention worker that it goes to."""

    worker: int
    rows: Rows
    heads: slice  # of this model worker's
    kv_heads: slice


class AttentionChannels(Channels[int]):
    """By attention worker; q, k and v go out in pieces, outputs come back."""

    def __init__(self, partition: Partition, rank: int) -> None:
        super().__init__()
        self._partition = partition
        self._rank = rank
        self._whole = partition.workers == 1 and partition.chunks == 1

    def routes(self, pools: Ints) -> list[Route]:
        """The pieces of a batch whose requests are in these pools, in the order in which they are sent."""
        routes: list[Route] = []
        for worker in self.senders:
            mine = self._rows(pools, worker)
            count = len(pools) if isinstance(mine, slice) else len(mine)
            for piece in self._partition.pieces(self._rank, worker):
                part = piece.rows(count)
                if part.start == part.stop:
                    continue
                rows: Rows = part if isinstance(mine, slice) else mine[part]
                routes.append(Route(worker, rows, *self._local(piece.kv_heads)))
        return routes

    def _rows(self, pools: Ints, worker: int) -> Rows:
        if self._partition.along == "heads":
            return ALL
        return torch.from_numpy(np.flatnonzero(pools == worker))

    def _local(self, kv_heads: range) -> tuple[slice, slice]:
        first = kv_heads.start - self._partition.of_rank(self._rank).start
        last, group = first + len(kv_heads), self._partition.group
        return slice(first * group, last * group), slice(first, last)

    def send(self, routes: Sequence[Route], q: Tensor | None, kv: tuple[Tensor, Tensor] | None) -> None:
        """A layer's tensors, or some of them, to all workers that have a part in it."""
        for route in routes:
            parts = [] if q is None else [self._part(q, route.rows, route.heads)]
            parts += [] if kv is None else [self._part(tensor, route.rows, route.kv_heads) for tensor in kv]
            self.senders[route.worker].send(*parts)

    def _part(self, tensor: Tensor, rows: Rows, heads: slice) -> Tensor:
        return tensor if self._whole else tensor[rows, heads].contiguous()

    def collect(self, routes: Sequence[Route], like: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
        """What attention gave for the batch: [rows, heads, head_dim] of this model worker's heads."""
        if self._whole:
            message = self.receivers[routes[0].worker].recv()
            # Where it lies: its slot is free when the tensor is not used any more.
            return torch.frombuffer(message[0], dtype=dtype).view(like)
        out = torch.empty(like, dtype=dtype)
        for route in routes:
            with self.receivers[route.worker].recv() as message:
                part = torch.frombuffer(message[0], dtype=dtype)
                heads = route.heads.stop - route.heads.start
                out[route.rows, route.heads] = part.view(-1, heads, like[2])
        return out

    def prompt(self, to: Collection[int], known: int, k: Tensor, v: Tensor) -> None:
        """Some tokens of a prompt, for these attention workers, which have the KV of the first `known`."""
        if known >= len(k):
            return
        rows = slice(known, None)
        for worker in filter(to.__contains__, self.senders):
            pieces = self._partition.pieces(self._rank, worker)
            heads = range(pieces[0].kv_heads.start, pieces[-1].kv_heads.stop)
            _, local = self._local(heads)
            self.senders[worker].send(k[rows, local].contiguous(), v[rows, local].contiguous())


class StageChannels(Channels[str]):
    """From the place before and to the place after, replica or stage: what it needs to go on with a batch.

    By use, "ring" or "prompts": these have their own, because stages compute them in another order than they
    run slices.
    """

    def __init__(self, conversion: Conversion, heads: int, most_rows: int) -> None:
        super().__init__()
        self._contexts = [piece.program.context for piece in conversion.slices]
        self._heads, self._head_dim = heads, conversion.attentions[0].head_dim
        self._dtype = conversion.dtype
        widest = max(sum(value.spec.bytes for value in context) for context in self._contexts)
        self.attended_bytes = heads * self._head_dim * self._dtype.itemsize  # of a row
        self.message_bytes = (widest + self.attended_bytes) * max(most_rows, CHUNK)

    def send(self, *tensors: Tensor) -> None:
        self.senders["ring"].send(*(tensor.contiguous() for tensor in tensors))

    def pass_on(self, passed: Passed) -> None:
        assert passed.attended is not None
        self.senders["prompts"].send(*(part.contiguous() for part in (*passed.context, passed.attended)))

    def context(self, slice_: int) -> tuple[Tensor, ...]:
        """What a slice begins with."""
        with self.receivers["ring"].recv() as message:
            return self._read(message, self._contexts[slice_])

    def tokens(self) -> Ints:
        """What was chosen at the place before."""
        with self.receivers["ring"].recv() as message:
            return np.frombuffer(message[0], np.int64).copy()

    def prompt(self, slice_: int) -> Iterator[Passed]:
        """A prompt's chunks, as the stage before passes them on."""
        while True:
            with self.receivers["prompts"].recv() as message:
                context = self._read(message, self._contexts[slice_])
                attended = torch.frombuffer(message[len(context)], dtype=self._dtype).clone()
            yield Passed(context, attended.view(-1, self._heads, self._head_dim))

    def _read(self, message: Message, context: Sequence[Value]) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        for number, value in enumerate(context):
            flat = torch.frombuffer(message[number], dtype=value.spec.dtype).clone()
            tensors.append(flat.view(-1, *value.spec.row_shape[1:]))  # the first dimension is the batch's
        return tuple(tensors)


class TensorParallelGroup(Channels[int]):
    """By other rank of a replica: sums, and rows put together.

    Each rank sends its part to all and adds up in the order of ranks: the sums are the same bits everywhere,
    so that all go on with the same numbers. A replica has few ranks; with many a ring would move less.
    """

    def __init__(self, rank: int, ranks: int, heartbeat: Heartbeat) -> None:
        super().__init__()
        self._rank, self._ranks, self._heartbeat = rank, ranks, heartbeat

    def all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self._all(x)
        total = first.clone() if first is x else first
        for other in others:
            total += other
        return total

    def all_gather(self, x: Tensor) -> Tensor:
        """Side by side along the last dimension, in the order of ranks."""
        return torch.cat(self._all(x), dim=-1)

    def _all(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        parts = [x if rank == self._rank else torch.empty_like(x) for rank in range(self._ranks)]
        flat = [part.view(-1).view(torch.uint8) for part in parts]
        for begin in range(0, flat[self._rank].numel(), MESSAGE_BYTES):
            some = slice(begin, begin + MESSAGE_BYTES)
            for sender in self.senders.values():
                sender.send(flat[self._rank][some])
            for rank, receiver in self.receivers.items():
                with self._heartbeat.waiting():
                    message = receiver.recv()
                with message:
                    flat[rank][some] = torch.frombuffer(message[0], dtype=torch.uint8)
        return parts
