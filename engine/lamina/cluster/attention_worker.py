"""An attention worker: a KV arena and attention over it; no weights but sinks and what absorbs, if any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from lamina import gpu
from lamina.cluster.front_end_link import Context
from lamina.cluster.heartbeat import FOREVER_S
from lamina.cluster.kv_pull import KvPull
from lamina.cluster.meeting import Channels, Meeting
from lamina.cluster.messages import ArenaState, KvStored, Plan
from lamina.fhbn.tensors import Part, views
from lamina.kv import Arena
from lamina.kv.copy import KvCopy, new_file, path_of
from lamina.operators import Attended
from lamina.pipeline import KvSlots, Turn
from lamina.pipeline.arenas import AnyWorker, arena_shape, worker_over
from lamina.pipeline.arenas import plan as plan_attention
from lamina.pipeline.kv_slots import Arrival
from lamina.pipeline.partition import Piece, within
from lamina.pipeline.prompt_calls import Call

if TYPE_CHECKING:
    from lamina.attention.cpu import TensorWorker

LOOK_S = 0.05


class Unit(NamedTuple):
    """One piece of a batch's attention: from which rank it comes, and what computes it."""

    rank: int
    piece: Piece
    worker: AnyWorker
    attended: Attended  # of its heads


class AttentionRole:
    """A worker that serves one batch at a time, layer by layer, in the schedule's order."""

    def __init__(self, context: Context, attended: Attended) -> None:
        config, front, self._recorder, self._heartbeat = context
        self._config, self._front = config, front
        self._device = gpu.tensors_on(config.device)
        front.check = self._check
        self._schedule, self._partition = config.schedule, config.partition
        batches = self._schedule.batches
        self._attended, self._ops = attended.to(self._device), attended.attentions
        self._heads = self._partition.of_worker(config.number)
        self._kv_heads = self._partition.kv_of(self._heads)
        shape = arena_shape(attended, len(self._kv_heads), config.kv_dtype)
        self._arena = Arena(
            shape,
            config.arena_tokens,
            sequences=config.most_rows,
            overcommit=config.overcommit,
            device="meta" if attended.emulated else self._device,
        )
        if config.decode_only and not attended.emulated:
            self._arena.fill()
        self._kv_slots = KvSlots(self._arena, batches)
        self._units = [self._of_batch() for _ in range(batches)]
        self._running: list[list[Unit]] = [[] for _ in range(batches)]
        self._iterations = [0] * batches
        # Whether the sequences have room for the tokens of the iteration that was begun last, and whether
        # that iteration was broken off and will be begun again.
        self._extended, self._again = [False] * batches, [False] * batches
        # Whose prompts model workers compute, until all of their KV has come.
        self._coming: dict[int, Arrival] = {}
        self._channels: Channels[int] = Channels()  # by model worker
        self._copy: KvCopy | None = None
        # Of sequences that the copy has and no batch yet, some may have ended while there was no worker.
        self._unbegun = set(range(batches))
        # Memory for the copy of another worker.
        self._offered = new_file("host") if config.layout.kv_copies == "worker" else None
        front.kv_copy = path_of(self._offered) if self._offered else ""
        # Receives KV from prefill workers, which always covers all heads of this worker.
        store, _ = self._worker(Piece(self._heads), attends=False)
        # One that is emulated decodes alone: nothing comes.
        self._pull = KvPull(
            cast("TensorWorker", store), self._arena, lambda name: front.send(KvStored(name)), front.look
        )

    def _of_batch(self) -> list[Unit]:
        return [
            Unit(rank, piece, *self._worker(piece))
            for rank in range(self._partition.ranks)
            for piece in self._partition.pieces(rank, self._config.number)
        ]

    def _worker(self, piece: Piece, *, attends: bool = True) -> tuple[AnyWorker, Attended]:
        config, heads = self._config, piece.heads
        attended = self._attended.of(slice(heads.start, heads.stop))
        worker = worker_over(
            self._arena,
            attended,
            within(self._partition.kv_of(heads), self._kv_heads),
            heads=len(heads),
            rows=config.most_rows if attends else 1,
            longest=config.max_positions if attends else 1,
            device=config.device,
            threads=1,
            shared=config.layout.devices.count(config.device) > 1,
        )
        return worker, attended

    def meet(self, meeting: Meeting) -> None:
        meeting.of_attention_worker(self._channels, self._pull.add, self._arena.shape)
        if self._config.layout.kv_copies == "none":
            return
        if self._copy is None or self._copy.path != meeting.kv_copy:  # that of a new worker is empty
            config = self._config
            self._copy = KvCopy(meeting.kv_copy, self._arena, config.most_rows, config.max_positions)
        meeting.kv_copied, self._pull.copy = self._copy.stored(), self._copy

    def abort(self) -> None:
        self._channels.abort()

    def part(self) -> None:
        self._pull.part()
        self._channels.close()

    def regroup(self) -> None:
        """Apply the plans that have come, so that the front end knows what is here: the KV stays."""
        for plan in self._front.left_over():
            self._apply(plan.batch, plan)
            self._kv_slots.expect(plan.delta)
        self._kv_slots.expect_none()  # their KV is computed anew
        self._coming.clear()
        if self._copy:
            self._copy.pause()
        for batch in range(self._schedule.batches):
            broken_off = batch in self._front.call.flying
            self._again[batch] = broken_off and (self._again[batch] or self._extended[batch])
            self._running[batch] = []
            self._arena.ended(batch)
            self._units[batch] = self._of_batch()  # the old ones may be in the middle of a layer

    def work(self) -> None:
        layers = len(self._ops)
        for turn in self._schedule.turns(self._front.call.cycle):
            if turn.slice == 0:
                self._begin(turn)
            if turn.slice == layers:
                self._arena.ended(turn.batch)
            elif self._running[turn.batch]:
                self._attend(turn)

    def _apply(self, batch: int, plan: Plan) -> list[Arrival]:
        if plan.afresh:
            self._kv_slots.forget(batch)
        if plan.active:
            self._extended[batch] = False
        if self._copy:
            self._copy.release(plan.delta.released.tolist())
        return self._kv_slots.apply(batch, plan.delta)

    def _begin(self, turn: Turn) -> None:
        """Begin a batch's iteration: joining and leaving sequences, slots of new tokens, and their owners."""
        batch = turn.batch
        self._pull.until(lambda wait_s: self._front.has_plan(batch, turn.cycle, wait_s))
        # What a GPU waits for may never come, and no thread waits for the GPU.
        while gpu.is_gpu(self._config.device) and not self._front.has_plan(batch, turn.cycle, LOOK_S):
            self._channels.check()
        plan = self._front.plan(batch, turn.cycle)
        self._iterations[batch] = plan.iteration
        arrivals = self._apply(batch, plan)
        self._forget(plan.delta.dropped[:, 0].tolist())
        # Those that join have their slots already, others get them now.
        computed = {part.name for call in plan.delta.calls for part in call}
        for arrival in arrivals:
            if arrival.name in computed:
                self._coming[arrival.name] = arrival
            elif self._copy:
                self._copy.read(arrival.name, arrival.tokens, arrival.slots)
        self._release_ended(batch)
        for arrival in self._kv_slots.expect(plan.delta):
            if arrival.name in computed:
                self._coming[arrival.name] = arrival
            elif not arrival.complete:
                self._pull.expect(arrival)
        for call in plan.delta.calls:
            self._prompts(turn, call)
        self._running[batch] = []
        if not plan.active:
            return
        names = self._kv_slots.extend(batch, plan.delta.joined.name if self._again[batch] else None)
        self._extended[batch], self._again[batch] = True, False
        rows = [unit.piece.rows(len(names)) for unit in self._units[batch]]
        attending = [
            (unit, part) for unit, part in zip(self._units[batch], rows, strict=True) if len(names[part])
        ]
        plan_attention([(unit.worker, part) for unit, part in attending], self._arena, names, batch)
        self._running[batch] = [unit for unit, _ in attending]

    def _release_ended(self, batch: int) -> None:
        """Release what the copy has of sequences in no batch, once all batches are known."""
        if not (self._copy and self._unbegun):
            return
        self._unbegun.discard(batch)
        if not self._unbegun:
            batches = range(self._schedule.batches)
            self._copy.keep({name for each in batches for name in self._kv_slots.names(each).tolist()})

    def _forget(self, names: list[int]) -> None:
        """Forget sequences that were expected."""
        self._pull.forget(names)
        for name in names:
            self._coming.pop(name, None)

    def _prompts(self, turn: Turn, call: Call) -> None:
        """Send the KV of tokens that go through the slices together, in the order of computation."""
        # Where slots are: no pages change places before the next iteration begins.
        of_space = [
            gpu.put(torch.from_numpy(space.physical(slots).astype(np.int64)), self._device)
            for at, space in enumerate(self._arena.spaces)
            for slots in [
                np.concatenate([self._coming[one.name].within(at, one.begin, one.end) for one in call])
            ]
        ]
        for layer in range(len(self._ops)):
            here = of_space[self._arena.space_of(layer)]
            if not len(here):
                continue
            # Stages have their own layers; a replica has them all.
            place = self._schedule.place(*turn[:2], layer if self._schedule.stages > 1 else 0)
            for rank in range(self._partition.ranks):
                self._keep(place, rank, layer, here)
        for part in call:
            if part.end == part.tokens:
                del self._coming[part.name]

    def _keep(self, place: int, rank: int, layer: int, slots: torch.Tensor) -> None:
        if not self._partition.gives_prompts(rank, self._config.number):
            return
        kv_heads = self._partition.kv_of(self._partition.of_both(rank, self._config.number))
        receiver = self._channels.receivers[place * self._partition.ranks + rank]
        parts = [self._part(len(slots), len(kv_heads))] * self._arena.shape.vectors
        with self._pull.recv(receiver, FOREVER_S) as message:
            self._arena.store(layer, slots, views(message, *parts), within(kv_heads, self._kv_heads))

    def _part(self, rows: int, heads: int, dim: int = 0) -> Part:
        shape = self._arena.shape
        return Part(shape.dtype, (rows, heads, dim or shape.head_dim))

    def _attend(self, turn: Turn) -> None:
        batch, cycle, layer, place = turn
        ranks = self._partition.ranks
        to = self._schedule.place(batch, cycle, layer + 1)
        started: Any = None
        units = self._running[batch]
        for number, unit in enumerate(units, 1):
            receiver, worker = self._channels.receivers[place * ranks + unit.rank], unit.worker
            query = self._part(worker.requests, worker.heads, self._ops[layer].query_dim)
            stored = [self._part(worker.requests, worker.kv_heads)] * self._arena.shape.vectors
            with self._pull.recv(receiver, FOREVER_S) as message:
                self._heartbeat.start("attention")
                q, *kv = views(message, query, *(() if self._config.streams else stored))
                started = started or self._recorder.now()
                worker.begin(layer, unit.attended.query(layer, q))
                if self._config.streams:
                    self._heartbeat.stop()
                    with receiver.recv() as later:
                        self._heartbeat.start("attention")
                        out = self._finish(unit, layer, views(later, *stored))
                else:
                    out = self._finish(unit, layer, kv)
            if self._copy and number == len(units) and layer == len(self._ops) - 1:
                self._copy.append(batch, self._kv_slots.names(batch), self._kv_slots.newest[batch])
            self._heartbeat.stop()
            if number == len(units):
                ended = self._recorder.now()
                self._recorder.note(batch, self._iterations[batch], cycle, layer, started, ended)
            self._channels.senders[to * ranks + unit.rank].send(out)

    def _finish(self, unit: Unit, layer: int, kv: list[torch.Tensor]) -> torch.Tensor:
        return unit.attended.output(layer, unit.worker.finish(layer, *kv))

    def _check(self) -> ArenaState:
        wrong, faults = "", self._arena.faults
        try:
            self._arena.check_integrity()
        except RuntimeError as error:
            wrong = str(error)
        return ArenaState(self._arena.used, faults.moved, faults.in_place, wrong)
