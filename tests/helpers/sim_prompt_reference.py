"""The reference of colocated prefill, as in docs/simulator-prefill.md: a cluster with chunks of prompts.

Memory is one list of blocks in a line, each with what it holds; nothing is added up that can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sim_reference

Holds = tuple[str, int, int]  # what a block holds: its kind, of what, and which of its blocks


@dataclass(eq=False)
class Prompted(sim_reference.Request):
    computed: int = 0
    shared: int = 0  # its first prefix blocks, which it holds
    own: int = 0  # KV blocks besides them
    seated: bool = False
    decodes: bool = False


@dataclass
class Memory:
    """Unused blocks, the first to be taken first; and prefix blocks with their holders."""

    line: list[Holds | None]
    holders: dict[int, int] = field(default_factory=dict)

    def take(self, blocks: int) -> None:
        for _ in range(blocks):
            taken = self.line.pop(0)
            if taken and taken[0] == "prefix":  # can no longer be reused
                self.line = [None if entry and entry[:2] == taken[:2] else entry for entry in self.line]

    def here(self, id_: int) -> bool:
        return id_ in self.holders or any(entry and entry[:2] == ("prefix", id_) for entry in self.line)

    def hold(self, id_: int) -> None:
        self.line = [entry for entry in self.line if not entry or entry[:2] != ("prefix", id_)]
        self.holders[id_] = self.holders.get(id_, 0) + 1

    def drop(self, id_: int, blocks: int) -> None:
        self.holders[id_] -= 1
        if not self.holders[id_]:
            del self.holders[id_]
            self.line += [("prefix", id_, place) for place in range(blocks)]

    def cached_blocks(self, row: int) -> int:
        return sum(1 for entry in self.line if entry and entry[:2] == ("request", row))


class PromptCluster(sim_reference.Cluster):
    """A cluster whose batches compute prompts in chunks."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.requests = [Prompted(r.row, r.prompt, r.output, r.prefix) for r in self.requests]
        self.releases: list[tuple[int, int]] = []  # rows whose KV is no longer needed, and since when
        self.retained: set[int] = set()
        self.unit = given["prefix_block_tokens"]
        self.unit_blocks = -(-self.unit // self.block)
        blocks = self.capacity // self.block
        self.memory = [Memory([None] * blocks) for _ in self.pools]
        self.prompt: list[Prompted | None] = [None for _ in self.batches]
        self.ended: list[list[Prompted]] = [[] for _ in self.batches]
        self.ended_before: list[list[Prompted]] = [[] for _ in self.batches]
        self.finishing: list[list[Prompted]] = [[] for _ in self.batches]  # their prompt ends
        self.chunks: list[list[tuple[Prompted, int, int]]] = [[] for _ in self.batches]
        self.launching = [0 for _ in self.batches]  # from when, at least, the host launches an iteration
        self.launched = [0 for _ in self.batches]  # until when it launched the last one outside graphs

    # Memory

    def shareable(self, r: Prompted) -> int:
        return min(len(r.prefix), r.prompt // self.unit)

    def blocks_for(self, r: Prompted, tokens: int) -> int:
        shared = min(self.shareable(r), tokens // self.unit)
        return int(shared * self.unit_blocks + -(-(tokens - shared * self.unit) // self.block))

    def fits_alone(self, r: Prompted) -> bool:
        return self.blocks_for(r, r.prompt + r.output) * self.block + self.extra <= self.capacity

    def give_back(self, r: Prompted, cached: int) -> None:
        memory = self.memory[r.pool]
        memory.line += [None] * (r.own - cached + self.extra // self.block)
        # The blocks written last are taken first.
        memory.line += [("request", r.row, place) for place in reversed(range(cached))]
        r.own = 0
        for i in reversed(range(r.shared)):
            memory.drop(r.prefix[i], self.unit_blocks)
        r.shared = 0
        r.seated = False

    # The boundary

    def seats(self, j: int) -> int:
        return sum(r.seated and r.batch == j for r in self.requests)

    def running(self) -> int:
        return sum(r.seated for r in self.requests)

    def finish_iteration(self, batch: Any) -> None:
        j = batch.number
        if not batch.ran:
            return
        self.now = max(self.now, batch.end)
        for r in batch.requests:
            r.computed += 1
        for r in self.finishing[j]:
            r.decodes = True
            batch.requests.append(r)
        self.finishing[j] = []
        for r in list(batch.requests):
            r.made += 1
            if r.made == 1:
                r.first_token = batch.end + self.costs["out"]
            if r.made == r.output:
                r.finished, r.last_iteration = batch.end + self.costs["out"], batch.iteration
                self.send_next()
                if r.preemptions:
                    self.end_stint(r, batch, batch.iteration)
                batch.requests.remove(r)
                if self.given.get("holds"):
                    r.seated = False
                    self.retained.add(r.row)
                else:
                    self.ended[j].append(r)
                    self.ended_rows.append(r.row)
        batch.iteration += 1

    def send_back(self, r: Prompted) -> None:
        own_tokens = r.computed - r.shared * self.unit
        cached = own_tokens // self.block if r.shared == self.shareable(r) else 0
        self.give_back(r, cached)
        r.computed, r.decodes = 0, False
        r.preemptions += 1
        self.queue.append(r)

    def preempt_last(self, batch: Any, pool: int) -> None:
        j = batch.number
        prompt = self.prompt[j]
        if prompt and prompt.pool == pool:
            self.prompt[j] = None
            self.send_back(prompt)
            return
        r = [each for each in batch.requests if each.pool == pool][-1]
        batch.requests.remove(r)
        self.end_stint(r, batch, batch.iteration - 1)
        self.send_back(r)

    def compute(self, batch: Any, r: Prompted, budget: int) -> int | None:
        """Compute the next chunk; return the budget left, or None if there is no memory for it."""
        j, memory = batch.number, self.memory[r.pool]
        known = r.prompt + r.made
        tokens = min(known - r.computed, budget)
        if tokens == 0:
            return budget
        if self.given["admission"] == "grow":
            more = self.blocks_for(r, r.computed + tokens) - self.blocks_for(r, r.computed)
            if more > len(memory.line):
                return None
            memory.take(more)
            r.own += more
        self.chunks[j].append((r, tokens, r.computed))
        r.computed += tokens
        while r.shared < min(self.shareable(r), r.computed // self.unit):
            id_ = r.prefix[r.shared]
            r.own -= self.unit_blocks
            if memory.here(id_):
                memory.hold(id_)
                memory.line += [None] * self.unit_blocks
            else:
                memory.holders[id_] = 1
            r.shared += 1
        self.prompt[j] = r
        if r.computed == known:
            self.prompt[j] = None
            self.finishing[j].append(r)
        return budget - tokens

    def try_admit(self, batch: Any, r: Prompted) -> bool:
        grows = self.given["admission"] == "grow"
        known = r.prompt + r.made
        extra = self.extra // self.block
        needed = self.blocks_for(r, known if grows else r.prompt + r.output)
        tokens = [0] * len(self.pools)
        for each in self.requests:
            if each.seated and each.batch == batch.number and each.finished < 0:
                tokens[each.pool] += each.computed if each.decodes else each.prompt + each.made
        pool = self.emptiest(tokens, [len(memory.line) for memory in self.memory], needed + extra)
        memory = self.memory[pool]
        hits = 0
        while hits < min(self.shareable(r), (known - 1) // self.unit) and memory.here(r.prefix[hits]):
            hits += 1
        own = memory.cached_blocks(r.row) if hits == self.shareable(r) else 0
        shared_blocks = sum(r.prefix[i] in memory.holders for i in range(hits)) * self.unit_blocks
        if needed + extra - shared_blocks > len(memory.line):
            return False
        for other in self.memory:  # no longer reusable from now on
            cached = [entry for entry in other.line if entry and entry[:2] == ("request", r.row)]
            if other is memory and own:
                other.line = [entry for entry in other.line if entry not in cached]
            else:
                other.line = [None if entry in cached else entry for entry in other.line]
        for i in range(hits):
            memory.hold(r.prefix[i])
        r.pool, r.batch, r.shared, r.own, r.seated = pool, batch.number, hits, own, True
        r.computed = hits * self.unit + own * self.block
        memory.take(extra)
        if not grows:
            memory.take(needed - hits * self.unit_blocks - own)
            r.own = needed - hits * self.unit_blocks
        return True

    def receive(self) -> None:
        for row, at in list(self.releases):
            if at <= self.now:
                self.releases.remove((row, at))
                self.retained.remove(row)
                self.give_back(self.requests[row], 0)

    def idle_until(self) -> float:
        waits = [at for _, at in self.releases] if self.queue else []
        return min([super().idle_until(), *waits])

    def schedule(self, batch: Any) -> None:
        """Schedule the batch's next iteration."""
        j = batch.number
        self.chunks[j] = []
        before = sum(r.preemptions for r in self.requests)
        if self.given["admission"] == "grow":
            for r in list(batch.requests):
                while (
                    r in batch.requests
                    and self.blocks_for(r, r.computed + 1) > r.own + r.shared * self.unit_blocks
                ):
                    if self.memory[r.pool].line:
                        self.memory[r.pool].take(1)
                        r.own += 1
                    else:
                        self.preempt_last(batch, r.pool)
        budget = self.given["prompt_budget"] - len(batch.requests)
        prompt = self.prompt[j]
        if prompt:
            left = self.compute(batch, prompt, budget)
            if left is None:
                self.preempt_last(batch, prompt.pool)
            else:
                budget = left
        if sum(r.preemptions for r in self.requests) > before:
            return
        most = -(-self.given["max_requests"] // len(self.batches))
        while budget and self.queue and self.seats(j) < most and self.running() < self.given["max_requests"]:
            head = min(self.queue, key=lambda r: (r.key, r.order))
            if not self.try_admit(batch, head):
                return
            self.queue.remove(head)
            if head.admitted < 0:
                head.admitted = self.now
            left = self.compute(batch, head, budget)
            assert left is not None
            budget = left

    def serve(self, batch: Any) -> Any:
        j = batch.number
        lags = self.costs["host_async"]
        prepared = batch.lasted if lags else 0
        started = batch.end - batch.lasted
        batch.lasted = 0
        ran = batch.ran
        self.finish_iteration(batch)
        self.launching[j] = started if prepared > 0 else self.now
        self.known_until = started if ran and lags else self.now
        self.arrive()
        self.receive()
        for r in self.ended_before[j]:
            self.give_back(r, 0)
        self.ended_before[j] = []
        if lags:
            self.ended[j], self.ended_before[j] = [], self.ended[j]
        else:
            for r in self.ended[j]:
                self.give_back(r, 0)
            self.ended[j] = []
        self.schedule(batch)
        for r in self.finishing[j]:
            r.stint = batch.iteration
            if r.first_iteration < 0:
                r.first_iteration = batch.iteration
        self.peak = max(self.peak, sum(self.capacity - len(m.line) * self.block for m in self.memory))
        if self.queue_empty < 0 and not self.queue and len(self.to_come) < len(self.requests):
            self.queue_empty = self.now
        if not batch.requests and not self.chunks[j]:
            return None
        return self.prompt_work(batch, prepared)

    def prompt_work(self, batch: Any, prepared: int) -> Any:
        j, costs, prompts = batch.number, self.costs, self.costs["prompts"]
        decoding = len(batch.requests)
        rows = decoding + sum(tokens for _, tokens, _ in self.chunks[j])
        made = decoding + len(self.finishing[j])
        kv = [0] * len(self.pools)
        for r in batch.requests:
            kv[r.pool] += r.computed
        chunks = [0] * len(self.pools)
        for r, tokens, before in self.chunks[j]:
            attended = range(before + 1, before + tokens + 1)
            compute = tokens * prompts["per_row"] + sum(attended) * prompts["per_pair"]
            if windowed := costs.get("windowed"):
                compute += sum(min(windowed["window"], each) for each in attended) * windowed["per_pair"]
            chunks[r.pool] += sim_reference.nearest(max(compute, (before + tokens) * prompts["per_token"]))
        attention = max(chunks) + (prompts["fixed"] if self.chunks[j] else 0)
        if "measured" in costs:
            attention = self.measured_attention(
                [(r.pool, r.computed) for r in batch.requests],
                [(r.pool, tokens, before) for r, tokens, before in self.chunks[j]],
            )
        elif decoding:
            attention += self.attention_of(decoding, max(kv))
        return self.work_of(
            rows=rows,
            made=made,
            sequences=decoding + len(self.chunks[j]),
            joined=len(self.finishing[j]),
            kv=kv,
            attention=attention,
            more_first=0,
            more_last=int(prompts["head"][made]),
            stored=max(self.capacity - len(m.line) * self.block for m in self.memory),
            prepared=prepared,
        )

    def run_cycle(self, works: list[Any], cycle: int) -> None:
        super().run_cycle(works, cycle)
        for j, (batch, work) in enumerate(zip(self.batches, works, strict=True)):
            rows = len(batch.requests) + sum(tokens for _, tokens, _ in self.chunks[j])
            takes = self.costs["launch"]
            if work and takes and self.chunks[j] and rows > self.costs["graph_rows"]:
                self.launched[j] = max(self.launched[j], self.launching[j]) + takes
                later = max(0, self.launched[j] - batch.end)
                batch.end += later
                work.host += later

    def note_iteration(self, batch: Any, work: Any) -> None:
        super().note_iteration(batch, work)
        self.iterations[-1]["prompt_tokens"] = sum(tokens for _, tokens, _ in self.chunks[batch.number])

    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = super().results()
        return results | {"prompts": {"prompt_tokens": [row["prompt_tokens"] for row in self.iterations]}}


def run(**given: Any) -> dict[str, Any]:
    cluster = PromptCluster(**given)
    sim_reference.come(cluster)
    results: dict[str, Any] = cluster.run()
    return results
