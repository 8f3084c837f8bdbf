"""The sequences of running requests: they begin, decode together, are reordered by beam search, and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from lamina.cluster.prefill_dispatch import PrefillRequest
from lamina.pipeline import BatchDelta, BatchSnapshot, Choice, Joined, Landed
from lamina.pipeline.batch_rows import ALL, NO_PAIRS, NO_PARENT, places_of
from lamina.serve.requests import (
    BeamSearch,
    Completion,
    FinishReason,
    LogprobTable,
    Piece,
    Request,
    Step,
    pieces_of,
)
from lamina.serve.sequence_table import DeltaBuilder, SequenceTable

SAMPLE_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of a request's samples: odd, so that all differ
SEEDS = 2**64


class Decoder:
    """The running requests' sequences: their rows, the names of their KV and their tokens.

    What workers must know of it is in the `BatchDelta` with which a batch is launched. Between launch and
    landing a batch is in flight: its sequences stay in it.
    """

    def __init__(self, batches: int, *, decode_only: bool) -> None:
        self._table = SequenceTable(batches)
        self._decode_only = decode_only
        self._builders = [DeltaBuilder() for _ in range(batches)]
        self._flying: list[NDArray[np.int64] | None] = [None] * batches
        # What joined with the iteration that was launched last, until it has landed.
        self._joining = [Joined() for _ in range(batches)]
        self._by_number: dict[int, Request] = {}
        self._doomed: dict[int, Request] = {}  # ended while in flight: their rows stay until it lands
        self._searching: dict[int, Request] = {}  # those in a batch
        self._logprobs = LogprobTable()
        self._names = 0
        # Of requests that were staged, what attention workers have to know: see BatchDelta.
        self._dropped: list[tuple[int, int]] = []

    def flying(self, batch: int) -> bool:
        """Return whether an iteration of the batch has been launched and has not landed."""
        return self._flying[batch] is not None

    @property
    def any_flying(self) -> bool:
        return any(rows is not None for rows in self._flying)

    def stage(self, request: Request, pool: int) -> list[PrefillRequest]:
        """Have memory for a request's sequences taken before they join; what of their KV is to be computed.
        If there is none they join as others do.
        """
        self._give_names(request, pool)
        prefills = []
        for row in request.rows:
            name, parent, shared, text = self._text(request, row)
            if len(text) - 1 > shared:
                prefills.append(PrefillRequest(name, text[:-1].astype(np.int32), shared, pool, parent))
        request.staged = bool(prefills)
        return prefills

    def prompt_tokens(self, request: Request) -> int:
        """Return how many tokens must be computed before it can decode, of all its sequences."""
        if self._decode_only:
            return 0
        counts = [len(request.prompt) + self.made(request) - 1]
        for row in request.rows[1:]:
            made = len(self._made(request, row))
            counts.append(len(request.prompt) + made - 1 if made else 0)
        return sum(counts)

    def dropped(self) -> NDArray[np.int64]:
        """Make attention workers no longer expect these sequences: names and pools."""
        if not self._dropped:
            return NO_PAIRS
        dropped, self._dropped = self._dropped, []
        return np.array(dropped, np.int64)

    def unstage(self, requests: Iterable[Request]) -> None:
        """Forget what was staged; no sequence is expected any more."""
        for request in requests:
            request.staged = False
            request.expected = []
        self._dropped.clear()

    def begin(self, request: Request, batch: int, pool: int) -> None:
        """Let a request's sequences decode, from the batch's next iteration on; again, after it had to make
        room.
        """
        if not request.staged:
            self._give_names(request, pool)
        request.batch = batch
        table, rows, builder = self._table, request.rows, self._builders[batch]
        for row in rows:
            text = self._join(builder, request, row)
            table.token[row] = text[-1]
            table.position[row] = len(text) - 1
        table.join(batch, rows)
        request.staged = False
        request.expected = []
        if request.search:
            self._searching[request.number] = request

    def _give_names(self, request: Request, pool: int) -> None:
        """Make new names, for KV that does not exist yet."""
        if request.number not in self._by_number:
            self._open(request)
        request.pool = pool
        self._table.name[request.rows] = [self._name() for _ in request.rows]

    def _join(self, builder: DeltaBuilder, request: Request, row: int) -> NDArray[np.int64]:
        """Add a sequence; its prompt's KV is computed unless it is there. Return its text so far."""
        name, parent, shared, text = self._text(request, row)
        builder.joining.append((row, parent, shared, request.pool))
        if not (self._decode_only or request.staged) and len(text) - 1 > shared:
            builder.prompts[name] = text.astype(np.int32)
        return text

    def _text(self, request: Request, row: int) -> tuple[int, int, int, NDArray[np.int64]]:
        """Return a sequence's name, whose first tokens it shares, how many, and all its tokens."""
        name, parent = self._table.name[[row, request.rows[0]]].tolist()
        text = np.concatenate([request.prompt, self._made(request, row)])
        if name == parent:
            return name, NO_PARENT, 0, text
        return name, parent, len(request.prompt) - 1, text

    def park(self, request: Request) -> None:
        """Preempt the request: its KV is released, its tokens stay."""
        self._leave(request.batch, request.rows)
        self._searching.pop(request.number, None)
        request.preemptions += 1

    def made(self, request: Request) -> int:
        return int(self._table.made[request.rows[0]]) if request.rows else len(request.made)

    def runs(self, request: Request) -> bool:
        """Return whether it is in a batch, and does not wait for room."""
        return bool(np.isin(request.rows, self._table.batches[request.batch]).any())

    def forget(self) -> None:
        """Forget departures: all workers have lost all KV, so they need not know which sequences left."""
        self._builders = [DeltaBuilder() for _ in self._builders]

    def launch(self, batch: int, *, computes: bool = False) -> BatchDelta:
        """Return the batch's delta. Its iteration makes a token for each sequence, or has none and `computes`
        parts of prompts.
        """
        builder, self._builders[batch] = self._builders[batch], DeltaBuilder()
        rows = self._table.batches[batch]
        if rows.size or computes:
            self._flying[batch] = rows
        delta = builder.build(self._table)
        self._joining[batch] = delta.joined
        return delta

    def snapshot(self, batch: int) -> BatchSnapshot:
        """Return the batch as it was launched last, for workers that know nothing of it."""
        builder = DeltaBuilder()
        for row in self._table.batches[batch].tolist():
            self._join(builder, self._request_of(row), row)
        return BatchSnapshot(builder.build(self._table), self._joining[batch].name)

    def unjoin(self, batch: int) -> tuple[list[Request], list[Request]]:
        """Undo the joins of an aborted iteration, as it is unknown how much KV there is; return those
        requests, and separately those that had been ended meanwhile.
        """
        table, names = self._table, self._joining[batch].name
        here = table.batches[batch]
        new = here[np.isin(table.name[here], names)]
        numbers = dict.fromkeys(table.request[new].tolist())
        table.leave(batch, new.tolist())
        if table.batches[batch].size:
            self._flying[batch] = table.batches[batch]
        else:  # it is not launched once more
            self._flying[batch] = None
            self._joining[batch] = Joined()
            self._builders[batch].leave(names)
        doomed = [self._doomed.pop(number) for number in numbers if number in self._doomed]
        for request in doomed:
            self._close(request, list(request.rows))
        back = [self._by_number[number] for number in numbers if number in self._by_number]
        for request in back:
            self._searching.pop(request.number, None)
        return back, doomed

    def again(self, batch: int) -> BatchDelta:
        """Return the last launch's delta for a repeat, for workers that know the batch: those that joined in
        it are removed.
        """
        builder = DeltaBuilder()
        builder.leave(self._joining[batch].name)
        self._joining[batch] = Joined()
        return builder.build(self._table)

    def stored_in(self, pools: Collection[int], without: Collection[int]) -> tuple[int, int]:
        """Return the requests whose KV is in these memories, and how many tokens of it have been computed;
        `without` some sequences.
        """
        if self._decode_only or not pools:
            return 0, 0
        table = self._table
        rows = np.concatenate(table.batches)
        rows = rows[~np.isin(table.name[rows], list(without))]
        here = {
            number
            for number, row in zip(table.request[rows].tolist(), rows.tolist(), strict=True)
            if self._request_of(row).pool in pools
        }
        rows = rows[np.isin(table.request[rows], list(here))]
        return len(here), int(table.position[rows].sum())

    def _request_of(self, row: int) -> Request:
        number = int(self._table.request[row])
        return self._doomed.get(number) or self._by_number[number]

    def settled(self, batch: int) -> bool:
        """Return whether workers know all there is to know of the batch."""
        return not self._dropped and self._builders[batch].empty

    def size(self, batch: int, step: Step) -> None:
        rows = self._table.batches[batch]
        step.size = len(rows)
        step.kv_tokens = int(self._table.position[rows].sum()) + step.size

    def land(
        self, batch: int, landed: Landed
    ) -> tuple[list[Request], list[Request], list[tuple[Request, str]]]:
        """Add one token to every sequence; return the requests that this ends, those ended before that may go
        now, and why some have failed.
        """
        rows = self._flying[batch]
        assert rows is not None
        self._flying[batch] = None
        self._joining[batch] = Joined()
        doomed = [request for request in self._doomed.values() if request.batch == batch]
        failed = self._failed(rows, landed.failed)
        lost = {request.number for request in doomed} | failed.keys()
        why = [(self._by_number[number], sentence) for number, sentence in failed.items()]
        ended = self._take(batch, rows, landed.choice, lost)
        for request in doomed:
            del self._doomed[request.number]
            self._leave(request.batch, request.rows)
            self._close(request, list(request.rows))
        over = [*self._end_rows(batch, ended), *self._end_searches(batch)]
        return sorted(over, key=lambda request: request.number), doomed, why

    def _failed(self, rows: NDArray[np.int64], failed: Mapping[int, str]) -> dict[int, str]:
        """Return failures by request, without those that had been ended before."""
        by_number: dict[int, str] = {}
        for name, why in failed.items():
            row = rows[self._table.name[rows] == name]
            if not row.size:
                continue  # it has not joined
            number = int(self._table.request[row[0]])
            if number not in self._doomed:
                by_number.setdefault(number, why)
        return by_number

    def end(self, request: Request, reason: FinishReason) -> None:
        """End what still runs of the request. Rows in flight stay until they land."""
        self._by_number.pop(request.number, None)
        self._searching.pop(request.number, None)
        if request.search:
            request.ended = _best(request, reason)
        else:
            for row in request.rows:
                request.ended[request.samples[row]] = self._completion(request, row, reason)
        flying = self._flying[request.batch] if request.rows else None
        if flying is not None and np.isin(request.rows, flying).any():
            self._doomed[request.number] = request
            return
        if request.staged:
            self._dropped += [(name, request.pool) for name in request.expected]
            request.staged, request.expected = False, []
        joined = [row for row in request.rows if row in self._table.batches[request.batch]]
        self._leave(request.batch, joined)
        self._close(request, list(request.rows))

    def doomed(self, request: Request) -> bool:
        return request.number in self._doomed

    def pieces(self, request: Request, delivered: Mapping[int, int]) -> list[Piece]:
        """Return each sample's undelivered tokens, with their log-probabilities and ends."""
        result = pieces_of(request.ended, delivered)
        if request.search is None:
            for row, sample in request.samples.items():
                since = delivered.get(sample, 0)
                if tokens := self._table.tokens_of(row, since):
                    result.append(Piece(sample, tuple(tokens), self._logprobs.of(row, since)))
        return result

    def _open(self, request: Request) -> None:
        self._by_number[request.number] = request
        sampling = request.sampling
        if sampling.beams > 1:
            request.search = BeamSearch(sampling, request.stops)
        for sample in range(sampling.width):
            seed = (request.seed + sample * SAMPLE_STRIDE) % SEEDS
            most = request.search.candidates if request.search else sampling.logprobs
            row = self._table.open(request.number, sampling, seed, request.stops, most)
            request.rows.append(row)
            request.samples[row] = sample
            self._table.made_before(row, request.made)
            if sampling.logprobs is not None:
                self._logprobs.open(row, sampling.logprobs)

    def _name(self) -> int:
        self._names += 1
        return self._names

    def _made(self, request: Request, row: int) -> NDArray[np.int64]:
        if request.search:
            return np.array(request.search.live[request.samples[row]], np.int64)
        return self._table.tokens[row, : self._table.made[row]].astype(np.int64)

    def _take(self, batch: int, rows: NDArray[np.int64], choice: Choice, lost: set[int]) -> NDArray[np.int64]:
        """Give each sequence its token; the rows whose last one it is, beams aside."""
        table = self._table
        for request in self._searching.values():
            if request.batch == batch and request.number not in lost:
                self._search(request, rows, choice)
        # Rows that are lost or searched take no part in what follows.
        drawing = ~table.searched[rows]
        if lost:
            drawing &= ~np.isin(table.request[rows], list(lost))
        places = np.flatnonzero(drawing)
        if choice.revealed:
            drawn = np.flatnonzero(drawing[choice.revealed.rows])
            self._logprobs.record(rows, choice.revealed, drawn)
        rows = rows[places]
        ended = table.record(rows, choice.tokens[places])
        return rows[ended]

    def _search(self, request: Request, rows: NDArray[np.int64], choice: Choice) -> None:
        """Take a step of a beam search: beams take over the KV of those they continue, without a copy."""
        search, revealed = request.search, choice.revealed
        assert search is not None
        assert revealed is not None
        own = np.array(request.rows, np.int64)
        drawn = places_of(places_of(own, rows), revealed.rows)
        parents, tokens = search.step(revealed.logs[drawn], revealed.tokens[drawn])
        self._table.record(own, np.array(tokens, np.int64))
        if search.done:
            return
        builder = self._builders[request.batch]
        names = self._table.name[own].tolist()
        heirs: dict[int, int] = {}  # parent -> the beam that takes its KV as it is
        for beam, parent in enumerate(parents):
            name = names[parent]
            if heirs.setdefault(parent, beam) != beam:
                name = self._name()
                builder.forks.append((names[parent], name, ALL))
            self._table.name[own[beam]] = name
            builder.renamed.append((names[beam], name, tokens[beam]))
        builder.released += [name for parent, name in enumerate(names) if parent not in heirs]

    def _end_rows(self, batch: int, rows: NDArray[np.int64]) -> list[Request]:
        over = []
        if rows.size:
            self._leave(batch, rows.tolist())
        for row in rows.tolist():
            request = self._by_number[int(self._table.request[row])]
            reason = _reason(request, int(self._table.token[row]))
            request.ended[request.samples[row]] = self._completion(request, row, reason)
            self._close(request, [row])
            if not request.rows:
                del self._by_number[request.number]
                over.append(request)
        return over

    def _end_searches(self, batch: int) -> list[Request]:
        over = []
        for request in list(self._searching.values()):
            if request.batch == batch and request.search and request.search.done:
                request.ended = _best(request)
                self._leave(request.batch, request.rows)
                self._close(request, list(request.rows))
                del self._searching[request.number], self._by_number[request.number]
                over.append(request)
        return over

    def _completion(self, request: Request, row: int, reason: FinishReason) -> Completion:
        tokens = tuple(self._made(request, row).tolist())
        return Completion(tokens, reason, self._logprobs.of(row))

    def _leave(self, batch: int, rows: list[int]) -> None:
        """Remove requests from the batch, with their KV."""
        if rows:
            self._builders[batch].leave(self._table.name[rows])
            self._table.leave(batch, rows)

    def _close(self, request: Request, rows: list[int]) -> None:
        self._table.close(rows)
        self._logprobs.close(rows)
        for row in rows:
            request.rows.remove(row)
            request.samples.pop(row)


def _best(request: Request, reason: FinishReason | None = None) -> dict[int, Completion]:
    """Return a search's completions; each beam has its own end reason unless there is one for all."""
    assert request.search is not None
    return {
        number: Completion(beam.tokens, reason or _reason(request, beam.tokens[-1]), score=beam.score)
        for number, beam in enumerate(request.search.best(request.sampling.n))
    }


def _reason(request: Request, last: int) -> FinishReason:
    return "stop" if last in request.stops else "length"
