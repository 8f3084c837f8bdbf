"""Connecting workers and opening their channels, in an order without deadlocks.

Attention workers connect to the model workers one after the other, and to the prefill workers likewise; then
model workers to each other, pair by pair in ascending order, the lower number listening.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from lamina.cluster.front_end_link import FrontEndLink
from lamina.cluster.heartbeat import FOREVER_S, Heartbeat
from lamina.cluster.kv_pull import PIECE_SLOTS, piece_bytes
from lamina.cluster.messages import Peers, WorkerConfig
from lamina.fhbn import Link, Listener, connect
from lamina.fhbn.channel import Receiver, Sender
from lamina.fhbn.control import Deadline
from lamina.fhbn.device import DeviceReceiver, DeviceSender
from lamina.fhbn.errors import ChannelClosedError
from lamina.fhbn.tensors import Part, copies, views
from lamina.gpu import is_gpu, put, tensors_on
from lamina.kv import ArenaShape
from lamina.model.prefill import CHUNK, Passed
from lamina.pipeline import EngineError
from lamina.pipeline.batch_rows import NONE, Ints
from lamina.pipeline.partition import Partition, within

if TYPE_CHECKING:
    from lamina.convert import Conversion

K = TypeVar("K", bound=Hashable)
Rows = slice | Tensor
ALL = slice(None)
MESSAGE_BYTES = 1 << 20  # of a sum's part


AnySender: TypeAlias = Sender | DeviceSender
AnyReceiver: TypeAlias = Receiver | DeviceReceiver


class Channels(Generic[K]):
    """Ends of channels to and from others: the host's, or a GPU's, which are used on its stream."""

    def __init__(self) -> None:
        self.senders: dict[K, AnySender] = {}
        self.receivers: dict[K, AnyReceiver] = {}

    def _on_gpu(self) -> Iterator[DeviceSender | DeviceReceiver]:
        for end in (*self.senders.values(), *self.receivers.values()):
            if isinstance(end, DeviceSender | DeviceReceiver):
                yield end

    def check(self) -> None:
        """Raise a GPU's error so far. The host's ends raise theirs when they are used."""
        for end in self._on_gpu():
            end.check()

    def abort(self) -> None:
        """End what waits on a GPU for others. Closing waits for all that is on it."""
        for end in self._on_gpu():
            with contextlib.suppress(ChannelClosedError):  # by another thread, meanwhile
                end.abort()

    def close(self) -> None:
        self.abort()
        for end in (*self.senders.values(), *self.receivers.values()):
            end.close()
        self.senders.clear()
        self.receivers.clear()


def rows_in(rows: Rows, batch: int) -> int:
    """Return how many rows of a batch these are."""
    return len(range(batch)[rows]) if isinstance(rows, slice) else len(rows)


class Route(NamedTuple):
    """One piece of a batch, and the attention worker that it goes to."""

    worker: int
    rows: Rows
    heads: slice  # of this model worker's
    kv_heads: slice


class AttentionChannels(Channels[int]):
    """Channels to each attention worker; q, k and v go out in pieces, outputs come back."""

    def __init__(self, partition: Partition, rank: int, place: torch.device) -> None:
        super().__init__()
        self._partition = partition
        self._rank, self._place = rank, place
        self._undivided = partition.workers == 1 and partition.chunks == 1

    def routes(self, pools: Ints) -> list[Route]:
        """Return the pieces of a batch whose requests are in these pools, in the order in which they are
        sent.
        """
        routes: list[Route] = []
        for worker in self.senders:
            own = self._rows(pools, worker)
            count = rows_in(own, len(pools))
            for piece in self._partition.pieces(self._rank, worker):
                part = piece.rows(count)
                if part.start == part.stop:
                    continue
                rows: Rows = part if isinstance(own, slice) else own[part]
                routes.append(Route(worker, rows, *self._local(piece.heads)))
        return routes

    def _rows(self, pools: Ints, worker: int) -> Rows:
        if self._partition.along == "heads":
            return ALL
        return put(torch.from_numpy(np.flatnonzero(pools == worker)), self._place)

    def _local(self, heads: range) -> tuple[slice, slice]:
        """Return these queries and their KV heads among those of this worker."""
        own, kv_of = self._partition.of_rank(self._rank), self._partition.kv_of
        return within(heads, own), within(kv_of(heads), kv_of(own))

    def send(self, routes: Sequence[Route], q: Tensor | None, kv: Sequence[Tensor] | None) -> None:
        """Send a layer's tensors, or some of them, to all workers that have a part in it."""
        for route in routes:
            parts = [] if q is None else [self._part(q, route.rows, route.heads)]
            parts += [] if kv is None else [self._part(tensor, route.rows, route.kv_heads) for tensor in kv]
            self.senders[route.worker].send(*parts)

    def _part(self, tensor: Tensor, rows: Rows, heads: slice) -> Tensor:
        return tensor if self._undivided else tensor[rows, heads].contiguous()

    def collect(self, routes: Sequence[Route], like: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
        """Receive the batch's attention outputs: [rows, heads, numbers of a value] of this worker's heads."""
        if self._undivided:
            # Where it lies: its slot is free when the tensor is not used any more.
            return views(self.receivers[routes[0].worker].recv(), Part(dtype, like))[0]
        out = torch.empty(like, dtype=dtype, device=self._place)
        for route in routes:
            rows, heads = route.rows, route.heads
            shape = (rows_in(rows, like[0]), heads.stop - heads.start, like[2])
            with self.receivers[route.worker].recv() as message:
                out[rows, heads] = views(message, Part(dtype, shape))[0]
        return out

    def prompts(self, by_worker: Mapping[int, Sequence[slice]], *kv: Tensor) -> None:
        """Send each attention worker the KV of the prompt tokens that it needs."""
        for worker, sender in self.senders.items():
            rows = by_worker.get(worker)
            if rows and self._partition.gives_prompts(self._rank, worker):
                _, local = self._local(self._partition.of_both(self._rank, worker))
                sender.send(*(torch.cat([one[some, local] for some in rows]) for one in kv))


class StageChannels(Channels[str]):
    """Channels to the next place and from the previous one, replica or stage.

    By use, "ring" or "prompts": these have their own, because stages compute them in another order than they
    run slices.
    """

    def __init__(self, conversion: Conversion, heads: int, most_rows: int) -> None:
        super().__init__()
        self._contexts = [piece.program.context for piece in conversion.slices]
        self._heads, self._output_dim = heads, conversion.attentions[0].output_dim
        self._dtype = conversion.dtype
        widest = max(sum(value.spec.bytes for value in context) for context in self._contexts)
        self.attended_bytes = heads * self._output_dim * self._dtype.itemsize  # of a row
        self.message_bytes = (widest + self.attended_bytes) * max(most_rows, CHUNK)

    def send(self, *tensors: Tensor) -> None:
        self.senders["ring"].send(*(tensor.contiguous() for tensor in tensors))

    def pass_on(self, passed: Passed) -> None:
        assert passed.attended is not None
        self.senders["prompts"].send(*(part.contiguous() for part in (*passed.context, passed.attended)))

    def context(self, slice_: int, rows: int) -> tuple[Tensor, ...]:
        """Receive the context that a slice begins with."""
        with self.receivers["ring"].recv() as message:
            return tuple(copies(message, *self._parts(slice_, rows)))

    def tokens(self, rows: int) -> Ints:
        """Receive the tokens chosen at the previous place."""
        with self.receivers["ring"].recv() as message:
            return copies(message, Part(torch.int64, (rows,)))[0].cpu().numpy()

    def passed(self, slice_: int, tokens: int) -> Passed:
        """Receive the context of prompt tokens from the previous stage."""
        attended = Part(self._dtype, (tokens, self._heads, self._output_dim))
        with self.receivers["prompts"].recv() as message:
            *context, last = copies(message, *self._parts(slice_, tokens), attended)
        return Passed(tuple(context), last)

    def _parts(self, slice_: int, rows: int) -> list[Part]:
        """Return a context's parts; the first dimension is the batch's."""
        return [Part(one.spec.dtype, (rows, *one.spec.row_shape[1:])) for one in self._contexts[slice_]]


class TensorParallelGroup(Channels[int]):
    """All-reduce and all-gather among the ranks of a replica.

    Each rank sends its part to all and adds up in the order of ranks: the sums are the same bits everywhere,
    so that all continue with the same numbers. A replica has few ranks; with many a ring would move less.
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
        """Concatenate along the last dimension, in the order of ranks."""
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
                part = flat[rank][some]
                with message:
                    part[:] = views(message, Part(part.dtype, tuple(part.shape)))[0]
        return parts


# More messages than a batch has in flight: then no worker waits for room while others wait for it.
_SPARE_SLOTS = 2
# How often a worker that waits for others looks for messages of the front end.
_LOOK_S = 0.05
# A worker that has connected says its name at once, unless it is stopped.
_GREETING_S = 5.0
# A kernel waits for a message so many times as long as a worker may be silent: the front end, which knows who
# advances, gives up first. The variable overrides it, in seconds.
_KERNEL_PATIENCE = 2
_LONGEST = "LAMINA_FHBN_LONGEST_S"


def kernel_limit_s(timeout_s: float) -> float:
    """Return how long a kernel may wait for a message, after which its end has failed."""
    named = os.environ.get(_LONGEST, "")
    try:
        limit_s = float(named or _KERNEL_PATIENCE * timeout_s)
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s <= FOREVER_S:
        raise EngineError("layout-longest-wait", f"{_LONGEST}={named} is no time: give seconds above 0")
    return limit_s


class Channel(NamedTuple):
    """A channel between two model workers, and its use."""

    use: str  # "ranks", "ring" or "prompts"
    source: int
    target: int


class Meeting:
    """One worker's view of it.

    On the channels that are opened workers wait for each other without a limit of their own: the front end,
    which gets reports from all, decides which one is lost. Then it hangs up, and others notice. Only kernels
    on a GPU have a limit, a longer one than the front end's, so that no GPU waits for good.
    """

    def __init__(self, config: WorkerConfig, front: FrontEndLink, listener: Listener, peers: Peers) -> None:
        self._config, self._front = config, front
        self._listener, self._addresses = listener, peers.addresses
        # Not the config's: there may be more attention workers than when this one began.
        self._partition, self._schedule = front.call.partition, config.schedule
        self._came: dict[str, Link] = {}
        # Of its ends on a GPU: what comes after one that has failed must not go out by another.
        self._fate = torch.zeros(1, dtype=torch.int32, device=tensors_on(config.device))
        self.networks: dict[str, str] = {}  # what moves the messages, and why it is no better one
        # Where an attention worker's copy of its KV is, if it has one, and what the copy has.
        neighbour = (config.number + 1) % self._partition.workers
        self.kv_copy = config.kv_copy or peers.kv_copies.get(f"attention {neighbour}", "")
        self.kv_copied = NONE, NONE

    def of_attention_worker(
        self, channels: Channels[int], pulled: Callable[[Receiver], None], shape: ArenaShape
    ) -> None:
        """Open what comes from each model worker, what goes to it, and what prefill workers have."""
        vectors = self._partition.heads + shape.vectors * self._partition.kv_heads
        row_bytes = vectors * shape.head_dim * shape.dtype.itemsize
        for number in range(self._schedule.places * self._partition.ranks):
            with self._connect(f"model {number}") as link:
                most = row_bytes * max(self._config.most_rows, CHUNK)
                channels.receivers[number] = self._receiver(link, "qkv", most)
                channels.senders[number] = self._sender(link, "out")
        most = piece_bytes(shape.arriving_bytes)
        for number in range(self._config.layout.prefill_workers):
            with self._connect(f"prefill {number}") as link:
                pulled(self._host_receiver(link, "kv", most, PIECE_SLOTS))

    def of_prefill_worker(self, senders: dict[int, Sender]) -> None:
        for _ in range(self._partition.workers):
            with self._accept() as link:
                senders[int(link.peer.removeprefix("attention "))] = self._host_sender(link, "kv")

    def of_model_worker(
        self, attention: AttentionChannels, group: TensorParallelGroup, stages: StageChannels
    ) -> None:
        partition, config = self._partition, self._config
        ends: dict[int, tuple[AnySender, AnyReceiver]] = {}
        for _ in range(partition.workers):
            with self._accept() as link:
                worker = int(link.peer.removeprefix("attention "))
                sender = self._sender(link, "qkv")
                ends[worker] = sender, self._receiver(link, "out", stages.attended_bytes * config.most_rows)
        for worker in sorted(ends):
            if partition.pieces(config.number % partition.ranks, worker):
                attention.senders[worker], attention.receivers[worker] = ends[worker]
        for low, high in self._pairs():
            if config.number in (low, high):
                with self._to(low, high) as link:
                    self._open(link, self._channels(low, high), group, stages)

    def _open(
        self, link: Link, channels: list[Channel], group: TensorParallelGroup, stages: StageChannels
    ) -> None:
        ranks = self._partition.ranks
        for use, source, target in channels:
            if source == self._config.number:
                sender = self._sender(link, use)
                if use == "ranks":
                    group.senders[target % ranks] = sender
                else:
                    stages.senders[use] = sender
            elif use == "ranks":
                group.receivers[source % ranks] = self._receiver(link, use, MESSAGE_BYTES)
            else:
                stages.receivers[use] = self._receiver(link, use, stages.message_bytes)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        count = self._schedule.places * self._partition.ranks
        for low in range(count):
            for high in range(low + 1, count):
                if self._channels(low, high):
                    yield low, high

    def _channels(self, low: int, high: int) -> list[Channel]:
        """Return the channels between two model workers, the same for both."""
        places, ranks = self._schedule.places, self._partition.ranks
        (low_place, low_rank), (high_place, high_rank) = divmod(low, ranks), divmod(high, ranks)
        both = [(low, high), (high, low)]
        if low_place == high_place:
            return [Channel("ranks", *ends) for ends in both]
        if not self._schedule.migrates or low_rank != high_rank:
            return []
        after = {low: (low_place + 1) % places, high: (high_place + 1) % places}
        result = [Channel("ring", *ends) for ends in both if after[ends[0]] == ends[1] // ranks]
        if self._schedule.stages > 1 and after[low] == high_place:
            result.append(Channel("prompts", low, high))
        return result

    def _to(self, low: int, high: int) -> Link:
        if self._config.number == high:
            return self._connect(f"model {low}")
        # A worker that came before its turn waits for it.
        while f"model {high}" not in self._came:
            link = self._accept()
            self._came[link.peer] = link
        return self._came.pop(f"model {high}")

    def _accept(self) -> Link:
        """Return the next worker that connects, unless the front end regroups meanwhile."""
        deadline = Deadline(self._config.layout.timeout_s)
        while not self._listener.visited(min(_LOOK_S, deadline.left_s)) and deadline.left_s:
            self._front.look()
        return self._listener.accept(min(_GREETING_S, deadline.left_s))

    def close(self) -> None:
        """Hang up on workers that came and were not waited for."""
        for link in self._came.values():
            link.close()

    def _connect(self, name: str) -> Link:
        config = self._config
        return connect(
            self._addresses[name], name=config.name, secret=config.secret, timeout_s=config.layout.timeout_s
        )

    def _sender(self, link: Link, use: str) -> AnySender:
        """Open a sender of tensors on their device."""
        config = self._config
        sender: AnySender
        if is_gpu(config.device):
            sender = link.device_sender(
                use,
                network=config.layout.network,
                timeout_s=kernel_limit_s(config.layout.timeout_s),
                device=config.device,
            )
            sender.share(self._fate)
        else:
            sender = self._host_sender(link, use)
        self.networks[sender.engine] = link.why
        return sender

    def _receiver(self, link: Link, use: str, message_bytes: int) -> AnyReceiver:
        config = self._config
        messages = 2 if config.streams else self._partition.chunks
        slots = messages * self._schedule.batches + _SPARE_SLOTS
        if not is_gpu(config.device):
            return self._host_receiver(link, use, message_bytes, slots)
        receiver = link.device_receiver(
            use,
            message_bytes=message_bytes,
            slots=slots,
            network=config.layout.network,
            timeout_s=kernel_limit_s(config.layout.timeout_s),
            device=config.device,
        )
        receiver.share(self._fate)
        return receiver

    def _host_sender(self, link: Link, use: str) -> Sender:
        network, spin_s = self._config.layout.network, self._config.spin_s
        return link.sender(use, network=network, timeout_s=FOREVER_S, spin_s=spin_s)

    def _host_receiver(self, link: Link, use: str, message_bytes: int, slots: int) -> Receiver:
        config = self._config
        return link.receiver(
            use,
            message_bytes=message_bytes,
            slots=slots,
            network=config.layout.network,
            timeout_s=FOREVER_S,
            spin_s=config.spin_s,
        )
