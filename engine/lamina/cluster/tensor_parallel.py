"""How the model workers of a replica agree: sums and rows put together, over channels like all the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.cluster.heartbeat import Heartbeat
from lamina.fhbn.channel import Receiver, Sender

MESSAGE_BYTES = 1 << 20


class TensorParallelGroup:
    """All ranks' tensors at every rank, and what comes of them.

    Everybody sends its own to everybody and adds up in the order of ranks: the sums are the same bits
    everywhere, so that all go on with the same numbers. A replica has few ranks; with many a ring would move
    less.
    """

    def __init__(self, rank: int, ranks: int, heartbeat: Heartbeat) -> None:
        self._rank, self._ranks, self._heartbeat = rank, ranks, heartbeat
        # To and from each other rank.
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}

    def close(self) -> None:
        """All channels."""
        for end in (*self.senders.values(), *self.receivers.values()):
            end.close()
        self.senders.clear()
        self.receivers.clear()

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks."""
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
        result = [x if rank == self._rank else torch.empty_like(x) for rank in range(self._ranks)]
        flat = [item.view(-1).view(torch.uint8) for item in result]
        for begin in range(0, flat[self._rank].numel(), MESSAGE_BYTES):
            part = slice(begin, begin + MESSAGE_BYTES)
            for sender in self.senders.values():
                sender.send(flat[self._rank][part])
            for rank, receiver in self.receivers.items():
                with self._heartbeat.waiting():
                    message = receiver.recv()
                with message:
                    flat[rank][part] = torch.frombuffer(message[0], dtype=torch.uint8)
        return result
