"""A prefill worker: all slices, and prompts to compute while others decode."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lamina.cluster.front_end_link import Context
from lamina.cluster.heartbeat import FOREVER_S
from lamina.cluster.kv_pull import CALLED_OFF, PieceHeader, piece_tokens
from lamina.cluster.meeting import Meeting
from lamina.cluster.messages import Compute, Forget, PrefillFailed, Weights
from lamina.convert import Conversion
from lamina.fhbn import ChannelError
from lamina.fhbn.channel import Sender
from lamina.model import Prefill, PromptRun, PromptTokens
from lamina.model.prefill import CHUNK
from lamina.operators import Attended
from lamina.pipeline.prompt_calls import fitting


@dataclass
class PrefillJob:
    """A sequence whose KV is to be computed: of the tokens from `shared` on, for some attention workers."""

    name: int
    text: Tensor
    shared: int
    to: list[int]
    left: int = 0  # tokens of layers that each of them has to be sent
    needed: bool = True
    run: PromptRun = field(init=False)
    layers_sent: int = 0  # layers of the tokens under way that have been sent: a call may be made again

    def __post_init__(self) -> None:
        self.run = PromptRun(len(self.text))


class PrefillRole:
    """A worker that computes prompts and sends their K and V, layer by layer, to attention workers.

    Those that wait and take no more than a chunk together are computed together, a longer one by itself; but
    after each of its chunks those that fit into one have a turn. Attention workers take KV when they have
    nothing else to do; until then a send waits, and the prompts with it.
    """

    def __init__(
        self, context: Context, attended: Attended, conversion: Conversion, weights: Weights
    ) -> None:
        self._config, self._front, _, self._heartbeat = context
        self._partition = self._config.partition
        slices = weights if isinstance(weights, list) else conversion.bind(weights)
        self._prefill = Prefill(slices[:-1], attended, kv_dtype=self._config.kv_dtype)
        self._sights = [op.sight for op in conversion.attentions]
        self.senders: dict[int, Sender] = {}  # by attention worker
        # Requests of the front end, in order, and those being computed.
        self._waiting: dict[int, PrefillJob] = {}
        self._current: list[PrefillJob] = []
        self._behind: PrefillJob | None = None  # the long one that lets others pass
        self._front.take = self._take

    def meet(self, meeting: Meeting) -> None:
        meeting.of_prefill_worker(self.senders)

    def abort(self) -> None:
        """Do nothing: no GPU waits for prefill."""

    def part(self) -> None:
        for sender in self.senders.values():
            sender.close()
        self.senders.clear()

    def regroup(self) -> None:
        """Drop all work and be ready for new requests."""
        self._waiting.clear()
        self._current, self._behind = [], None

    def work(self) -> None:
        while True:
            while not self._waiting:
                self._front.receive()
            self._listen()
            first = next(iter(self._waiting.values()))
            if len(first.text) > CHUNK:
                self._compute_long(self._waiting.pop(first.name))
            else:
                self._compute(self._fitting())

    def _fitting(self) -> list[PrefillJob]:
        """Return the first waiting jobs that fit into one chunk."""
        jobs = list(self._waiting.values())
        return [self._waiting.pop(jobs[at].name) for at in fitting([len(job.text) for job in jobs], CHUNK)]

    def _listen(self) -> None:
        self._front.look()

    def _take(self, message: Compute | Forget) -> None:
        if isinstance(message, Compute):
            text = torch.from_numpy(message.text.astype(np.int64))
            added = PrefillJob(message.name, text, message.shared, message.to)
            added.left = sum(len(text) - self._first(added, layer) for layer in range(len(self._sights)))
            self._waiting[message.name] = added
            return
        for job in (*self._current, self._behind, self._waiting.get(message.name)):
            if job and job.name == message.name:
                job.needed = False

    def _compute(self, jobs: list[PrefillJob]) -> None:
        self._current = jobs
        if needed := [job for job in jobs if job.needed and job.left]:
            self._call(needed)
        for job in jobs:
            self._call_off(job)

    def _compute_long(self, job: PrefillJob) -> None:
        self._behind = job
        while job.needed and job.left:
            self._current = [job]
            self._call([job])
            self._listen()
            if job.needed and (passing := self._fitting()):
                self._compute(passing)
        self._behind = None
        self._call_off(job)

    def _call(self, jobs: list[PrefillJob]) -> None:
        """Compute their next tokens together; if that fails, one by one, so that one prompt fails alone.

        Nothing else is lost, as when prompts are computed in one process.
        """
        some = [PromptTokens(job.run, job.text[job.run.done :][:CHUNK]) for job in jobs]
        lengths = [len(one.tokens) for one in some]
        self._heartbeat.start("prompt", sum(lengths))
        try:
            self._prefill.call(some, None, partial(self._deliver_all, jobs, lengths))
        except ChannelError:
            raise
        except Exception as error:
            self._heartbeat.stop()
            for job in jobs if len(jobs) > 1 else ():
                self._call([job])
            if len(jobs) == 1:
                self._fail(jobs[0], str(error))
        finally:
            self._heartbeat.stop()
        for job in jobs:
            job.layers_sent = 0

    def _fail(self, job: PrefillJob, why: str) -> None:
        if job.left:
            self._front.send(PrefillFailed(job.name, why))
        job.needed = False

    def _call_off(self, job: PrefillJob) -> None:
        """Cancel the rest of a job that has not been sent completely."""
        for worker in job.to if job.left else ():
            self._send(worker, PieceHeader(job.name, CALLED_OFF, 0))

    def _deliver_all(self, jobs: list[PrefillJob], lengths: list[int], layer: int, *kv: Tensor) -> None:
        self._heartbeat.stop()  # waiting is not working
        parts = zip(*(torch.split(one, lengths) for one in kv), strict=True)
        for job, part in zip(jobs, parts, strict=True):
            if layer == job.layers_sent:
                self._deliver(job, layer, job.run.done, *part)
                job.layers_sent += 1
        self._heartbeat.start("prompt", sum(lengths))

    def _deliver(self, job: PrefillJob, layer: int, begin: int, *kv: Tensor) -> None:
        """Send the requested KV of a chunk and layer in pieces, to all workers in turns."""
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

    def _first(self, job: PrefillJob, layer: int) -> int:
        """Return the first token that attention workers want: it is neither shared nor out of sight."""
        return max(job.shared, self._sights[layer].first(len(job.text)))

    def _heads(self, worker: int) -> slice:
        kv_heads = self._partition.kv_of(self._partition.of_worker(worker))
        return slice(kv_heads.start, kv_heads.stop)

    def _send(self, worker: int, head: PieceHeader, *parts: Tensor) -> None:
        self.senders[worker].send(head.to_wire(), *parts, timeout_s=FOREVER_S)
