"""A prefill worker: all slices, and prompts to compute while others decode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lamina.cluster.front_end import Context
from lamina.cluster.heartbeat import FOREVER_S
from lamina.cluster.kv_pull import CALLED_OFF, PieceHeader, piece_tokens
from lamina.cluster.meeting import Channels, Meeting
from lamina.cluster.messages import Compute, Forget, PrefillFailed, Weights
from lamina.convert import Conversion
from lamina.fhbn import ChannelError
from lamina.model import Prefill
from lamina.model.prefill import CHUNK
from lamina.operators import Attended


@dataclass
class PrefillJob:
    """A sequence whose KV is to be computed: of the tokens from `shared` on, for some attention workers."""

    name: int
    text: Tensor
    shared: int
    to: list[int]
    left: int = 0  # tokens of layers that each of them has to be sent
    wanted: bool = True


class PrefillRole:
    """Computes prompts and sends their K and V, layer by layer, to the attention workers that want it.

    One at a time; but after each chunk of a long one those that wait and take no more than a chunk together.
    Attention workers take it when they have nothing else to do; until then a send waits, and the prompt with
    it.
    """

    def __init__(
        self, context: Context, attended: Attended, conversion: Conversion, weights: Weights
    ) -> None:
        self._config, self._front, _, self._heartbeat = context
        self._partition = self._config.partition
        slices = weights if isinstance(weights, list) else conversion.bind(weights)
        self._prefill = Prefill(slices[:-1], attended)
        self._sights = [op.sight for op in conversion.attentions]
        self.channels: Channels[int] = Channels()
        # What the front end has asked for, in that order, and what of it is being computed.
        self._waiting: dict[int, PrefillJob] = {}
        self._current: PrefillJob | None = None
        self._behind: PrefillJob | None = None  # the long one that lets others pass
        self._front.take = self._take

    def meet(self, meeting: Meeting) -> None:
        meeting.of_prefill_worker(self.channels.senders)

    def part(self) -> None:
        self.channels.close()

    def regroup(self) -> None:
        """Be ready to begin again, with what is asked for from now on."""
        self._waiting.clear()
        self._current = self._behind = None

    def work(self) -> None:
        while True:
            while not self._waiting:
                self._front.receive()
            self._current = self._waiting.pop(next(iter(self._waiting)))
            self._listen()
            self._compute(self._current)

    def _let_pass(self, job: PrefillJob) -> None:
        """Short prompts do not wait for the end of a long one."""
        if self._behind or len(job.text) <= CHUNK:
            return
        left, self._behind = CHUNK, job
        for other in list(self._waiting.values()):
            if len(other.text) <= left and other.name in self._waiting:
                left -= len(other.text)
                self._current = self._waiting.pop(other.name)
                self._compute(other)
        self._current, self._behind = job, None

    def _listen(self) -> None:
        self._front.look()

    def _take(self, message: Compute | Forget) -> None:
        if isinstance(message, Compute):
            text = torch.from_numpy(message.text.astype(np.int64))
            asked = PrefillJob(message.name, text, message.shared, message.to)
            asked.left = sum(len(text) - self._first(asked, layer) for layer in range(len(self._sights)))
            self._waiting[message.name] = asked
            return
        for job in (self._current, self._behind, self._waiting.get(message.name)):
            if job and job.name == message.name:
                job.wanted = False

    def _compute(self, job: PrefillJob) -> None:
        chunks = self._prefill.run(job.text, None, partial(self._deliver, job))
        while job.wanted and job.left:
            self._heartbeat.start("prompt", min(CHUNK, len(job.text)))
            try:
                next(chunks)
            except ChannelError:
                raise
            except Exception as error:
                # Nothing is lost but this prompt, as when it is computed in one process.
                if job.left:
                    self._front.send(PrefillFailed(job.name, str(error)))
                break
            finally:
                self._heartbeat.stop()
            self._listen()
            self._let_pass(job)
        if job.left:
            for worker in job.to:
                self._send(worker, PieceHeader(job.name, CALLED_OFF, 0))

    def _deliver(self, job: PrefillJob, layer: int, begin: int, *kv: Tensor) -> None:
        """What of a chunk and layer is wanted, in pieces, to all in turns."""
        self._heartbeat.stop()  # waiting is not working
        first = max(self._first(job, layer) - begin, 0)
        heads = {worker: self._heads(worker) for worker in job.to}
        tokens = len(kv[0])
        most = piece_tokens(len(kv) * kv[0][0, heads[job.to[0]]].nbytes)
        for start in range(first, tokens, most):
            rows = slice(start, start + most)
            for worker in job.to:
                parts = (item[rows, heads[worker]].contiguous() for item in kv)
                self._send(worker, PieceHeader(job.name, layer, begin + start), *parts)
        job.left -= max(tokens - first, 0)
        self._heartbeat.start("prompt", tokens)

    def _first(self, job: PrefillJob, layer: int) -> int:
        """The first token that attention workers want: it is neither shared nor out of sight."""
        return max(job.shared, self._sights[layer].first(len(job.text)))

    def _heads(self, worker: int) -> slice:
        mine = self._partition.kv_of(self._partition.of_worker(worker))
        return slice(mine.start, mine.stop)

    def _send(self, worker: int, head: PieceHeader, *parts: Tensor) -> None:
        self.channels.senders[worker].send(head.to_wire(), *parts, timeout_s=FOREVER_S)
