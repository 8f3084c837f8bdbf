"""From replica to replica, or stage to stage: what the next one needs to go on with a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from lamina.convert import Conversion
from lamina.convert.program import Value
from lamina.convert.spec import BATCH
from lamina.fhbn.channel import Message, Receiver, Sender
from lamina.model.prefill import CHUNK, Passed
from lamina.pipeline.batch_delta import Ints


class StageChannels:
    """The channels from the place before and those to the place after: prompts have their own, because stages
    compute them in another order than they run slices.
    """

    def __init__(self, conversion: Conversion, heads: int, most_rows: int) -> None:
        self._contexts = [piece.program.context for piece in conversion.slices]
        self._heads, self._head_dim = heads, conversion.attentions[0].head_dim
        self._dtype = conversion.dtype
        widest = max(sum(value.spec.bytes for value in context) for context in self._contexts)
        self.attended_bytes = heads * self._head_dim * self._dtype.itemsize  # of a row
        self.message_bytes = (widest + self.attended_bytes) * max(most_rows, CHUNK)
        # By use: "ring" or "prompts".
        self.senders: dict[str, Sender] = {}
        self.receivers: dict[str, Receiver] = {}

    def close(self) -> None:
        """All of them."""
        for end in (*self.senders.values(), *self.receivers.values()):
            end.close()
        self.senders.clear()
        self.receivers.clear()

    def send(self, *tensors: Tensor) -> None:
        """To the next place."""
        self.senders["ring"].send(*(tensor.contiguous() for tensor in tensors))

    def pass_on(self, passed: Passed) -> None:
        """A prompt's chunk, to the next stage."""
        assert passed.attended is not None
        self.senders["prompts"].send(*(item.contiguous() for item in (*passed.context, passed.attended)))

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
        result: list[Tensor] = []
        for number, value in enumerate(context):
            assert value.spec.dims[0] == BATCH
            flat = torch.frombuffer(message[number], dtype=value.spec.dtype).clone()
            result.append(flat.view(-1, *value.spec.row_shape[1:]))
        return tuple(result)
