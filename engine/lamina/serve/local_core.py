"""The core of an engine in one process: slices, attention and a KV arena, without requests."""

from __future__ import annotations

import time
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import torch

from lamina import gpu, threads
from lamina.cluster import ClusterCore, LostError, Replaced, Scaled
from lamina.cluster.prefill_dispatch import PrefillDispatch
from lamina.kv import Arena, Faults
from lamina.model import Prefill, PromptRun, PromptTokens
from lamina.operators import Attended
from lamina.pipeline import (
    BatchDelta,
    BatchRows,
    BatchSnapshot,
    Choice,
    CoreOptions,
    EngineError,
    KvSlots,
    Landed,
    Schedule,
    SequenceStates,
    Spent,
    states_of,
)
from lamina.pipeline.arenas import (
    AnyWorker,
    arena_shape,
    arena_tokens,
    free_bytes,
    plan,
    require_heads_for_gpu,
    require_room,
    room_for_arenas,
    worker_over,
)
from lamina.pipeline.batch_rows import NONE
from lamina.pipeline.kv_slots import Arrival
from lamina.pipeline.options import ModelFacts, original_of
from lamina.pipeline.prompt_calls import Call, calls_of

if TYPE_CHECKING:
    from lamina.convert import Conversion
    from lamina.serve.graphs import IterationGraphs


class LocalCore:
    """A core in this process: one batch, one set of slices, one attention worker."""

    batches = pools = 1
    workers: list[str] = []  # noqa: RUF012 - always empty
    prefill: PrefillDispatch | None = None
    advanced_s = 0.0  # when a layer of a prompt was last computed: time.monotonic()
    beyond_recovery = False

    def __init__(self, model: Any, options: CoreOptions, *, max_sequences: int) -> None:
        if options.on_gpu:
            gpu.require()
        elif torch.get_num_threads() > 1:
            threads.warn_if_late()
        from lamina.convert import EAGER, convert

        self.conversion = convert(model, options.dtype, options.rope, options.absorb)
        place = self.conversion.place_for(options.backend, options.place)
        # Graphs of whole iterations capture eager slices and the attention between them.
        graphs = options.backend == "cudagraph"
        self.facts = msgspec.structs.replace(ModelFacts.of(self.conversion), kv_dtype=options.kv_dtype)
        if options.on_gpu:
            require_heads_for_gpu(self.facts)
        shape = arena_shape(self.conversion, kv_dtype=options.kv_dtype)
        free = free_bytes(options.place)
        room = room_for_arenas(free, self.facts.weight_bytes, on_gpu=options.on_gpu)
        tokens = arena_tokens(shape, self.facts, options, max_sequences, room)
        room = free - shape.nbytes(tokens, max_sequences)
        require_room(self.facts, max_sequences, room)
        self._spare_bytes, self._place = room - self.facts.weight_bytes, options.place
        self.arena = Arena(
            shape,
            tokens,
            sequences=max_sequences,
            overcommit=options.overcommit,
            device=place,
        )
        original = original_of(model, self.conversion, options)
        backend = "python" if graphs else options.backend
        self.slices = self.conversion.bind(original, backend, place, q_first=options.overlap)
        self._attended = attended = self.conversion.attended(original).to(options.place)
        self.attention = _attention(self.conversion, attended, self.arena, options, max_sequences)
        self.pool_tokens = self.arena.capacity
        self.schedule = Schedule("serial", 1, len(self.slices))
        self._overlap = options.overlap
        self.graphs: IterationGraphs | None = None
        if graphs:
            from lamina.serve.graphs import IterationGraphs

            self.graphs = IterationGraphs(self._decode, place)
        self._kv_slots = KvSlots(self.arena, 1)
        self._rows = BatchRows()
        self._states = SequenceStates(states_of(self.slices), max_sequences)
        self._prefill: Prefill | None = None
        if options.decode_only:
            self.arena.fill()
        else:
            # Slices compiled per batch size would be compiled again for every prompt length.
            plain = self.slices
            if backend not in EAGER:
                plain = self.conversion.bind(original, device=place)
            self._prefill = Prefill(plain[:-1], attended, plain[-1], options.kv_dtype)
        self._spent = Spent()
        self._failed: dict[int, str] = {}
        # Unfinished prompts, by name.
        self._runs: dict[int, tuple[Arrival, PromptRun]] = {}

    def launch(self, batch: int, delta: BatchDelta, size: int, snapshot: BatchSnapshot | None = None) -> None:  # noqa: ARG002 - there is one batch
        self._spent, self._failed = Spent(), {}
        self._rows.apply(delta)
        # Allocating slots counts as host time, like the scheduler.
        arrivals = self._kv_slots.apply(0, delta)
        started = perf_counter()
        self._states.apply(delta)
        self._prompts(arrivals, delta)
        self._states.share(delta)
        self._spent.prefill_s = perf_counter() - started

    def _prompts(self, arrivals: list[Arrival], delta: BatchDelta) -> None:
        dropped = delta.dropped[:, 0].tolist()
        self._states.drop(dropped)
        for name in dropped:
            self._runs.pop(name, None)
        begun = [*self._kv_slots.expect(delta), *(one for one in arrivals if one.name in delta.prompts)]
        self._runs |= {one.name: (one, PromptRun(one.tokens)) for one in begun}
        for part in delta.parts:
            if part.begin == 0:
                self._states.begin(part.name)
        for call in calls_of(delta, alone=self._states.present):
            self._compute(call)

    def _compute(self, call: Call) -> None:
        """Compute a call's prompts together or, if that fails, one by one, so that only one request fails."""
        here = [part for part in call if part.name in self._runs]  # the others have failed
        try:
            if here:
                self._together(here)
        except Exception as error:
            for part in here if len(here) > 1 else ():
                self._compute([part])
            if len(here) == 1:
                self._failed[here[0].name] = str(error)
        for part in here:
            if part.end == part.tokens or part.name in self._failed:
                self._runs.pop(part.name, None)

    def _together(self, call: Call) -> None:
        assert self._prefill
        # Layers with state take one prompt per call.
        self._states.select(self._states.rows(np.array([call[0].name])))
        arrivals, runs = zip(*(self._runs[part.name] for part in call), strict=True)
        place = self.arena.device
        texts = [gpu.put(torch.from_numpy(part.text.astype(np.int64)), place) for part in call]

        def deliver(layer: int, *kv: torch.Tensor) -> None:
            self.advanced_s = time.monotonic()
            space, row, slots, rows = self.arena.space_of(layer), 0, [], []
            for part, arrival in zip(call, arrivals, strict=True):
                slots.append(arrival.within(space, part.begin, part.end))
                row += len(part.text)
                rows.append(slice(row - len(slots[-1]), row))
            parts = (torch.cat([one[some] for some in rows]) for one in kv)
            self.arena.write(layer, np.concatenate(slots), *parts)

        self._prefill.call(list(map(PromptTokens, runs, texts)), None, deliver)

    def refusal(self, tokens: int) -> str | None:
        """Return why there is no memory for a prompt of this many tokens, or None if there is."""
        return self.facts.refusal(tokens, lambda: min(free_bytes(self._place), self._spare_bytes))

    def place_of_next(self, batch: int) -> int:  # noqa: ARG002
        """Return 0: there is one place."""
        return 0

    def land(self, batch: int) -> Landed:  # noqa: ARG002 - there is one
        spent, rows = self._spent, self._rows
        if not len(rows):  # parts of prompts were all
            return Landed(Choice(NONE), spent, time.monotonic(), self._failed)
        names = self._kv_slots.extend(0)
        filled = self.graphs.rows(len(names)) if self.graphs else None
        plan([(self.attention, slice(0, len(names)))], self.arena, names, filled=filled)
        self._states.select(self._states.rows(rows.columns.name))
        columns = (rows.columns.token, rows.columns.position)
        context = tuple(map(torch.from_numpy, columns))
        logits = self._iterate(context)
        started = perf_counter()
        choice = rows.choose(logits)
        rows.advance(choice.tokens)
        spent.sampling_s = perf_counter() - started
        return Landed(choice, spent, time.monotonic(), self._failed)

    def _iterate(self, context: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return logits of a batch, with a CUDA graph if there is one; its parts are then not timed."""
        if self.graphs is None:
            return self._decode(tuple(gpu.put(one, self.arena.device) for one in context))
        started = perf_counter()
        logits = self.graphs(context)
        self._spent.model_s = perf_counter() - started
        return logits

    def _decode(self, context: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Run slices and attention in turn; return logits [B, vocab].

        With `overlap` the attention worker gets q before k and v are computed and attends to earlier tokens
        in the meantime; results are bitwise the same. It pays if attention has hardware of its own; on one
        machine's cores the two compete.
        """
        attended: torch.Tensor | None = None
        spent = self._spent
        *between, last = self.slices
        for layer, piece in enumerate(between):
            started = perf_counter()
            q, state = piece.query(context, attended)
            if self._overlap:
                self.attention.begin(layer, self._attended.query(layer, q))
            *kv, state = piece.keyvalue(state)
            context = piece.rest(state)
            modelled = perf_counter()
            if not self._overlap:
                self.attention.begin(layer, self._attended.query(layer, q))
            attended = self._attended.output(layer, self.attention.finish(layer, *kv))
            spent.attention_s += perf_counter() - modelled
            spent.model_s += modelled - started
        started = perf_counter()
        logits = last.logits(context, attended)
        spent.model_s += perf_counter() - started
        return logits

    def regroup(self, lost: LostError) -> Replaced:
        """Raise the error: there are no workers to replace."""
        raise lost

    def read_back(self) -> set[int]:
        """Return nothing: no KV is copied."""
        return set()

    def scaled(self, attention_workers: int) -> Scaled:  # noqa: ARG002
        """Raise an EngineError: the one worker is no process."""
        raise EngineError(
            "engine-no-workers", "an engine in one process has no workers to add: give it a layout"
        )

    def scale(self, to: Scaled) -> None:
        """Do nothing: `scaled` has refused."""

    def inject_fault(self, name: str, how: str) -> None:
        """Do nothing: there is no worker here."""

    def records(self) -> None:
        """Return None: a step has its own times."""

    def forget(self) -> None:
        """Do nothing: no records are stored."""

    def worked_s(self) -> dict[str, float]:
        """Return nothing: there are no workers."""
        return {}

    def paging(self) -> dict[str, Faults]:
        """Return the arena's page faults, if it has pages and the host counts them."""
        paged = any(space.pager for space in self.arena.spaces)
        return {"attention 0": self.arena.faults} if paged else {}

    def check_integrity(self) -> None:
        """Recount the arena; raise RuntimeError for the first inconsistency."""
        self.arena.check_integrity()
        if not len(self._rows) and self.arena.used:
            raise RuntimeError(f"no sequence runs and {self.arena.used} slots are taken")

    def close(self) -> None:
        """Do nothing: there is no worker to end."""


Core: TypeAlias = LocalCore | ClusterCore


def _attention(
    conversion: Conversion, attended: Attended, arena: Arena, options: CoreOptions, max_sequences: int
) -> AnyWorker:
    rows, longest = max_sequences, conversion.max_positions
    if options.backend == "cudagraph":
        from lamina.convert.graphs import size_for

        rows = size_for(max_sequences)
    return worker_over(
        arena,
        attended,
        rows=rows,
        longest=longest,
        device=options.device,
        threads=options.threads,
        concurrent=options.overlap,
    )
