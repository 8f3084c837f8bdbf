"""The sequences of running requests: begun, decoded together, reordered by beam search, ended."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.pipeline import Spent
from lamina.serve import sampler
from lamina.serve.beams import BeamSearch
from lamina.serve.core import Core
from lamina.serve.logprobs import LogprobTable
from lamina.serve.requests import Completion, FinishReason, Request
from lamina.serve.running import Running
from lamina.serve.step import Step

SAMPLE_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of a request's samples: odd, so that all differ
SEEDS = 2**64


class Decoder:
    """Keeps for each running request its sequences' rows, their KV in the arena and their tokens."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._running = Running()
        self._by_number: dict[int, Request] = {}
        self._searching: dict[int, Request] = {}  # those in the batch
        self._logprobs = LogprobTable()
        self._names = 0

    def begin(self, request: Request) -> None:
        """Give a request's sequences their KV and let them decode; again, after it had to make room."""
        if request.number not in self._by_number:
            self._open(request)
        running, rows = self._running, request.rows
        running.kv[rows] = [self._name() for _ in rows]
        parent = int(running.kv[rows[0]])
        shared = len(request.prompt) - 1
        for i, row in enumerate(rows):
            tokens = np.concatenate([request.prompt, self._made(request, row)])
            name = int(running.kv[row])
            if i == 0:
                self._core.begin(name, tokens)
            else:
                self._core.branch(parent, name, shared, tokens)
            running.last[row] = tokens[-1]
            running.position[row] = len(tokens) - 1
        running.join(rows)
        if request.search:
            self._searching[request.number] = request

    def park(self, request: Request) -> None:
        """The request makes room: its KV goes, its tokens stay."""
        self._release(request.rows)
        self._running.leave(request.rows)
        self._searching.pop(request.number, None)
        request.preemptions += 1

    def iterate(self, step: Step) -> set[int]:
        """One token more for every sequence; the requests that this ends."""
        running, rows = self._running, self._running.batch
        step.batch = len(rows)
        if not step.batch:
            return set()
        step.kv_tokens = int(running.position[rows].sum()) + step.batch
        spent = Spent()
        logits = self._core.iterate(running.kv[rows], running.last[rows], running.position[rows], spent)
        step.model_s, step.attention_s = spent.model_s, spent.attention_s
        started = perf_counter()
        ended = self._choose(rows, logits)
        step.sampling_s = perf_counter() - started
        return self._end_rows(ended) | self._end_searches()

    def end(self, request: Request, reason: FinishReason) -> None:
        """Whatever of the request still runs ends as it is."""
        self._by_number.pop(request.number, None)
        self._searching.pop(request.number, None)
        if request.search:
            for i, beam in enumerate(request.search.best(request.sampling.n)):
                request.ended[i] = Completion(beam.tokens, reason, score=beam.score)
        else:
            for row in request.rows:
                request.ended[request.samples[row]] = self._completion(request, row, reason)
        held = [row for row in request.rows if int(self._running.kv[row]) in self._core.arena.slab]
        self._release(held)
        self._close(request, list(request.rows))

    def made_since(self, request: Request, told: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """By sample the tokens beyond those told already; of a beam search none before it ends."""
        since = {sample: done.tokens[told.get(sample, 0) :] for sample, done in request.ended.items()}
        if request.search is None:
            for row, sample in request.samples.items():
                since[sample] = tuple(self._running.tokens_of(row, told.get(sample, 0)))
        return since

    def _open(self, request: Request) -> None:
        self._by_number[request.number] = request
        sampling = request.sampling
        for sample in range(sampling.width):
            seed = (request.seed + sample * SAMPLE_STRIDE) % SEEDS
            row = self._running.open(request.number, sampling, seed, request.stops)
            request.rows.append(row)
            request.samples[row] = sample
            if sampling.logprobs is not None:
                self._logprobs.open(row, sampling.max_tokens, sampling.logprobs)
        if sampling.beams > 1:
            request.search = BeamSearch(sampling, request.stops)

    def _name(self) -> int:
        self._names += 1
        return self._names

    def _made(self, request: Request, row: int) -> NDArray[np.int64]:
        if request.search:
            return np.array(request.search.live[request.samples[row]], np.int64)
        return self._running.tokens[row, : self._running.made[row]].astype(np.int64)

    def _choose(self, rows: NDArray[np.int64], logits: torch.Tensor) -> NDArray[np.int64]:
        """Each sequence's next token; the rows whose last one it is, beams aside."""
        running = self._running
        for request in self._searching.values():
            self._search(request, rows, logits)
        if self._searching:
            drawing = np.flatnonzero(~running.searched[rows])
            rows, logits = rows[drawing], logits[torch.from_numpy(drawing)]
        if not rows.size:
            return rows
        tokens = sampler.choose(logits, running.wishes(rows))
        asked = self._logprobs.asked(rows)
        if asked.size:
            places = torch.from_numpy(asked)
            made = running.made[rows[asked]]
            self._logprobs.record(rows[asked], made, logits[places], tokens[places])
        ended = running.record(rows, tokens.cpu().numpy())
        return rows[ended]

    def _search(self, request: Request, rows: NDArray[np.int64], logits: torch.Tensor) -> None:
        """A step of a beam search: beams take over the KV of those they continue, without a copy."""
        assert request.search is not None
        mine = np.array(request.rows, np.int64)
        order = np.argsort(rows)
        places = order[np.searchsorted(rows, mine, sorter=order)]
        parents, tokens = request.search.step(logits[torch.from_numpy(places)])
        names = self._running.kv[mine].tolist()
        heirs: dict[int, int] = {}  # parent -> the beam that takes its KV as it is
        for beam, parent in enumerate(parents):
            if heirs.setdefault(parent, beam) == beam:
                self._running.kv[mine[beam]] = names[parent]
            else:
                child = self._name()
                self._core.arena.fork(names[parent], child)
                self._running.kv[mine[beam]] = child
        barren = [name for parent, name in enumerate(names) if parent not in heirs]
        self._core.arena.release(np.array(barren, np.int64))
        self._running.record(mine, np.array(tokens, np.int64))

    def _end_rows(self, rows: NDArray[np.int64]) -> set[int]:
        if not rows.size:
            return set()
        self._release(rows.tolist())
        over = set()
        for row in rows.tolist():
            request = self._by_number[int(self._running.request[row])]
            stopped = int(self._running.last[row]) in request.stops
            sample = request.samples[row]
            request.ended[sample] = self._completion(request, row, "stop" if stopped else "length")
            self._close(request, [row])
            if not request.rows:
                del self._by_number[request.number]
                over.add(request.number)
        return over

    def _end_searches(self) -> set[int]:
        over = set()
        for request in list(self._searching.values()):
            if request.search and request.search.done:
                for i, beam in enumerate(request.search.best(request.sampling.n)):
                    stopped = beam.tokens[-1] in request.stops
                    reason: FinishReason = "stop" if stopped else "length"
                    request.ended[i] = Completion(beam.tokens, reason, score=beam.score)
                self._release(request.rows)
                self._close(request, list(request.rows))
                del self._searching[request.number], self._by_number[request.number]
                over.add(request.number)
        return over

    def _completion(self, request: Request, row: int, reason: FinishReason) -> Completion:
        tokens = tuple(self._made(request, row).tolist())
        return Completion(tokens, reason, self._logprobs.told(row, len(tokens)))

    def _release(self, rows: list[int]) -> None:
        self._core.arena.release(self._running.kv[rows])

    def _close(self, request: Request, rows: list[int]) -> None:
        self._running.close(rows)
        self._logprobs.close(rows)
        for row in rows:
            request.rows.remove(row)
            request.samples.pop(row)
