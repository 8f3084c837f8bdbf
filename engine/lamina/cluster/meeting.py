"""How workers connect and open their channels, in an order in which no two wait for each other.

Attention workers connect to the model workers one after the other, and to the prefill workers likewise; then
model workers to each other, pair by pair in ascending order, the lower number listening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from lamina.cluster.channels import (
    MESSAGE_BYTES,
    AttentionChannels,
    Channels,
    StageChannels,
    TensorParallelGroup,
)
from lamina.cluster.config import WorkerConfig
from lamina.cluster.front_end import FrontEnd
from lamina.cluster.kv_pull import PIECE_SLOTS, piece_bytes
from lamina.fhbn import Link, Listener, connect
from lamina.fhbn.channel import Receiver, Sender
from lamina.fhbn.deadline import Deadline
from lamina.model.prefill import CHUNK

# More messages than a batch has in flight: then no worker waits for room while others wait for it.
_SPARE_SLOTS = 2
# How often a worker that waits for others looks for messages of the front end.
_LOOK_S = 0.05
# A worker that has connected says its name at once, unless it is stopped.
_GREETING_S = 5.0


class Channel(NamedTuple):
    """A channel between two model workers, and its use."""

    use: str  # "ranks", "ring" or "prompts"
    source: int
    target: int


class Meeting:
    """One worker's view of it."""

    def __init__(
        self, config: WorkerConfig, front: FrontEnd, listener: Listener, addresses: dict[str, str]
    ) -> None:
        self._config, self._front = config, front
        self._listener, self._addresses = listener, addresses
        # Not the config's: there may be more attention workers than when this one began.
        self._partition, self._schedule = front.call.partition, config.schedule
        self._came: dict[str, Link] = {}
        self.network = ""  # what moves the messages: that of the first channel

    def of_attention_worker(
        self, channels: Channels[int], pulled: Callable[[Receiver], None], dtype: torch.dtype, head_dim: int
    ) -> None:
        """Open what comes from each model worker, what goes to it, and what prefill workers have."""
        row_bytes = head_dim * dtype.itemsize * (self._partition.heads + 2 * self._partition.kv_heads)
        for number in range(self._schedule.places * self._partition.ranks):
            with self._connect(f"model {number}") as link:
                most = row_bytes * max(self._config.most_rows, CHUNK)
                channels.receivers[number] = self._receiver(link, "qkv", most)
                channels.senders[number] = self._sender(link, "out")
        kv_heads = len(self._partition.of_worker(self._config.number))
        most = piece_bytes(2 * kv_heads * head_dim * dtype.itemsize)
        for number in range(self._config.layout.prefill_workers):
            with self._connect(f"prefill {number}") as link:
                pulled(self._receiver(link, "kv", most, PIECE_SLOTS))

    def of_prefill_worker(self, senders: dict[int, Sender]) -> None:
        for _ in range(self._partition.workers):
            with self._accept() as link:
                senders[int(link.peer.removeprefix("attention "))] = self._sender(link, "kv")

    def of_model_worker(
        self, attention: AttentionChannels, group: TensorParallelGroup, stages: StageChannels
    ) -> None:
        partition, config = self._partition, self._config
        ends: dict[int, tuple[Sender, Receiver]] = {}
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
        """What two model workers have to say to each other, the same for both."""
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
        """The next worker that connects, unless the front end regroups meanwhile."""
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

    def _sender(self, link: Link, use: str) -> Sender:
        layout = self._config.layout
        sender = link.sender(
            use, network=layout.network, timeout_s=layout.timeout_s, spin_s=self._config.spin_s
        )
        self.network = self.network or sender.engine
        return sender

    def _receiver(self, link: Link, use: str, message_bytes: int, slots: int | None = None) -> Receiver:
        config, layout = self._config, self._config.layout
        messages = 2 if config.streams else self._partition.chunks
        return link.receiver(
            use,
            message_bytes=message_bytes,
            slots=slots or messages * self._schedule.batches + _SPARE_SLOTS,
            network=layout.network,
            timeout_s=layout.timeout_s,
            spin_s=config.spin_s,
        )
