"""A model worker: the slices of a replica or a stage, or a rank's share of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina import gpu
from lamina.cluster.front_end_link import Context
from lamina.cluster.meeting import AttentionChannels, Meeting, Route, StageChannels, TensorParallelGroup
from lamina.cluster.messages import ChosenTokens, Plan, PromptsComputed, Weights
from lamina.convert import BoundSlice, Conversion, Sharded
from lamina.model import Prefill, PromptRun, PromptTokens
from lamina.operators import Attended
from lamina.pipeline import BatchRows, Choice, SequenceStates, Turn, states_of
from lamina.pipeline.batch_rows import Ints, Tokens
from lamina.pipeline.prompt_calls import Call, calls_of


class BatchState:
    """The state of one batch on this worker."""

    def __init__(self, cycle: int) -> None:
        self.rows = BatchRows()
        self.cycle = cycle
        self.plan: Plan | None = None
        self.tokens: Ints | None = None  # chosen here, in this cycle
        self.context: tuple[Tensor, ...] = ()
        self.routes: list[Route] = []
        self.states: Tensor | None = None  # where those of its sequences are
        self.runs: dict[int, PromptRun] = {}  # prompts that are not computed to their end, by name

    @property
    def active(self) -> bool:
        return self.plan is not None and self.plan.active


class ModelRole:
    """The model worker's role: receives attention outputs, runs a slice, sends q, k and v."""

    def __init__(
        self, context: Context, attended: Attended, conversion: Conversion, weights: Weights
    ) -> None:
        self._config, self._front, self._recorder, self._heartbeat = context
        config = self._config
        self._device = gpu.tensors_on(config.device)
        self._schedule, self._partition = config.schedule, config.partition
        self._place, self._rank = divmod(config.number, self._partition.ranks)
        self._group = TensorParallelGroup(self._rank, self._partition.ranks, self._heartbeat)
        sharded = conversion.sharded(self._partition.ranks, config.layout.experts)
        self._attentions = sharded.attentions
        own = self._schedule.slices_of(self._place)
        graphs = config.backend == "cudagraph"
        self._bound = self._bind(sharded, weights, own, "python" if graphs else config.backend)
        # To capture takes many times as long as the slice: it is no part of the slice's time.
        capture = partial(sharded.graphed, device=self._device, capturing=self._heartbeat.waiting)
        self._graphed = capture if graphs else list[BoundSlice]
        self._slices = dict(zip(own, self._graphed(self._bound), strict=True))
        self._states = SequenceStates(states_of(self._bound), config.most_rows)
        self._heads = (self._attentions[0].heads, self._attentions[0].output_dim)
        self._dtype = conversion.dtype
        self._layers = range(own.start, min(own.stop, len(self._attentions)))
        self._prefill: Prefill | None = None
        if not config.decode_only:
            # Compiled for a batch's size, slices would be compiled again for every prompt's length.
            aot = config.backend == "aot"
            plain = self._bind(sharded, weights, own, "python") if aot else self._bound
            self._prefill = self._prefilling(attended, plain)
        self._batches = self._begun()
        self._attention_channels = AttentionChannels(self._partition, self._rank, self._device)
        self._stage_channels = StageChannels(conversion, self._heads[0], config.most_rows)

    def _begun(self) -> list[BatchState]:
        return [BatchState(self._front.call.cycle - 1) for _ in range(self._schedule.batches)]

    def _bind(self, sharded: Sharded, weights: Weights, own: range, backend: str) -> list[BoundSlice]:
        if isinstance(weights, list):
            return weights[own.start : own.stop]
        streams = self._config.streams
        return sharded.bind(
            weights, self._rank, self._group, backend, self._device, q_first=streams, only=own
        )

    def _prefilling(self, attended: Attended, plain: list[BoundSlice]) -> Prefill:
        part = slice(self._layers.start, self._layers.stop)
        heads, own = self._attentions[0].heads, self._attentions[part]
        of_rank = slice(self._rank * heads, (self._rank + 1) * heads)
        last = plain[-1] if self._is_last else None
        here = attended.of(of_rank, part)._replace(attentions=own).to(self._device)
        return Prefill(plain[: len(self._layers)], here, last, self._config.kv_dtype)

    def meet(self, meeting: Meeting) -> None:
        meeting.of_model_worker(self._attention_channels, self._group, self._stage_channels)

    @property
    def _channels(self) -> tuple[AttentionChannels, TensorParallelGroup, StageChannels]:
        return self._attention_channels, self._group, self._stage_channels

    def abort(self) -> None:
        for channels in self._channels:
            channels.abort()

    def part(self) -> None:
        self.abort()  # all of them first: what one has on a GPU may wait for what others have there
        for channels in self._channels:
            channels.close()

    def _arrived(self, moment: Any) -> None:
        """Wait until what has arrived is on the GPU; raise what the channels report otherwise."""
        with self._heartbeat.waiting():
            self._recorder.wait(moment)
        for channels in self._channels:
            channels.check()

    def regroup(self) -> None:
        """Forget the batches: the front end sends their snapshots."""
        self._front.left_over()
        self._states.clear()
        self._partition = self._front.call.partition
        self._attention_channels = AttentionChannels(self._partition, self._rank, self._device)
        if self._partition.ranks > 1:  # sums of ranks in graphs go over channels that were closed
            self._slices = dict(zip(self._slices, self._graphed(self._bound), strict=True))
        self._batches = self._begun()

    def work(self) -> None:
        # All stages compute an iteration's prompts before its first slice: one that came to them later would
        # keep attention workers waiting, and with them the stages it waits for.
        together = self._schedule.stages > 1
        for turn in self._schedule.turns(self._front.call.cycle):
            own, current = turn.place == self._place, self._batches[turn.batch]
            if own or (together and turn.slice == 0):
                self._catch_up(current, turn)
            if own and current.active:
                self._run(current, turn)

    def _catch_up(self, current: BatchState, turn: Turn) -> None:
        """Apply the plans up to the turn's cycle, each once."""
        while current.cycle < turn.cycle:
            cycle = current.cycle + 1
            plan = self._front.plan(turn.batch, cycle)
            if current.active:
                if self._elsewhere(turn.batch, cycle, -1) and not self._elsewhere(turn.batch, cycle, 0):
                    current.tokens = self._stage_channels.tokens(len(current.rows))
                current.rows.advance(current.tokens)
            current.cycle, current.plan, current.tokens = cycle, plan, None
            current.rows.apply(plan.delta)
            self._states.apply(plan.delta)
            current.routes = self._attention_channels.routes(current.rows.columns.pool)
            if self._schedule.stages > 1 or not self._elsewhere(turn.batch, cycle, 0):
                self._prompts(current, plan)
            self._states.share(plan.delta)
            current.states = self._states.rows(current.rows.columns.name)

    def _elsewhere(self, batch: int, cycle: int, slice_: int) -> bool:
        """Return whether a slice runs at another place; slice -1 is the last one of the cycle before."""
        if slice_ < 0:
            cycle, slice_ = cycle - 1, self._schedule.slices - 1
        return self._schedule.place(batch, cycle, slice_) != self._place

    def _prompts(self, current: BatchState, plan: Plan) -> None:
        delta = plan.delta
        self._states.drop(delta.dropped[:, 0].tolist())
        for name in delta.dropped[:, 0].tolist():
            current.runs.pop(name, None)
        # One that is not continued was dropped, and another replica was notified.
        here = {part.name for part in delta.parts}
        for name in current.runs.keys() - here if here else ():
            self._states.drop([name])
            del current.runs[name]
        for part in delta.parts:
            if part.begin == 0:
                self._states.begin(part.name)
        for call in calls_of(delta, alone=self._states.present):
            self._compute(current, plan, call)
        if delta.parts and not plan.active:
            self._arrived(self._recorder.now())
        if delta.parts and not plan.active and self._rank == 0 and self._is_last:
            self._front.send(PromptsComputed(plan.batch, plan.cycle))

    @property
    def _is_last(self) -> bool:
        """Whether no stage comes after this one."""
        return self._layers.stop == len(self._attentions)

    def _takers(self, pool: int) -> frozenset[int]:
        """Return the attention workers that want the KV of a sequence."""
        if self._partition.along == "heads":
            return frozenset(range(self._partition.workers))
        return frozenset({pool})

    def _compute(self, current: BatchState, plan: Plan, call: Call) -> None:
        """Compute tokens of prompts together; their KV goes to the attention workers that want it."""
        assert self._prefill
        some = []
        for part in call:
            if part.begin == 0:
                current.runs[part.name] = PromptRun(part.tokens)
            some.append(PromptTokens(current.runs[part.name], self._tensor(part.text)))
        # Layers that keep state have one prompt a call.
        self._states.select(self._states.rows(np.array([call[0].name])))
        tokens = sum(len(part.text) for part in call)

        def deliver(layer: int, *kv: Tensor) -> None:  # the layers come in order
            self._heartbeat.stop()
            self._attention_channels.prompts(self._needed(plan, call, layer), *kv)
            self._heartbeat.start("prompt", tokens)

        first = self._layers.start
        came = self._stage_channels.passed(first, tokens) if first > 0 else None
        self._heartbeat.start("prompt", tokens)
        passed = self._prefill.call(some, came, deliver)
        self._heartbeat.stop()
        if not self._is_last:
            self._stage_channels.pass_on(passed)
        for part in call:
            if part.end == part.tokens:
                del current.runs[part.name]

    def _needed(self, plan: Plan, call: Call, layer: int) -> dict[int, list[slice]]:
        """Return the rows of a call that each attention worker wants of a layer: those it has not, and will
        see.
        """
        needed: dict[int, list[slice]] = {}
        row, sight = 0, self._attentions[layer].sight
        for part in call:
            first = max(part.shared, sight.first(part.tokens), part.begin)
            rows, row = slice(row + first - part.begin, row + len(part.text)), row + len(part.text)
            to = self._takers(part.pool)
            if part.name in plan.partial:
                to &= plan.lacking
            for worker in to if first < part.end else ():
                needed.setdefault(worker, []).append(rows)
        return needed

    def _run(self, current: BatchState, turn: Turn) -> None:
        batch, cycle, number, _ = turn
        attended: Tensor | None = None
        if number == 0:
            rows = current.rows.columns
            current.context = self._tensor(rows.token), self._tensor(rows.position)
        else:
            if self._elsewhere(batch, cycle, number - 1):
                current.context = self._stage_channels.context(number, len(current.rows))
            attended = self._attention_channels.collect(
                current.routes, (len(current.rows), *self._heads), self._dtype
            )
        self._states.select(current.states)
        self._heartbeat.start("slice", len(current.rows))
        started = self._recorder.now()
        if number < len(self._attentions):
            self._slice(current, number, attended)
            if self._elsewhere(batch, cycle, number + 1):
                self._stage_channels.send(*current.context)
            self._note(current, turn, started)
        else:
            logits = self._slices[number].logits(current.context, attended)
            self._arrived(started)
            choice = current.rows.choose(logits)
            self._note(current, turn, started)
            self._land(current, turn, choice)

    def _slice(self, current: BatchState, number: int, attended: Tensor | None) -> None:
        piece = self._slices[number]
        q, state = piece.query(current.context, attended)
        if self._config.streams:
            self._attention_channels.send(current.routes, q, None)
        *kv, state = piece.keyvalue(state)
        self._attention_channels.send(current.routes, None if self._config.streams else q, kv)
        current.context = piece.rest(state)

    def _land(self, current: BatchState, turn: Turn, choice: Choice) -> None:
        """Store the tokens for the next iteration or send them to its first stage, and to the front end."""
        current.tokens = choice.tokens
        if self._elsewhere(turn.batch, turn.cycle + 1, 0):
            self._stage_channels.send(self._tensor(choice.tokens))
        if self._rank > 0:
            return  # all ranks have chosen the same
        self._front.send(ChosenTokens(turn.batch, choice.tokens, choice.revealed))

    def _note(self, current: BatchState, turn: Turn, started: Any) -> None:
        assert current.plan
        self._heartbeat.stop()
        self._recorder.note(
            turn.batch, current.plan.iteration, turn.cycle, turn.slice, started, self._recorder.now()
        )

    def _tensor(self, numbers: Ints | Tokens) -> Tensor:
        return gpu.put(torch.from_numpy(numbers.astype(np.int64, copy=False)), self._device)
