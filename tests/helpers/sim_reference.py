"""The virtual cluster of docs/simulator.md in slow, obvious Python, to test the C++ simulator against.

Plain loops over layers and lists of requests, one step after the other as the page tells them. Times are
whole ticks; -1 stands for what never came to pass. `run` takes what `laminabench._sim.run` takes.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import measured_reference


def nearest(x: float) -> int:
    return math.floor(x + 0.5)


def blocks_up(tokens: int, block: int) -> int:
    return (tokens + block - 1) // block * block


@dataclass(eq=False)
class Request:
    row: int
    prompt: int
    output: int
    prefix: list[int]
    made: int = 0
    key: int = 0
    arrival: int = -1
    admitted: int = -1
    first_token: int = -1
    finished: int = -1
    first_iteration: int = -1
    last_iteration: int = -1
    preemptions: int = 0
    batch: int = -1
    pool: int = -1
    charged: int = 0  # for itself alone, in tokens; its pool counts shared ones
    stint: int = -1  # the iteration of its batch with which it joined last
    at: int = 0  # when it arrives here
    order: int = 0  # of arrival here
    here: bool = True  # whether its KV is, if that is computed elsewhere


@dataclass(eq=False)
class Pool:
    own: int = 0  # charged to one request each
    holders: Counter[int] = field(default_factory=Counter)  # shared block -> requests that hold it
    lengths: dict[int, int] = field(default_factory=dict)  # shared block -> its tokens


@dataclass(eq=False)
class Batch:
    number: int
    requests: list[Request] = field(default_factory=list)  # in the order they joined
    admitted: list[Request] = field(default_factory=list)  # will join at the next boundary
    iteration: int = 0
    lasted: int = 0  # how long its iteration in the last cycle took; 0 without one
    ran: bool = False
    end: int = 0
    read: float = 0.0  # share of the iteration under way that attention takes


@dataclass
class Work:
    """The durations of one batch's next iteration."""

    start: int
    joined: int
    size: int
    kv: int
    host: int
    first: int
    mid: int
    last: int
    q_lead: int
    q: int
    kv_transfer: int
    attention: int
    combine: int
    out: int
    migration: int


class Cluster:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.costs = given["costs"]
        self.layers = given["layers"]
        self.block: int = given["block_tokens"]
        self.extra = blocks_up(given["request_tokens"], self.block)  # charged for each request
        self.capacity: int = given["tokens_per_pool"] // self.block * self.block
        offsets = [int(x) for x in given["prefix_offsets"]] or [0] * (len(given["prompt"]) + 1)
        ids = [int(x) for x in given["prefix_ids"]]
        self.requests = [
            Request(row, int(prompt), int(output), ids[offsets[row] : offsets[row + 1]])
            for row, (prompt, output) in enumerate(zip(given["prompt"], given["output"], strict=True))
        ]
        self.to_come: list[Request] = []
        self.delivered = 0  # in all
        self.closed = given["mode"] == "closed"
        self.sent = [0] * int(given["concurrency"])  # closed: when clients sent what is to come
        self.front_end_free = 0
        self.known_until = 0
        self.ended_rows: list[int] = []  # rows of those that ended or were rejected
        self.turn = 0  # the batch whose boundary is next
        self.works: list[Work | None] = []
        self.cycle = 0
        self.queue: list[Request] = []
        self.pools = [Pool() for _ in range(given["pools"])]
        self.batches = [Batch(j) for j in range(given["batches"])]
        n = len(self.batches)
        own = {"serial": 1, "rotational": max(n - 1, 1), "fixed": n, "pingpong": 1}
        self.replicas = own[given["pipelining"]]
        self.migrates = given["pipelining"] == "rotational" and self.replicas > 1
        self.replica_free = [0] * self.replicas
        self.replica_busy = [0] * self.replicas
        self.attention_free = self.attention_busy = 0
        self.slices = 0  # k of the next cycle's first slice
        self.now = 0
        self.queue_empty = -1
        self.peak = 0
        self.iterations: list[dict[str, int]] = []
        self.timeline: list[dict[str, int]] = []
        self.stints: list[dict[str, int]] = []

    def deliver(self, row: int, at: int) -> None:
        """Deliver a request, served in order of arrival unless `order` is given."""
        request = self.requests[row]
        request.at, request.order = at, self.delivered
        self.delivered += 1
        self.to_come.append(request)

    # Memory. A prompt's prefix blocks are shared, each rounded up by itself; the rest of the prompt and the
    # generated tokens belong to the request alone.

    def free_tokens(self, pool: Pool) -> int:
        shared = sum(blocks_up(pool.lengths[block], self.block) for block in pool.holders)
        return self.capacity - pool.own - shared

    def shared_lengths(self, request: Request) -> dict[int, int]:
        size = self.given["prefix_block_tokens"]
        return {block: min(size, request.prompt - i * size) for i, block in enumerate(request.prefix)}

    def own_tokens(self, request: Request) -> int:
        """Return the tokens charged to the request besides its shared blocks."""
        of_prompt = request.prompt - sum(self.shared_lengths(request).values())
        generated = request.output if self.given["admission"] == "reserve" else request.made + 1
        return blocks_up(of_prompt + generated, self.block) + self.extra

    def fits(self, request: Request, pool: Pool) -> bool:
        lengths = self.shared_lengths(request)
        new = sum(blocks_up(lengths[block], self.block) for block in lengths if block not in pool.holders)
        spare = self.capacity // 100 if self.given["admission"] == "grow" and self.running() else 0
        return self.own_tokens(request) + new + spare <= self.free_tokens(pool)

    def fits_alone(self, request: Request) -> bool:
        """Return whether an empty pool has room for the request and its last token."""
        lengths = self.shared_lengths(request).values()
        own = blocks_up(request.prompt - sum(lengths) + request.output, self.block)
        return self.extra + own + sum(blocks_up(length, self.block) for length in lengths) <= self.capacity

    def charge(self, request: Request, pool: Pool) -> None:
        request.charged = self.own_tokens(request)
        pool.own += request.charged
        for block, length in self.shared_lengths(request).items():
            if block not in pool.holders:
                pool.lengths[block] = length
            pool.holders[block] += 1

    def release(self, request: Request) -> None:
        pool = self.pools[request.pool]
        pool.own -= request.charged
        request.charged = 0
        for block in request.prefix:
            pool.holders[block] -= 1
        pool.holders = +pool.holders  # forget the blocks without holders

    # The boundary of one batch, step by step

    def finish_iteration(self, batch: Batch) -> None:
        if not batch.ran:
            return
        self.now = max(self.now, batch.end)
        for request in list(batch.requests):
            request.made += 1
            if request.made == 1:
                request.first_token = batch.end + self.costs["out"]
            if request.made == request.output:
                request.finished = batch.end + self.costs["out"]
                self.send_next()
                request.last_iteration = batch.iteration
                if request.preemptions:
                    self.end_stint(request, batch, batch.iteration)
                batch.requests.remove(request)
                self.release(request)
                self.ended_rows.append(request.row)
        batch.iteration += 1

    def end_stint(self, request: Request, batch: Batch, last: int) -> None:
        stint = {"request": request.row, "batch": batch.number, "first_iteration": request.stint}
        self.stints.append(stint | {"last_iteration": last})

    def running(self) -> int:
        return sum(len(batch.requests) + len(batch.admitted) for batch in self.batches)

    def coming(self) -> float:
        """Return when the next request is in the queue, behind a front end that takes one at a time."""
        if not self.to_come or (self.closed and not self.sent):
            return math.inf
        sent = self.sent[0] if self.closed else self.to_come[0].at
        return max(self.front_end_free, sent) + self.costs["request_serial"] + self.costs["request_in"]

    def send_next(self) -> None:
        """Let a client that has its answer send its next request."""
        self.sent.append(self.now + self.costs["out"])

    def arrive(self) -> None:
        while self.coming() <= self.known_until:
            self.front_end_free = int(self.coming()) - self.costs["request_in"]
            request = self.to_come.pop(0)
            request.arrival = self.sent.pop(0) if self.closed else request.at
            if not self.fits_alone(request):
                self.ended_rows.append(request.row)
                self.send_next()
                continue  # rejected
            priority = self.given["priority"]
            request.key = request.order if priority is None else priority(request.row)
            self.queue.append(request)

    def grow(self, batch: Batch) -> None:
        if self.given["admission"] != "grow":
            return
        for request in list(batch.requests):
            pool = self.pools[request.pool]
            while request in batch.requests and self.own_tokens(request) > request.charged:
                more = self.own_tokens(request) - request.charged
                if more <= self.free_tokens(pool):
                    request.charged += more
                    pool.own += more
                else:
                    self.preempt(batch, [r for r in batch.requests if r.pool == request.pool][-1])

    def preempt(self, batch: Batch, request: Request) -> None:
        batch.requests.remove(request)
        self.release(request)
        request.preemptions += 1
        self.end_stint(request, batch, batch.iteration - 1)
        self.queue.append(request)

    def admit(self) -> None:
        while self.queue and self.running() < self.given["max_requests"]:
            head = min(self.queue, key=lambda request: (request.key, request.order))
            pool = max(self.pools, key=self.free_tokens)  # the first of equals
            if not self.fits(head, pool):
                return
            self.queue.remove(head)
            self.charge(head, pool)
            head.pool = self.pools.index(pool)
            self.admitted(head)
            # As many batches as have enough requests each: the fullest. Python's sorts keep equals in order.
            load = {b.number: len(b.requests) + len(b.admitted) for b in self.batches}
            enough = max(1, (sum(load.values()) + 1) // self.given["min_batch"])
            fullest = sorted(self.batches, key=lambda b: -load[b.number])[:enough]
            batch = min(sorted(fullest, key=lambda b: b.number), key=lambda b: load[b.number])
            batch.admitted.append(head)

    def admitted(self, request: Request) -> None:
        """Note that a request was given memory."""

    def join(self, batch: Batch) -> tuple[int, int]:
        """Return how many join, and the tokens whose KV was lost."""
        joined = [r for r in self.ready_first(batch.admitted) if r.here]
        batch.admitted = [r for r in batch.admitted if not r.here]
        batch.requests += joined
        for request in joined:
            request.batch = batch.number
            request.stint = batch.iteration
            if request.admitted < 0:
                request.admitted = self.now
                request.first_iteration = batch.iteration
        return len(joined), sum(r.prompt + r.made for r in joined if r.preemptions)

    def ready_first(self, admitted: list[Request]) -> list[Request]:
        """Return the requests in the order in which they became ready: here that of admission."""
        return admitted

    def receive(self) -> None:
        """Receive what comes from elsewhere."""

    def serve(self, batch: Batch) -> Work | None:
        """Serve a batch's boundary; return the work of its next iteration, None without requests."""
        prepared = batch.lasted if self.costs["host_async"] else 0
        batch.lasted = 0
        self.finish_iteration(batch)
        self.known_until = self.now
        self.arrive()
        self.receive()
        self.grow(batch)
        self.admit()
        joined, lost = self.join(batch)
        charged = sum(self.capacity - self.free_tokens(pool) for pool in self.pools)
        self.peak = max(self.peak, charged)
        stored = max(self.written(number) for number in range(len(self.pools)))
        if self.queue_empty < 0 and not self.queue and len(self.to_come) < self.delivered:
            self.queue_empty = self.now
        return self.work(batch, joined, lost, stored, prepared) if batch.requests else None

    def written(self, number: int) -> int:
        """Return the tokens in a pool, without those that are charged but not yet written."""
        here = [r for batch in self.batches for r in batch.requests if r.pool == number]
        tokens = sum(r.prompt + r.made + self.extra for r in here)
        return min(self.capacity - self.free_tokens(self.pools[number]), tokens)

    def measured_attention(self, attended: list[tuple[int, int]], chunks: list[tuple[int, int, int]]) -> int:
        """Return the slowest worker's time; all are given with their pools."""
        measured = measured_reference.Measured(self.costs["measured"])
        return max(
            measured.ticks(
                [kv for pool, kv in attended if pool == here],
                [(tokens, before) for pool, tokens, before in chunks if pool == here],
            )
            for here in range(len(self.pools))
        )

    def attention_of(self, decoding: int, kv: int) -> int:
        """Return the attention time of decoding requests, without prompts."""
        costs = self.costs
        attention = int(costs["attention_fixed"][decoding])
        attention += nearest(kv * float(costs["attention_per_token"][decoding]))
        if "windowed" in costs:
            attended = min(kv, decoding * costs["windowed"]["window"])
            attention += nearest(attended * float(costs["windowed"]["per_token"][decoding]))
        return attention

    def work(self, batch: Batch, joined: int, lost: int, stored: int, prepared: int) -> Work:
        costs, size = self.costs, len(batch.requests)
        kv = [0] * len(self.pools)
        for request in batch.requests:
            kv[request.pool] += request.prompt + request.made
        if "measured" in costs:
            attention = self.measured_attention([(r.pool, r.prompt + r.made) for r in batch.requests], [])
        else:
            attention = self.attention_of(size, max(kv))
        return self.work_of(
            rows=size,
            made=size,
            sequences=size,
            joined=joined,
            kv=kv,
            attention=attention,
            more_first=nearest(lost * costs["recompute_per_token"]),
            more_last=0,
            stored=stored,
            prepared=prepared,
        )

    def work_of(
        self,
        *,
        rows: int,
        made: int,
        sequences: int,
        joined: int,
        kv: list[int],
        attention: int,
        more_first: int,
        more_last: int,
        stored: int,
        prepared: int,
    ) -> Work:
        """Return the work of an iteration of this many rows and sequences, without paging."""
        costs = self.costs
        table = {name: int(costs[name][rows]) for name in TABLES if name != "attention_fixed"}
        attention += table["attention_rows"]
        if stored > costs["device_tokens"]:
            # The share first: the page leaves the order of these floating-point operations open.
            share = (stored - costs["device_tokens"]) / stored
            attention += nearest(max(kv) * share * costs["paged_per_token"])
        q, out, chunks = table["q_transfer"], table["out_transfer"], costs["stream_chunks"]
        if costs["stream_by_request"]:
            chunks = min(chunks, rows)
        if chunks > 1:
            attention += (chunks - 1) * costs["chunk_overhead"]
            latency = costs["transfer_latency"]
            q, out = q - latency, out - latency
            attention = attention // chunks + max(q, attention, out) * (chunks - 1) // chunks
            q, out = latency + q // chunks, latency + out // chunks
        return Work(
            start=self.now,
            joined=joined,
            size=made,
            kv=sum(kv),
            host=max(0, costs["host_fixed"] + nearest(sequences * costs["host_per_request"]) - prepared)
            + nearest(sequences * costs["gap_per_request"]),
            first=table["first_slice"] + more_first,
            mid=table["mid_slice"],
            last=table["last_slice"] + more_last,
            q_lead=table["q_lead"],
            q=q,
            kv_transfer=table["kv_transfer"],
            attention=attention,
            combine=costs["combine"],
            out=out,
            migration=table["migration"] if self.migrates else 0,
        )

    # A cycle

    def run_cycle(self, works: list[Work | None], cycle: int) -> None:
        ready = [work.start + work.host if work else 0 for work in works]
        for k in range(self.layers + 1):
            for j, work in enumerate(works):
                if work is None:
                    continue
                replica = self.replica_of(j, self.slices + k)
                length = work.first if k == 0 else work.last if k == self.layers else work.mid
                start = max(ready[j], self.replica_free[replica])
                end = start + length
                self.replica_free[replica] = end
                self.replica_busy[replica] += length
                self.record(j, replica, cycle, k, start, end)
                if k == self.layers:
                    self.batches[j].end = end
                    continue
                own = self.given["own_attention"]
                free = self.replica_free[replica] if own else self.attention_free
                start = max(end - work.q_lead + work.q, free)
                done = max(start + work.attention, end + work.kv_transfer) + work.combine
                if own:
                    self.replica_free[replica] = done
                else:
                    self.attention_free = done
                self.attention_busy += work.attention + work.combine
                self.record(j, -1, cycle, k, start, done)
                ready[j] = max(done + work.out, end + work.migration)
        self.slices += self.layers + 1

    def replica_of(self, j: int, k: int) -> int:
        own = {"serial": 0, "rotational": (j + k) % self.replicas, "fixed": j, "pingpong": 0}
        return own[self.given["pipelining"]]

    def record(self, batch: int, worker: int, cycle: int, k: int, start: int, end: int) -> None:
        if self.given["record_from"] <= start < self.given["record_to"]:
            row = {"batch": batch, "worker": worker, "iteration": self.batches[batch].iteration}
            row |= {"cycle": cycle, "slice": k, "start_s": start, "end_s": end}
            self.timeline.append(row)

    def note_iteration(self, batch: Batch, work: Work) -> None:
        row = {"batch": batch.number, "iteration": batch.iteration, "start_s": work.start}
        batch.lasted = batch.end - work.start
        row |= {"duration_s": batch.lasted, "size": work.size, "joined": work.joined}
        row |= {"kv_tokens": work.kv, "model_s": work.first + (self.layers - 1) * work.mid + work.last}
        row |= {"attention_s": self.layers * (work.attention + work.combine)}
        row |= {"network_s": self.layers * (work.q + work.out), "host_s": work.host}
        self.iterations.append(row)

    def due(self) -> float:
        """Return the moment of the next boundary; infinity if there is nothing to do."""
        batch = self.batches[self.turn]
        ends = [each.end for each in self.batches if each.ran]
        if self.turn or ends:
            woken = self.now if self.turn else max(self.now, min(ends))
            return max(woken, batch.end) if batch.ran else woken
        if self.waits_to_join():  # admitted to a batch served before: it joins now
            return self.now
        return max(self.now, self.idle_until())

    def waits_to_join(self) -> bool:
        return self.running() > 0

    def idle_until(self) -> float:
        return self.coming()

    def step(self) -> None:
        """Serve one boundary, and after the last batch's the cycle."""
        if self.turn == 0:
            self.now = int(self.due())
            self.works = []
        batch = self.batches[self.turn]
        work = self.serve(batch)
        self.works.append(work)
        batch.ran, batch.read = False, 0.0
        self.turn += 1
        if self.turn < len(self.batches):
            return
        self.turn = 0
        for batch, work in zip(self.batches, self.works, strict=True):
            batch.ran = work is not None
        if not any(self.works):
            return
        self.run_cycle(self.works, self.cycle)
        self.cycle += 1
        for batch, work in zip(self.batches, self.works, strict=True):
            if work:
                self.note_iteration(batch, work)
                reading = self.layers * (work.attention + work.combine)
                batch.read = reading / batch.lasted if batch.lasted else 0.0

    def run(self) -> dict[str, Any]:
        while self.due() < math.inf:
            self.step()
        return self.results()

    def results(self) -> dict[str, Any]:
        requests = {
            f"{name}_s": [getattr(r, name) for r in self.requests]
            for name in ("arrival", "admitted", "first_token", "finished")
        } | {
            name: [getattr(r, name) for r in self.requests]
            for name in ("first_iteration", "last_iteration", "batch", "preemptions")
        }
        return {
            "requests": requests,
            "iterations": {name: [row[name] for row in self.iterations] for name in ITERATION_COLUMNS},
            "stints": {name: [row[name] for row in self.stints] for name in STINT_COLUMNS},
            "timeline": {name: [row[name] for row in self.timeline] for name in TIMELINE_COLUMNS},
            "replica_busy_s": self.replica_busy,
            "attention_busy_s": self.attention_busy,
            "end_s": self.now,
            "queue_empty_s": self.queue_empty if self.queue_empty >= 0 else self.now,
            "peak_kv_tokens": self.peak,
            "kv_capacity_tokens": self.capacity * len(self.pools),
        }


TABLES = (
    *("first_slice", "mid_slice", "last_slice", "q_lead", "q_transfer", "kv_transfer", "out_transfer"),
    *("migration", "attention_rows", "attention_fixed"),
)
ITERATION_COLUMNS = (
    *("batch", "iteration", "start_s", "duration_s", "size", "joined", "kv_tokens"),
    *("model_s", "attention_s", "network_s", "host_s"),
)
STINT_COLUMNS = ("request", "batch", "first_iteration", "last_iteration")
TIMELINE_COLUMNS = ("batch", "worker", "iteration", "cycle", "slice", "start_s", "end_s")


def come(cluster: Cluster) -> None:
    """Deliver all requests of a cluster that serves them alone."""
    at = cluster.given["arrival"] if cluster.given["mode"] == "open" else [0] * len(cluster.requests)
    for row, moment in enumerate(at):
        cluster.deliver(row, int(moment))


def run(**given: Any) -> dict[str, Any]:
    cluster = Cluster(**given)
    come(cluster)
    return cluster.run()
