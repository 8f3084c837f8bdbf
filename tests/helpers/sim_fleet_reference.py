"""The reference of several instances behind a router, and of prompt pools, as in docs/simulator.md."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import Any

import sim_reference
from router_reference import RouterReference
from sim_prompt_reference import PromptCluster
from sim_reference import Cluster, Request


class Receiving(Cluster):
    """A cluster whose requests' KV comes over a link from the engine that computed their prompts."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.link: deque[list[int]] = deque()  # row, time on the link that is left, not before
        self.landed: list[list[int]] = []
        self.since = 0
        self.prompt_end: dict[int, int] = {}  # when a row's prompt was computed
        self.ready: list[int] = []  # rows in the order in which they became ready
        self.received: list[int] = []
        self.lost: list[Request] = []

    def coming(self) -> float:
        return self.to_come[0].at if self.to_come else math.inf  # it has passed a front end before

    def arrive(self) -> None:
        free = self.front_end_free
        super().arrive()
        self.front_end_free = free

    def admitted(self, request: Request) -> None:
        request.here = False
        if request.made:  # KV lost here is recomputed here, from its batch's next boundary on
            self.lost.append(request)
            return
        pool = self.given["pool"]
        windowed = min(request.prompt, pool["window"]) * pool["windowed_per_token"]
        takes = pool["latency"] + sim_reference.nearest(request.prompt * pool["per_token"] + windowed)
        if not self.link:
            self.since = max(self.since, self.now)
        later = takes // self.layers if pool["pulled"] else 0
        self.link.append([request.row, takes, self.prompt_end[request.row] + later])

    def ends(self, share: float) -> float:
        return self.since + math.ceil(self.link[0][1] / share) if share > 0 else math.inf

    def receive(self) -> None:
        busy = sum(batch.read for batch in self.batches)
        share = 1 - min(1.0, busy) if self.given["pool"]["pulled"] else 1.0
        while self.link and self.ends(share) <= self.now:
            self.since = int(self.ends(share))
            self.landed.append(self.link.popleft())
        if self.link and self.since < self.now:
            self.link[0][1] -= int((self.now - self.since) * share)
            self.since = self.now
        for moving in list(self.landed):
            if moving[2] <= self.now:
                self.landed.remove(moving)
                self.requests[moving[0]].here = True
                self.ready.append(moving[0])
                self.received.append(moving[0])

    def ready_first(self, admitted: list[Request]) -> list[Request]:
        return sorted(
            admitted, key=lambda r: self.ready.index(r.row) if r.row in self.ready else len(self.ready)
        )

    def join(self, batch: Any) -> tuple[int, int]:
        result = super().join(batch)
        joined = {r.row for r in batch.requests}
        self.ready = [row for row in self.ready if row not in joined]
        for request in self.lost:
            request.here = True
            self.ready.append(request.row)
        self.lost = []
        return result

    def waits_to_join(self) -> bool:
        return any(r.here for batch in self.batches for r in batch.admitted)

    def idle_until(self) -> float:
        moments = [super().idle_until(), *(moving[2] for moving in self.landed)]
        if self.link:
            moments.append(max(self.ends(1), self.link[0][2]))
        return min(moments)


class Pooled:
    """A deployment and the engines that compute its prompts."""

    def __init__(self, **given: Any) -> None:
        pool = given["pool"]
        self.pulled = pool["pulled"]
        self.outputs = [int(x) for x in given["output"]]
        one_token = {"output": [1] * len(self.outputs), "admission": "reserve", "holds": True}
        own = given | pool | one_token | {"mode": "open", "record_from": 0, "record_to": 0}
        self.engines = [PromptCluster(**own) for _ in range(pool["copies"])]
        decoded = {"output": [x - self.pulled for x in self.outputs]}
        self.decoding = Receiving(**given | decoded | {"mode": "open"})
        self.full_size = Cluster(**given)  # decides whether a request fits
        self.router = RouterReference("least-requests", [(1, 1)] * len(self.engines))
        self.engine_of: dict[int, int] = {}
        self.finished: dict[int, int] = {}  # by the pool
        self.gaps: list[dict[str, int]] = []
        self.ended_rows: list[int] = []

    def deliver(self, row: int, at: int) -> None:
        if not self.full_size.fits_alone(self.full_size.requests[row]):
            self.ended_rows.append(row)
            return
        engine = self.router.route(0, 0)
        assert engine is not None
        self.engine_of[row] = engine
        self.engines[engine].deliver(row, at)

    def due(self) -> float:
        return min(self.decoding.due(), *(engine.due() for engine in self.engines))

    def step(self) -> None:
        first = min(range(len(self.engines)), key=lambda i: self.engines[i].due())
        if self.engines[first].due() <= self.decoding.due():
            self.engines[first].step()
            self.computed(first)
        else:
            self.decoding.step()
            self.decoded()

    def computed(self, number: int) -> None:
        engine = self.engines[number]
        for row in [row for row in engine.ended_rows if row in self.engine_of]:
            del self.engine_of[row]
            self.router.left(number, 0, 0)
            self.ended_rows.append(row)
        batch = engine.batches[0]
        for r in engine.finishing[0] if batch.ran else []:
            self.router.left(number, 0, 0)
            start = batch.end - batch.lasted
            self.decoding.prompt_end[r.row] = batch.end
            if self.pulled and self.outputs[r.row] == 1:
                self.finished[r.row] = batch.end + engine.costs["out"]
                engine.releases.append((r.row, batch.end))
                self.ended_rows.append(r.row)
            else:
                self.decoding.deliver(r.row, start if self.pulled else batch.end)

    def decoded(self) -> None:
        for row in self.decoding.received:
            self.engines[self.engine_of[row]].releases.append((row, self.decoding.now))
        self.decoding.received = []
        self.ended_rows += self.decoding.ended_rows
        self.decoding.ended_rows = []

    def run(self) -> dict[str, Any]:
        while self.due() < math.inf:
            self.step()
        return self.results()

    def results(self) -> dict[str, Any]:
        results = self.decoding.results()
        requests = results["requests"]
        rows = []
        for number, engine in enumerate(self.engines):
            own = engine.results()
            results["end_s"] = max(results["end_s"], own["end_s"])
            for i, row in enumerate(engine.iterations):
                values = {name: row[name] for name in ("start_s", "duration_s")}
                values |= {"engine": number, "busy_s": row["model_s"] + row["attention_s"]}
                values |= {"prompts": row["joined"], "made": row["joined"] * self.pulled}
                rows.append(values | {"prompt_tokens": own["prompts"]["prompt_tokens"][i]})
            for r in engine.requests:
                if r.admitted >= 0:
                    requests["admitted_s"][r.row] = r.admitted
                if r.first_token >= 0 and self.pulled:
                    second = requests["first_token_s"][r.row]
                    requests["first_token_s"][r.row] = r.first_token
                    if second >= 0:
                        gap = {"request": r.row, "at_s": second, "gap_s": second - r.first_token}
                        self.gaps.append(gap)
        for row, at in self.finished.items():
            requests["finished_s"][row] = at
        results["queue_empty_s"] = min(engine.results()["queue_empty_s"] for engine in self.engines)
        return results | {"pool": rows, "gaps": self.gaps}


class Fleet:
    """Instances behind a router. `given` has `instances`: their differences."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        deployments = [given | some for some in given.get("instances", [{}])]
        self.sites: list[Any] = [site_of(one | {"mode": "open"}) for one in deployments]
        limits = [(one["tokens_per_pool"] * one["pools"], one["max_requests"]) for one in deployments]
        extra = [one["request_tokens"] for one in deployments]
        self.router = RouterReference(given["router"], limits, given["global_queue"], extra)
        self.arrival: dict[int, int] = {}
        self.sent_to: dict[int, int] = {}
        self.queue: deque[int] = deque()
        self.to_come = deque(range(len(given["prompt"])))
        mode, arrival = given["mode"], [int(at) for at in given["arrival"]]
        self.sent = arrival if mode == "open" else [0] * len(arrival)  # by clients
        if mode == "closed":
            self.sent = self.sent[: int(given["concurrency"])]
        self.out = [int(one["costs"]["out"]) for one in deployments]
        offsets = [int(x) for x in given["prefix_offsets"]] or [0] * (len(given["prompt"]) + 1)
        ids = given["prefix_ids"]
        self.prefix = [[int(x) for x in ids[a:b]] for a, b in itertools.pairwise(offsets)]

    def lengths(self, row: int) -> tuple[int, int]:
        return int(self.given["prompt"][row]), int(self.given["output"][row])

    def come(self, at: int) -> None:
        row = self.to_come.popleft()
        self.arrival[row] = at
        if self.queue or not self.send(row, at):
            self.queue.append(row)

    def send(self, row: int, at: int) -> bool:
        size = self.given["prefix_block_tokens"]
        chosen = self.router.route(*self.lengths(row), self.prefix[row], size)
        if chosen is None:
            return False
        self.sent_to[row] = chosen
        while self.sites[chosen].due() < at:
            self.sites[chosen].step()
        self.sites[chosen].deliver(row, at)
        if isinstance(self.sites[chosen], Pooled):  # which rejects at once what never fits
            self.left(self.sites[chosen], at)
        return True

    def go_on(self, i: int) -> None:
        """Advance an instance by its next boundaries, all those at one moment."""
        site = self.sites[i]
        moment = int(site.due())
        while site.due() <= moment:
            site.step()
        if not self.left(site, moment):
            return
        while self.queue and self.send(self.queue[0], moment):
            self.queue.popleft()

    def left(self, site: Any, now: int) -> bool:
        ended_rows, site.ended_rows = site.ended_rows, []
        for row in ended_rows:
            self.router.left(self.sent_to[row], *self.lengths(row))
            self.sent.append(max(self.sent[-1], now + self.out[self.sent_to[row]]))
        return bool(ended_rows)

    def run(self) -> list[dict[str, Any]]:
        """Return the results of each instance, with rows of the complete workload."""
        while self.to_come or self.queue:
            first = min(range(len(self.sites)), key=lambda i: self.sites[i].due())
            if self.to_come and self.to_come[0] < len(self.sent):
                at = self.sent[self.to_come[0]]
                if at <= self.sites[first].due():
                    self.come(at)
                    continue
            self.go_on(first)
        return [site.run() for site in self.sites]


def site_of(given: dict[str, Any]) -> Any:
    if "pool" in given:
        return Pooled(**given)
    return (PromptCluster if given["prompt_budget"] else Cluster)(**given)


def run(**given: Any) -> dict[str, Any]:
    """Return what `sim_cases.native` returns for the same arguments."""
    fleet = Fleet(**given)
    parts = fleet.run()
    rows = len(given["prompt"])
    requests: dict[str, list[int]] = {name: [-1] * rows for name in parts[0]["requests"]} | {
        "preemptions": [0] * rows
    }
    iterations: list[tuple[Any, ...]] = []
    stints: list[tuple[Any, ...]] = []
    first_batch = 0
    for site, part in zip(fleet.sites, parts, strict=True):
        columns = part["requests"]
        for row, to in fleet.sent_to.items():
            if fleet.sites[to] is site:
                for name, column in columns.items():
                    moved = first_batch if name == "batch" and column[row] >= 0 else 0
                    requests[name][row] = column[row] + moved
        table = part["iterations"] | part.get("prompts", {})
        table["batch"] = [batch + first_batch for batch in table["batch"]]
        iterations += zip(*table.values(), strict=True)
        own = part["stints"]
        own["batch"] = [batch + first_batch for batch in own["batch"]]
        stints += zip(*own.values(), strict=True)
        cluster = site.decoding if isinstance(site, Pooled) else site
        first_batch += len(cluster.batches)
    requests["arrival_s"] = [fleet.arrival[row] for row in range(rows)]
    start = list(parts[0]["iterations"]).index("start_s")
    iterations.sort(key=lambda row: row[start])
    names = list(parts[0]["iterations"]) + list(parts[0].get("prompts", {}))
    results = {
        "requests": requests,
        "iterations": {name: [row[i] for row in iterations] for i, name in enumerate(names)},
        "stints": sorted(stints),
        "replica_busy_s": [busy for part in parts for busy in part["replica_busy_s"]],
        "attention_busy_s": sum(part["attention_busy_s"] for part in parts),
        "end_s": max(part["end_s"] for part in parts),
        "queue_empty_s": min(part["queue_empty_s"] for part in parts),
        "peak_kv_tokens": sum(part["peak_kv_tokens"] for part in parts),
        "kv_capacity_tokens": sum(part["kv_capacity_tokens"] for part in parts),
    }
    if any("pool" in part for part in parts):
        engines = 0
        pool: list[dict[str, int]] = []
        for site, part in zip(fleet.sites, parts, strict=True):
            pool += [row | {"engine": row["engine"] + engines} for row in part.get("pool", [])]
            engines += len(site.engines) if isinstance(site, Pooled) else 0
        results |= {"pool": pool, "pool_engines": engines}
        results["gaps"] = sorted((row for part in parts for row in part.get("gaps", [])), key=str)
    return results
