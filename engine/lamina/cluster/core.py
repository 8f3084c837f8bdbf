"""The core of an engine whose workers are processes: the front end sends plans and receives tokens."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import IO, Any, cast

import msgspec
import numpy as np

from lamina.cluster.layout import CPU, ITERATIONS, Layout, Scaled, Trial, made_up, settle
from lamina.cluster.machine import LostError, Machine, Replaced, Workplace
from lamina.cluster.memory import ClusterMemory
from lamina.cluster.messages import (
    NONE,
    ArenaState,
    ChosenTokens,
    Kind,
    ModelSource,
    Order,
    Plan,
    PromptsComputed,
    WorkerConfig,
)
from lamina.cluster.models import source_of
from lamina.cluster.prefill_dispatch import PrefillDispatch
from lamina.cluster.worker_pool import WorkerPool
from lamina.cluster.worker_updates import WorkerUpdates
from lamina.fhbn import Listener, new_secret
from lamina.fhbn.control import Deadline
from lamina.gpu import is_gpu
from lamina.kv import Faults, capacity
from lamina.kv.copy import new_file, path_of
from lamina.pipeline import (
    BatchDelta,
    BatchSnapshot,
    Choice,
    CoreOptions,
    EngineError,
    Landed,
    Records,
    Spent,
)
from lamina.pipeline.arenas import require_heads_for_gpu
from lamina.pipeline.options import require_kv_for_gpu
from lamina.pipeline.records import WorkRecords, gather

_NO_CHOICE = Choice(np.empty(0, np.int64))


SPIN_S = 500e-6
# Times in a row that workers are replaced without an iteration in between that ends.
MAX_RECOVERY_ATTEMPTS = 8


class ClusterCore:
    """Workers on this machine, started when it is made and ended by close()."""

    def __init__(
        self,
        model: Any,
        options: CoreOptions,
        layout: Layout,
        machine: Workplace | None,
        *,
        max_sequences: int,
    ) -> None:
        source = source_of(model, options)
        self._own = contextlib.ExitStack()
        self.beyond_recovery = False  # workers that are lost are not replaced any more
        self._copies: list[IO[bytes]] = []  # of KV, that this process has
        self._machine: Workplace = machine or self._own.enter_context(Machine())
        self.trials: tuple[Trial, ...] = ()
        try:
            cores = self._machine.cores(layout)
            if layout.kv_copies != "none":
                _require_place_for_copies(layout, source, self._machine)
            if layout.batches == "auto":
                measure = partial(self._measured, model, options, max_sequences)
                layout, self.trials = settle(layout, measure)
            facts = self._machine.convert(source)
            self.facts = msgspec.structs.replace(facts, kv_dtype=options.kv_dtype)
            self._prepare(options, layout, max_sequences)
            unsplit = (
                self._partition.ranks == 1 and options.backend == "python" and not self._memory.model_on_gpu
            )
            source = msgspec.structs.replace(source, whole=unsplit)
            self._start(source, options, cores, max_sequences)
        except BaseException:
            self.close()
            raise

    def _measured(self, model: Any, options: CoreOptions, max_sequences: int, layout: Layout) -> Trial:
        layout = replace(layout, prefill_workers=0)  # a trial has no prompts
        with contextlib.closing(
            ClusterCore(model, options, layout, self._machine, max_sequences=max_sequences)
        ) as core:
            return core.measure(max_sequences)

    def _prepare(self, options: CoreOptions, layout: Layout, max_sequences: int) -> None:
        """Refuse what can be refused before anything big is loaded."""
        facts, self.layout = self.facts, layout
        if layout.prefill_workers and options.decode_only:
            raise EngineError(
                "layout-prefill-without-prompts", "prefill_workers: decode-only engines have no prompts"
            )
        self.schedule = layout.schedule(facts.layers + 1)
        if self.schedule.stages > facts.layers:
            raise EngineError(
                "layout-too-many-stages",
                f"{facts.layers} layers are too few for {self.schedule.stages} stages",
            )
        self._partition = layout.partition_for(facts.heads, facts.kv_heads)
        if facts.state_bytes:
            _require_one_place(layout)
        self.batches, self.pools = self.schedule.batches, self._partition.pools
        if max_sequences < self.batches:
            raise EngineError(
                "engine-max-sequences-too-few", f"max_sequences is below the {self.batches} batches"
            )
        if options.backend == "cudagraph" and not all(map(is_gpu, layout.devices[: layout.model_workers])):
            raise EngineError(
                "layout-graphs-device",
                "backend cudagraph: model workers have to be on GPUs; give model_on, or backend python",
            )
        if any(is_gpu(layout.devices[number]) for number in layout.attending):
            require_kv_for_gpu(facts.kv_dtype)
            require_heads_for_gpu(facts)
        self._overcommit = options.overcommit
        free = {CPU: self._machine.free_bytes()} | self._machine.free_on(set(layout.devices) - {CPU})
        self._memory = ClusterMemory(facts, layout, self.schedule, self._partition, free)
        self._device_tokens = self._memory.arena_tokens(options, max_sequences)
        if self._device_tokens < 1:
            raise EngineError(
                "engine-kv-too-small",
                f"the KV memory has not one token for each of {self.pools} attention workers",
            )
        self._spare_bytes = self._memory.require(self._device_tokens, max_sequences, options.overcommit)
        self.pool_tokens = capacity(self._device_tokens, self._overcommit)
        self.workers = layout.names
        self._launched = [-1] * self.batches  # cycles
        self._cycles = [-1] * self.batches
        self._iterations = [0] * self.batches
        self._sizes = [0] * self.batches  # of what was launched and has not landed
        self._computing = [False] * self.batches  # parts of prompts, and no tokens
        self._prompts_done: set[tuple[int, int]] = set()  # batch and cycle; not yet returned
        self._landed: dict[int, ChosenTokens] = {}  # tokens that arrived before their land()
        # Attention workers that took over from others, until they have the KV of the batch's sequences.
        self._lacking: list[set[int]] = [set() for _ in range(self.batches)]
        self._copied: list[dict[int, int]] = []  # tokens by sequence that attention workers' copies have
        self._read_back: set[int] = set()  # sequences since the last read_back()
        self._recovery_attempts = 0
        # Since when workers have been there, in cycles; and the cycles of batches that came to nothing.
        self._since = [0] * layout.workers
        self._broken_off: set[tuple[int, int]] = set()
        self._updates = WorkerUpdates(self._partition, stateful=facts.state_bytes > 0)

    def _start(self, source: ModelSource, options: CoreOptions, cores: list[int], max_sequences: int) -> None:
        layout, secret = self.layout, new_secret()
        # It stays open for replacement workers.
        listener = Listener("front end", secret, host=self._machine.host)
        self._shared = WorkerConfig(
            name="",
            host=self._machine.host,
            address=listener.address,
            secret=secret,
            core=0,
            device=CPU,
            kind="model",
            number=0,
            layout=layout,
            slices=self.schedule.slices,
            partition=self._partition,
            most_rows=max_sequences,
            max_positions=self.facts.max_positions,
            arena_tokens=self._device_tokens,
            overcommit=self._overcommit,
            decode_only=options.decode_only,
            overlap=options.overlap,
            backend=options.backend,
            spin_s=_spin_s(cores),
            kv_dtype=options.kv_dtype,
        )
        self._workers = WorkerPool(self._machine, source, self._configs(cores), listener, layout.timeout_s)
        self._own.callback(self._workers.close)
        self.prefill = PrefillDispatch(self._workers, layout) if layout.prefill_workers else None

    def _configs(self, cores: list[int]) -> list[WorkerConfig]:
        places = zip(self.workers, cores, self.layout.devices, strict=True)
        configs = [_config(self._shared, *place) for place in places]
        if self.layout.kv_copies in ("host", "disk"):
            self._close_copies()
            self._copies = [new_file(self.layout.kv_copies) for _ in self.layout.attending]
            for number, file in zip(self.layout.attending, self._copies, strict=True):
                configs[number] = replace(configs[number], kv_copy=path_of(file))
        return configs

    def _close_copies(self) -> None:
        for file in self._copies:
            file.close()

    def launch(self, batch: int, delta: BatchDelta, size: int, snapshot: BatchSnapshot | None = None) -> None:
        """Begin a batch's next iteration, of so many sequences; none if it has none.

        After workers were lost, `snapshot` is what their replacements must know; `delta` is what is new to
        the other workers.
        """
        self._cycles[batch] += 1
        plan = Plan(batch, self._cycles[batch], self._iterations[batch], size > 0, delta)
        self._computing[batch] = bool(delta.parts) and not size
        if size or self._computing[batch]:
            self._launched[batch], self._sizes[batch] = self._cycles[batch], size
        lacking = self._lacking[batch]
        copied = self._updates.copied(snapshot, lacking, self._copied) if snapshot else NONE
        self._read_back |= copied
        parts = self._updates.to_attention(plan, snapshot, lacking, copied)
        full_plan = self._updates.to_model(plan, snapshot, lacking, copied)
        own = self.schedule.pipelining == "fixed" and self.schedule.stages == 1
        lost: LostError | None = None
        for number in range(self.layout.attending.stop):
            message = full_plan
            if number in self.layout.attending:
                message = parts[number - self.layout.model_workers]
            elif own and number // self.layout.ranks != batch:
                continue
            try:
                self._workers.send(number, message, self._workers.patience([number]))
            except LostError as error:  # the others must know all the same, wherever they begin again
                lost = lost or error
        if lost:
            raise lost

    def regroup(self, lost: LostError) -> Replaced:
        """Replace lost workers and restart all from the last landed iteration.

        What was launched and has not landed has to be launched again, with its snapshot. Raises LostError
        if more are lost meanwhile, and EngineError when that goes on and on.
        """
        self._recovery_attempts += 1
        if self.beyond_recovery:
            raise EngineError("engine-recovery-failed", f"{lost}; its replacement is disabled")
        if self._recovery_attempts > MAX_RECOVERY_ATTEMPTS:
            raise EngineError(
                "engine-recovery-failed", f"{lost}; {MAX_RECOVERY_ATTEMPTS} attempts to recover failed before"
            )
        cycle = max(self._cycles) + 1
        flying = [batch for batch, size in enumerate(self._sizes) if size]
        self._computing = [False] * self.batches
        self._prompts_done.clear()
        self._broken_off |= {(batch, self._launched[batch]) for batch in flying}
        self._cycles = [cycle - 1] * self.batches
        self._landed.clear()
        if self.prefill:
            self.prefill.clear(self.layout)
        self._workers.regroup(lost.workers, cycle, flying)
        self._copied = [self._workers.kv_copied[number] for number in self.layout.attending]
        replaced = self._workers.replaced()
        for number in replaced:
            self._since[number] = cycle
        attending = self.layout.attending
        attention = {attending.index(number) for number in replaced if number in attending}
        for batch in range(self.batches):
            self._lacking[batch] |= attention
        pools = {min(number, self.pools - 1) for number in attention}
        return Replaced(frozenset(self.layout.names[number] for number in replaced), frozenset(pools))

    def read_back(self) -> set[int]:
        """Return the sequences whose KV was read from copies since the last call."""
        result, self._read_back = self._read_back, set()
        return result

    def scaled(self, attention_workers: int) -> Scaled:
        """Return the layout with this many workers; raise an EngineError if it is impossible."""
        # More of them share the memory of the device that is named for all.
        on = {self.layout.devices[number] for number in self.layout.attending} - {CPU}
        free_bytes = min(self._machine.free_on(on).values(), default=self._machine.free_bytes())
        cores = self._machine.cores
        return Scaled.of(
            self.layout,
            self.facts,
            self._device_tokens,
            self._overcommit,
            self._shared.most_rows,
            attention_workers,
            free_bytes,
            cores,
        )

    def scale(self, to: Scaled) -> None:
        """Distribute attention anew, while nothing is under way. The KV memory is empty then: all batches
        have to be launched with their snapshots. Raises LostError if workers are lost meanwhile: regroup().
        """
        self.layout, self._partition, self._device_tokens = to.layout, to.partition, to.device_tokens
        self.pools, self.pool_tokens, self.workers = to.pools, to.pool_tokens, to.layout.names
        self._shared = replace(
            self._shared,
            layout=to.layout,
            partition=to.partition,
            arena_tokens=to.device_tokens,
            spin_s=_spin_s(to.cores),
        )
        self._updates = WorkerUpdates(to.partition, stateful=self.facts.state_bytes > 0)
        stay = to.layout.model_workers
        self._since = self._since[:stay] + [0] * (to.layout.workers - stay)
        self._workers.become(self._configs(to.cores))
        self.regroup(LostError((), "engine-scaled", "attention is distributed anew"))

    def inject_fault(self, name: str, how: str) -> None:
        self._workers.inject_fault(self.layout.names.index(name), how)

    def refusal(self, tokens: int) -> str | None:
        """Return why no worker has the memory to compute a prompt of so many tokens, if none has: all else
        may not have been touched yet.
        """

        def free() -> int:
            here = self._spare_bytes if self._memory.model_on_gpu else self._machine.free_bytes()
            return min(here, self._spare_bytes)

        return self.facts.refusal(tokens, free)

    def place_of_next(self, batch: int) -> int:
        """Return the place where the batch's next iteration begins and its prompts are computed."""
        return self.schedule.place(batch, self._cycles[batch] + 1, 0)

    def land(self, batch: int) -> Landed:
        started = time.perf_counter()
        # Prefill workers keep to no schedule: these get on without them.
        deadline = self._workers.patience(range(self.layout.attending.stop))
        if self._computing[batch]:
            self._computed(batch, deadline)
            return Landed(_NO_CHOICE, Spent(waited_s=time.perf_counter() - started), time.monotonic())
        place = self.schedule.place(batch, self._launched[batch], self.schedule.slices - 1)
        number = place * self.layout.ranks
        # After workers have been replaced, batches may land in another order than requested.
        while batch not in self._landed:
            tokens = self._workers.receive(number, ChosenTokens, deadline)
            self._require_sense(number, tokens)
            self._landed[tokens.batch] = tokens
        tokens = self._landed.pop(batch)
        choice = Choice(tokens.tokens, tokens.revealed)
        self._sizes[batch], self._recovery_attempts = 0, 0
        self._lacking[batch].clear()
        self._iterations[batch] += 1
        return Landed(choice, Spent(waited_s=time.perf_counter() - started), time.monotonic())

    def _computed(self, batch: int, deadline: Deadline) -> None:
        """Wait until parts of prompts have been computed, in a cycle of a batch that makes no tokens."""
        cycle = self._launched[batch]
        slice_ = self.schedule.slices - 1 if self.schedule.stages > 1 else 0
        number = self.schedule.place(batch, cycle, slice_) * self.layout.ranks
        while (batch, cycle) not in self._prompts_done:
            computed = self._workers.receive(number, PromptsComputed, deadline)
            self._prompts_done.add((computed.batch, computed.cycle))
        self._prompts_done.remove((batch, cycle))
        self._computing[batch], self._recovery_attempts = False, 0

    def _require_sense(self, number: int, tokens: ChosenTokens) -> None:
        """Replace a worker whose tokens cannot be those of a batch that is under way."""
        size = self._sizes[tokens.batch] if tokens.batch in range(self.batches) else 0
        values, vocabulary = tokens.tokens, self.facts.vocab_size
        if not size:
            why = f"they are of batch {tokens.batch}"
        elif len(values) != size:
            why = f"{len(values)} of {size} sequences"
        elif not 0 <= values.min() <= values.max() < vocabulary:
            why = f"{values.min()} to {values.max()} of {vocabulary:,}"
        else:
            return
        name = self.layout.names[number]
        raise LostError(
            {number}, "worker-tokens-invalid", f"{name} has sent tokens that make no sense: {why}"
        )

    @property
    def network(self) -> str:
        """The network between workers, with "auto" resolved."""
        return ", ".join(sorted(self._workers.networks))

    @property
    def network_why(self) -> str:
        """Why it is no better one; nothing if there is none."""
        return "; ".join(sorted(filter(None, self._workers.networks.values())))

    def records(self) -> Records:
        """Return the workers' timelines; iterations under way end first."""
        layout, deadline = self.layout, Deadline(self.layout.timeout_s)
        # Prefill workers keep to no schedule.
        workers = range(layout.attending.stop)
        for number in workers:
            self._workers.send(number, Order("records"), deadline)
        reports = [list(self._report(number, deadline)) for number in workers]
        places = [number // layout.ranks for number in range(layout.model_workers)]
        replicas = [*places, *[-1] * layout.attention_workers]
        count = len(workers)
        records = gather(layout.names[:count], replicas, reports, self._since[:count])
        turns = zip(records.batch.tolist(), records.cycle.tolist(), strict=True)
        return records.where(np.array([turn not in self._broken_off for turn in turns], np.bool_))

    def forget(self) -> None:
        """Reset records and iterations, discarding the work so far."""
        deadline = Deadline(self.layout.timeout_s)
        for number in range(self.layout.attending.stop):
            self._workers.send(number, Order("forget"), deadline)
        self._iterations = [0] * self.batches

    @property
    def advanced_s(self) -> float:
        """Return when a worker last completed a piece of work, by time.monotonic(), or 0."""
        return self._workers.monitor.advanced(range(self.layout.workers))

    def worked_s(self) -> dict[str, float]:
        """Return the seconds that each worker has worked, as of its last heartbeat; sends the next one."""
        return self._workers.monitor.worked_s(self.workers)

    def _report(self, number: int, deadline: Deadline) -> Iterator[WorkRecords]:
        more = True
        while more:
            part = self._workers.receive(number, WorkRecords, deadline)
            more = part.more
            yield part

    def check_integrity(self) -> None:
        """Recount every arena; raise RuntimeError naming the first error."""
        for name, state in self._arenas():
            if state.wrong:
                raise RuntimeError(f"{name}: {state.wrong}")

    def kv_used(self) -> list[int]:
        """Return the taken slots of each attention worker."""
        return [state.used for _, state in self._arenas()]

    def paging(self) -> dict[str, Faults]:
        """Return each attention worker's paging costs so far; empty without paging."""
        if not self._overcommit:
            return {}
        return {name: Faults(state.moved, state.in_place) for name, state in self._arenas()}

    def _arenas(self) -> Iterator[tuple[str, ArenaState]]:
        deadline = Deadline(self.layout.timeout_s)
        for number in self.layout.attending:
            self._workers.send(number, Order("arena"), deadline)
            yield self.layout.names[number], self._workers.receive(number, ArenaState, deadline)

    def measure(self, rows: int) -> Trial:
        """Run a few iterations of a full batch, at the longest length that memory has room for."""
        schedule, batches = self.schedule, self.batches
        # The first tokens of all have to fit, and those that iterations add.
        rows = max(batches, min(rows, self.pools * (self.pool_tokens // (1 + ITERATIONS))))
        most = self.pool_tokens // -(-rows // self.pools) - ITERATIONS
        tokens = max(1, min(most, self.facts.max_positions - ITERATIONS))
        for batch in range(batches):
            names = np.arange(batch, rows, batches, dtype=np.int64)
            self.launch(batch, made_up(names, tokens, self.pools), len(names))
        for _ in range(ITERATIONS - 1):
            for batch in range(batches):
                self.land(batch)
                self.launch(batch, BatchDelta(), len(range(batch, rows, batches)))
        for batch in range(batches):
            self.land(batch)
        return Trial.measured(self.records().of_iterations, schedule)

    def close(self) -> None:
        """End the workers. None is left when this returns."""
        self._own.close()
        self._close_copies()


def _require_place_for_copies(layout: Layout, source: ModelSource, machine: Workplace) -> None:
    """Reject copies of KV where a worker's replacement could not open them."""
    devices = {layout.devices[number] for number in layout.attending}
    here = isinstance(machine, Machine) and hasattr(os, "memfd_create")
    if not here or devices != {CPU} or source.emulation:
        raise EngineError(
            "layout-kv-copies-place",
            f"kv_copies '{layout.kv_copies}': attention workers have to compute on cores of this machine, "
            "under Linux; leave it out elsewhere",
        )


def _require_one_place(layout: Layout) -> None:
    """Reject recurrent layers over several places: their state stays on the worker that runs them."""
    if (
        layout.ranks > 1
        or layout.prefill_workers
        or (layout.pipelining == "rotational" and layout.places > 1)
    ):
        raise EngineError(
            "layout-model-has-state",
            "this model's recurrent layers keep state on the model worker that runs them: take one model "
            "worker a replica, no prefill workers, and rotation of 2 batches, serial or fixed pipelining",
        )


def _spin_s(cores: list[int]) -> float:
    """Return how long to spin: not at all where workers share a core."""
    return SPIN_S if len(set(cores)) == len(cores) else 0.0


def _config(shared: WorkerConfig, name: str, core: int, device: str) -> WorkerConfig:
    kind, number = name.split()
    return replace(shared, name=name, kind=cast(Kind, kind), number=int(number), core=core, device=device)
