"""The front end's side of an engine whose workers are processes: it tells them changes and hears tokens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import numpy as np
import torch

from lamina import host_memory
from lamina.cluster.boot import Boot
from lamina.cluster.layout import Layout
from lamina.cluster.machine import Machine
from lamina.fhbn import ChannelError, Link, Listener, new_secret
from lamina.fhbn.deadline import Deadline
from lamina.kv import ArenaShape
from lamina.pipeline import Change, Choice, CoreOptions, EngineError, Records, Revealed
from lamina.pipeline.arenas import arena_tokens
from lamina.pipeline.change import Ints, Joined
from lamina.pipeline.landed import Landed, Spent
from lamina.pipeline.records import gather

# Loading, binding and meeting: some seconds each on a busy machine.
START_S = 300.0
END_S = 5.0
# From the first sign that something is wrong to knowing what.
FAILURE_S = 1.0
SPIN_S = 500e-6
_REVEALED = {"rows": np.int64, "chosen": np.float32, "tokens": np.int64, "logs": np.float32}


class ClusterCore:
    """Workers on this machine, started when it is made and ended by close()."""

    def __init__(
        self,
        model: Any,
        options: CoreOptions,
        layout: Layout,
        machine: Machine | None,
        *,
        max_sequences: int,
    ) -> None:
        cores = layout.cores()
        source = _source(model, options)
        self._own = contextlib.ExitStack()
        self._machine = machine or self._own.enter_context(Machine())
        self._pids: list[int] = []
        self._links: list[Link] = []
        self._waiting = DefaultSelector()
        self._said: list[deque[dict[str, Any]]] = [deque() for _ in range(layout.workers)]
        try:
            self.facts = self._machine.convert(source)
            self._prepare(options, layout, max_sequences)
            self._machine.load(source)
            self._start(source, options, cores, max_sequences)
        except BaseException:
            self.close()
            raise

    def _prepare(self, options: CoreOptions, layout: Layout, max_sequences: int) -> None:
        """All that can be refused before anything big is loaded."""
        facts, self.layout = self.facts, layout
        self.schedule = layout.schedule(facts.layers + 1)
        if self.schedule.stages > facts.layers:
            raise EngineError(
                f"the model has {facts.layers} layers, too few for {self.schedule.stages} stages"
            )
        self._partition = layout.dealt(facts.heads, facts.kv_heads)
        self.batches, self.pools = self.schedule.batches, self._partition.pools
        if max_sequences < self.batches:
            raise EngineError(f"{max_sequences} sequences do not fill {self.batches} batches: allow more")
        shape = ArenaShape(facts.layers, facts.kv_heads, facts.head_dim, getattr(torch, facts.dtype))
        tokens = arena_tokens(shape, options, max_sequences * facts.max_positions)
        self.pool_tokens = tokens // self.pools
        if self.pool_tokens < 1:
            raise EngineError(
                f"{tokens} KV tokens do not divide into {self.pools} attention workers: give more"
            )
        self._require_memory(shape)
        self._launched = [-1] * self.batches  # cycles
        self._cycles = [-1] * self.batches
        self._pool_of: dict[int, int] = {}

    def _require_memory(self, shape: ArenaShape) -> None:
        """A model that does not fit is refused before it is loaded."""
        weights = self.facts.weight_bytes
        if self._partition.ranks > 1:  # each rank has its own share, cut out of what is loaded
            weights += self.facts.weight_bytes * (self.schedule.places if self.schedule.stages == 1 else 1)
        arenas = shape.token_bytes * self.pool_tokens * self.pools
        free = host_memory.free_bytes()
        if weights + arenas > free:
            raise EngineError(
                f"{weights / 1e9:,.1f} GB of weights and {arenas / 1e9:,.1f} GB of KV are "
                f"{(weights + arenas - free) / 1e9:,.1f} GB more than the {free / 1e9:,.1f} GB that are "
                "free: take a smaller model, fewer KV tokens or fewer tensor-parallel workers"
            )

    def _start(
        self, source: dict[str, Any], options: CoreOptions, cores: list[int], max_sequences: int
    ) -> None:
        layout, secret = self.layout, new_secret()
        deadline = Deadline(START_S)
        with Listener("front end", secret) as listener:
            shared = Boot(
                name="",
                address=listener.address,
                secret=secret,
                core=0,
                kind="model",
                number=0,
                pipelining=self.schedule.pipelining,
                batches=self.batches,
                stages=self.schedule.stages,
                slices=self.schedule.slices,
                partition=asdict(self._partition),
                most_rows=max_sequences,
                arena_tokens=self.pool_tokens,
                decode_only=options.decode_only,
                overlap=options.overlap,
                backend=options.backend,
                network=layout.network,
                # Where workers share a core, one that looks keeps another one from working.
                spin_s=SPIN_S if len(set(cores)) == len(cores) else 0.0,
                timeout_s=layout.timeout_s,
            )
            boots = [_part(shared, name, core) for name, core in zip(layout.names, cores, strict=True)]
            self._pids = self._machine.start(source, boots)
            came: dict[str, Link] = {}
            while len(came) < len(boots):
                with self._patience():
                    link = listener.accept(min(1.0, deadline.left_s))
                    came[link.peer] = link
                if deadline.left_s == 0:
                    raise EngineError(f"{len(boots) - len(came)} workers did not come within {START_S:g} s")
        self._links = [came[name] for name in layout.names]
        for number, link in enumerate(self._links):
            self._waiting.register(link.control, EVENT_READ, number)
        addresses = {
            name: self._hear(number, "address", deadline)["address"]
            for number, name in enumerate(layout.names)
        }
        for link in self._links:
            link.control.say({"peers": addresses}, deadline)
        for number in range(len(self._links)):
            self._hear(number, "ready", deadline)

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Nobody comes any more if somebody has ended."""
        try:
            yield
        except ChannelError as error:
            for number, status in self._ends().items():
                why = self._machine.errors().rpartition("\n")[2] or f"it ended with {status}"
                raise EngineError(f"{self.layout.names[number]} did not start: {why}") from error

    def launch(self, batch: int, change: Change, size: int) -> None:
        """Begin a batch's next iteration, of so many sequences; none if it has none."""
        self._cycles[batch] += 1
        head = {"batch": batch, "cycle": self._cycles[batch], "active": size > 0}
        if size:
            self._launched[batch] = self._cycles[batch]
        whole = {**head, **change.said()}
        parts = [whole] * self.layout.attention_workers
        if self.pools > 1:
            parts = [{**head, **self._of_pool(change, pool).said()} for pool in range(self.pools)]
            for name in change.released.tolist():
                del self._pool_of[name]
        deadline = Deadline(self.layout.timeout_s)
        own = self.schedule.pipelining == "fixed" and self.schedule.stages == 1
        for number, link in enumerate(self._links):
            if number >= self.layout.model_workers:
                self._say(link, parts[number - self.layout.model_workers], deadline)
            elif not own or number // self.layout.ranks == batch:
                self._say(link, whole, deadline)

    def _say(self, link: Link, message: dict[str, Any], deadline: Deadline) -> None:
        try:
            link.control.say(message, deadline)
        except ChannelError as error:
            raise self._failure(link.peer, str(error)) from error

    def _of_pool(self, change: Change, pool: int) -> Change:
        """What an attention worker that has whole requests must know."""
        for name, where in zip(change.joined.name.tolist(), change.joined.pool.tolist(), strict=True):
            self._pool_of[name] = where
        for parent, child, _ in change.forks.tolist():
            self._pool_of[child] = self._pool_of[parent]
        mine: Joined = change.joined.where(change.joined.pool == pool)
        here = set(mine.name.tolist())
        return Change(
            forks=change.forks[self._lie(change.forks[:, 0], pool)],
            renamed=change.renamed[self._lie(change.renamed[:, 0], pool)],
            left=change.left[self._lie(change.left, pool)],
            released=change.released[self._lie(change.released, pool)],
            joined=mine,
            prompts={name: text for name, text in change.prompts.items() if name in here},
        )

    def _lie(self, names: Ints, pool: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.fromiter((self._pool_of[name] == pool for name in names.tolist()), np.bool_, len(names))

    def land(self, batch: int) -> Landed:
        """Wait for the iteration that was launched."""
        started = time.perf_counter()
        place = self.schedule.place(batch, self._launched[batch], self.schedule.slices - 1)
        message = self._hear(place * self.layout.ranks, "landed", Deadline(self.layout.timeout_s))
        assert message["landed"] == batch
        spent = Spent(waited_s=time.perf_counter() - started)
        tokens = np.frombuffer(message["tokens"], np.int64)
        revealed = None
        if "revealed" in message:
            columns = {
                name: np.frombuffer(data, _REVEALED[name]).reshape(shape)
                for name, (shape, data) in message["revealed"].items()
            }
            revealed = Revealed(**columns)
        return Landed(Choice(tokens, revealed), spent, time.monotonic())

    def _hear(self, wanted: int, what: str, deadline: Deadline) -> dict[str, Any]:
        """What a worker has to say next; an EngineError as soon as any worker cannot go on."""
        said = self._said[wanted]
        while not said:
            ready = [key.data for key, _ in self._waiting.select(deadline.wait_s)]
            for number in ready:
                self._said[number].append(self._heard(number, deadline))
            if not ready and deadline.left_s == 0:
                name, limit = self.layout.names[wanted], self.layout.timeout_s
                raise EngineError(f"{name} has said nothing for {limit:g} s: a worker hangs")
        message = said.popleft()
        if what not in message:
            raise EngineError(f"{self.layout.names[wanted]} has sent what nobody asked for")
        return message

    def _heard(self, number: int, deadline: Deadline) -> dict[str, Any]:
        try:
            message = self._links[number].control.hear(deadline)
        except ChannelError as error:
            raise self._failure(self.layout.names[number], str(error)) from error
        if "failed" in message:
            if message["lost"]:  # by somebody else's fault
                raise self._failure(self.layout.names[number], message["failed"])
            raise EngineError(f"{self.layout.names[number]} cannot go on: {message['failed']}")
        return message

    def _failure(self, name: str, why: str) -> EngineError:
        """One worker's end is noticed by all others: look for the one that was first."""
        deadline = Deadline(FAILURE_S)
        gone = set()
        while True:
            for number, status in self._ends().items():
                if status < 0:
                    signal_name = signal.Signals(-status).name
                    return EngineError(
                        f"{self.layout.names[number]} has ended: it was killed by {signal_name}"
                    )
            for number in [key.data for key, _ in self._waiting.select(0.05)]:
                link = self._links[number]
                if number in gone:
                    continue
                try:
                    message = link.control.hear(deadline)
                except ChannelError:
                    gone.add(number)
                    self._waiting.unregister(link.control)
                    continue
                if "failed" in message and not message["lost"]:
                    return EngineError(f"{self.layout.names[number]} cannot go on: {message['failed']}")
            if deadline.left_s == 0:
                return EngineError(f"{name} cannot go on: {why}")

    def _ends(self) -> dict[int, int]:
        """How workers have ended, those that have."""
        with contextlib.suppress(EngineError):
            ends = self._machine.ends(self._pids)
            return {self._pids.index(pid): status for pid, status in ends.items()}
        return {}

    def records(self) -> Records:
        """What the workers did and when. Iterations that are under way are let finish first by the caller."""
        layout, deadline = self.layout, Deadline(self.layout.timeout_s)
        for link in self._links:
            self._say(link, {"report": True}, deadline)
        reports = [list(self._report(number, deadline)) for number in range(layout.workers)]
        places = [number // layout.ranks for number in range(layout.model_workers)]
        return gather(layout.names, [*places, *[-1] * layout.attention_workers], reports)

    def _report(self, number: int, deadline: Deadline) -> Iterator[dict[str, Any]]:
        more = True
        while more:
            message = self._hear(number, "rows", deadline)
            more = message["more"]
            yield message

    def check_integrity(self) -> None:
        """Recount every arena; raise RuntimeError naming the first thing found wrong."""
        deadline = Deadline(self.layout.timeout_s)
        for number in range(self.layout.model_workers, self.layout.workers):
            self._say(self._links[number], {"check": True}, deadline)
            found = self._hear(number, "checked", deadline)["checked"]
            if found["wrong"]:
                raise RuntimeError(f"{self.layout.names[number]}: {found['wrong']}")

    def kv_used(self) -> list[int]:
        """Slots that are taken, of each attention worker."""
        deadline, used = Deadline(self.layout.timeout_s), []
        for number in range(self.layout.model_workers, self.layout.workers):
            self._say(self._links[number], {"check": True}, deadline)
            used.append(int(self._hear(number, "checked", deadline)["checked"]["used"]))
        return used

    def close(self) -> None:
        """End the workers. None is left when this returns."""
        for link in self._links:
            with contextlib.suppress(ChannelError):
                link.control.say({"end": True}, Deadline(END_S))
        deadline = Deadline(END_S)
        for link in self._links:
            # It hangs up when it has ended; what it said before is of no interest any more.
            with contextlib.suppress(ChannelError):
                while True:
                    link.control.hear(deadline)
            link.close()
        self._links = []
        self._waiting.close()
        pids, self._pids = self._pids, []
        self._machine.kill(pids)
        self._own.close()


def _part(shared: Boot, name: str, core: int) -> Boot:
    kind, number = name.split()
    return replace(shared, name=name, kind=kind, number=int(number), core=core)


def _source(model: Any, options: CoreOptions) -> dict[str, Any]:
    """The model as the workers' machine is told of it: each of them loads or inherits it there."""
    if options.place.type != "cpu":
        raise EngineError("workers on GPUs are not there yet: leave device out, or leave layout out")
    if options.overcommit:
        raise EngineError("overcommit is for an engine in one process: leave it out, or leave layout out")
    if isinstance(model, str | os.PathLike):
        path = Path(model).resolve()
        if not path.exists():
            raise EngineError(f"there is no model at {path}: give a folder or a config.json")
        source: Any = str(path)
    elif hasattr(model, "to_dict") and not isinstance(model, torch.nn.Module):
        source = json.loads(json.dumps(model.to_dict(), default=str))
    else:
        raise EngineError(
            "workers load the model themselves: give its folder or its config, not a model object"
        )
    return {
        "source": source,
        "dtype": options.dtype and str(options.dtype).removeprefix("torch."),
        "rope": options.rope,
        "load_format": options.load_format,
    }
