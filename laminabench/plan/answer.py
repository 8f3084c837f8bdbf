"""The answer to one question: the front, the winner, what binds it, and how far prices decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from laminabench.catalog.boards import Board, BoardMemory
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.network import Network
from laminabench.errors import CheckFailedError, UserError
from laminabench.json_safe import to_json
from laminabench.plan.measure import Point, front, measure, meets, nearest, order, winner
from laminabench.plan.question import Candidate, Question
from laminabench.plan.search import PRICE_CHANGE, Found, search
from laminabench.replay import Workload, replay
from laminabench.runs.summary import Summary
from laminabench.sim.spec import BoardTiming, Spec, Timing
from laminabench.systems.registry import system


@dataclass(frozen=True)
class Answer:
    """With one cost set. Without a winner, `nearest` is what comes nearest to the limit."""

    question: Question
    found: Found
    front: list[Point]
    winner: Point | None
    nearest: Point | None
    summary: Summary | None  # of the winner's replay
    effects: list[Effect]
    prices: list[Repriced]

    def row(self) -> dict[str, object]:
        return {
            "costs": self.question.costs.name,
            "winner": None if self.winner is None else self.row_of(self.winner),
            "nearest": None if self.nearest is None else self.row_of(self.nearest),
            "front": [self.row_of(each) for each in self.front],
            "replayed": [self.row_of(each) for each in self.found.points],
            "summary": None if self.summary is None else to_json(self.summary),
            "binds": [each.row() for each in self.effects],
            "prices": [each.row() for each in self.prices],
            "search": {
                "considered": self.found.considered,
                "counts": dict(self.found.counts),
                "seconds": self.found.seconds,
                "candidates_per_s": self.found.considered / self.found.seconds,
            },
        }

    def row_of(self, point: Point) -> dict[str, object]:
        """With the devices that nobody measured."""
        return {**point.row(), "assumed_devices": list(point.candidate.borrowed(self.question.costs))}


def answer(
    question: Question,
    candidates: Sequence[Candidate],
    *,
    exhaustive: bool = False,
    jobs: int | None = None,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Answer:
    found = search(question, candidates, exhaustive=exhaustive, jobs=jobs, told=told)
    limit = question.slo_tbt_p99_ms
    best = winner(found.points, limit)
    return Answer(
        question,
        found,
        front(found.points, limit),
        best,
        nearest(found.points) if best is None else None,
        None if best is None else _summary(question, best),
        [] if best is None else effects(question, best),
        list(repriced(found.points, limit)),
    )


def _summary(question: Question, point: Point) -> Summary:
    workload = Workload(question.mode, slo_tbt_ms=question.slo_tbt_p99_ms)
    candidate = point.candidate
    return replay(question.trace, candidate.system, question.setup(candidate), workload).summary


def require_possible(found: Answer) -> None:
    """A UserError if no candidate could even be replayed: the longest request fits into none of them."""
    counts = found.found.counts
    if not found.found.points and counts.get("too_small") and not counts.get("falls_behind"):
        trace = found.question.trace
        longest = int((trace.prompt_tokens.astype("int64") + trace.output_tokens).max())
        raise UserError(
            "plan-longest-request",
            f"no candidate holds the longest request of {trace.meta.name}, {longest:,} tokens; leave such "
            "requests out with --max-prompt, --max-output and --too-long drop, or raise --budget",
        )


def require_winner(found: Answer) -> None:
    """A CheckFailedError that says which candidate comes nearest, and by how much it misses."""
    if found.winner is not None:
        return
    limit, costs = found.question.slo_tbt_p99_ms, found.question.costs.name
    if found.nearest is None:
        raise CheckFailedError(
            "plan-falls-behind",
            f"with {costs}, none of {found.found.considered:,} candidates keeps up with "
            f"{found.question.trace.meta.name}: 99 of 100 requests are to wait no longer than "
            f"{found.question.slo_queueing_p99_s:g} s",
        )
    missed = found.nearest.tbt_p99_ms
    raise CheckFailedError(
        "plan-limit-missed",
        f"with {costs}, none of {found.found.considered:,} candidates has a TBT p99 of {limit:g} ms; nearest "
        f"is {found.nearest.candidate} with {missed:.3g} ms, {missed / limit - 1:.1%} over",
    )


@dataclass(frozen=True, slots=True)
class Repriced:
    device: str
    change: float  # 0.1 is 10 % more
    usd_each_per_hour: float
    winner: Point
    stays: bool

    def row(self) -> dict[str, object]:
        return {
            "device": self.device,
            "change": self.change,
            "usd_each_per_hour": self.usd_each_per_hour,
            "winner": str(self.winner.candidate),
            "stays": self.stays,
            "usd_per_million_tokens": self.winner.usd_per_million_tokens,
        }


def repriced(points: Sequence[Point], slo_tbt_p99_ms: float) -> Iterator[Repriced]:
    """Each device that may matter a tenth cheaper, and a tenth dearer; none if nothing meets the limit.

    All that could win at these prices is among the points: the search saw to it. The budget is what it was.
    """
    best = winner(points, slo_tbt_p99_ms)
    if best is None:
        return
    meeting = [each for each in points if meets(each, slo_tbt_p99_ms)]
    prices = {
        part.device.name: part.device.price_usd_per_hour
        for each in sorted(meeting, key=order)
        for part in each.candidate.deployment.parts
    }
    for device, usd in prices.items():
        for change in (-PRICE_CHANGE, PRICE_CHANGE):
            assert usd is not None
            new_usd = usd * (1 + change)
            changed = [(_at(each, device, new_usd), each) for each in meeting]
            now, before = min(changed, key=lambda pair: order(pair[0]))
            yield Repriced(device, change, new_usd, now, before is best)


def _at(point: Point, device: str, usd_per_hour: float) -> Point:
    old = point.candidate.deployment
    attention = None if old.attention is None else _priced(old.attention, device, usd_per_hour)
    new = Deployment(_priced(old.model, device, usd_per_hour), attention)
    return replace(point, candidate=replace(point.candidate, deployment=new))


def _priced(workers: Workers, device: str, usd_per_hour: float) -> Workers:
    if workers.device.name != device:
        return workers
    return Workers(replace(workers.device, override_usd_per_hour=usd_per_hour), workers.count)


# A tenth more of what one has, or a tenth more speed.
BETTER = 1.1

_HOST = ("host_fixed", "host_per_request")

Whole = TypeVar("Whole", Timing, BoardTiming, Device, Board, BoardMemory, Network)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a tenth more of one resource alone would do."""

    resource: str
    throughput_gain: float  # a share: 0.04 is 4 % more tokens a second
    tbt_p99_gain: float  # how much shorter: 0.04 is 4 % less

    def row(self) -> dict[str, object]:
        """For --json. Elasticity: percent gained for each percent more of the resource."""
        return {
            "resource": self.resource,
            "throughput_gain": self.throughput_gain,
            "elasticity": self.throughput_gain / (BETTER - 1),
            "tbt_p99_gain": self.tbt_p99_gain,
        }


def effects(question: Question, point: Point) -> list[Effect]:
    """Of every resource that the candidate has, from the one that would help most."""
    found = []
    for resource, spec in _better(question, point.candidate):
        better = measure(question, question.trace, point.candidate, spec)
        rate = better.tokens_per_s / point.tokens_per_s - 1
        found.append(Effect(resource, rate, 1 - better.tbt_p99_ms / point.tbt_p99_ms))
    # Tokens a second are given by the arrivals in an open replay: there it is time that can be gained.
    open_ = question.mode == "open"
    return sorted(found, key=lambda each: -(each.tbt_p99_gain if open_ else each.throughput_gain))


def _better(question: Question, candidate: Candidate) -> Iterator[tuple[str, Spec]]:
    """The cluster with each resource better in turn; nothing else changes, not even the devices' names."""
    setup, build = question.setup(candidate), system(candidate.system).build
    spec = build(setup).spec
    yield "requests at once", build(replace(setup, max_num_seqs=int(spec.max_requests * BETTER))).spec
    if isinstance(spec.timing, BoardTiming):
        yield from _better_boards(spec, spec.timing)
        yield "host time", replace(spec, timing=_less(spec.timing, *_HOST))
        return
    timing, part = spec.timing, setup.deployment.model

    def built(change: Callable[[Device], Device]) -> Spec:
        workers = Workers(change(part.device), part.count)
        return build(replace(setup, deployment=replace(setup.deployment, model=workers))).spec

    yield "KV memory", replace(spec, tokens_per_pool=int(spec.tokens_per_pool * BETTER))
    yield (
        "compute of model workers",
        built(lambda it: replace(it, flops={dtype: rate * BETTER for dtype, rate in it.flops.items()})),
    )
    faster = built(lambda it: _more(it, "bandwidth_bytes_per_s")).timing
    assert isinstance(faster, Timing)
    # Of devices that do attention too, the part of the weights alone.
    slices = {name: getattr(faster, name) for name in ("first_slice", "mid_slice", "last_slice", "q_lead")}
    yield "memory bandwidth for weights", replace(spec, timing=replace(timing, **slices))
    yield "memory bandwidth for attention", replace(spec, timing=_less(timing, "attention_per_token"))
    if part.count > len(spec.replica_names):
        yield "links between model workers", built(lambda it: _more(it, "interchip_bytes_per_s"))
    if setup.deployment.attention is not None:
        wide, near = _more(setup.network, "bandwidth_bytes_per_s"), _less(setup.network, "rtt_s")
        yield "network bandwidth", build(replace(setup, network=wide)).spec
        yield "network latency", build(replace(setup, network=near)).spec
    yield "host time", replace(spec, timing=_less(timing, *_HOST))


def _better_boards(spec: Spec, timing: BoardTiming) -> Iterator[tuple[str, Spec]]:
    """Each part of the boards better in turn, all of them alike."""
    board = timing.board

    def built(better: Board) -> Spec:
        changed = replace(timing, board=better)
        tokens, _ = changed.kv_room()
        return replace(spec, timing=changed, tokens_per_pool=tokens)

    for title, side in (("HBM", "hbm"), ("LPDDR", "lpddr")):
        memory = getattr(board, side)
        yield f"{title} capacity", built(replace(board, **{side: _more(memory, "capacity_bytes")}))
        yield f"{title} bandwidth", built(replace(board, **{side: _more(memory, "bandwidth_bytes_per_s")}))
    yield "compute of the chips", built(_more(board, "clock_hz"))
    yield "link between the sides", built(_more(board, "link_bytes_per_s"))


def _more(whole: Whole, *names: str) -> Whole:
    return replace(whole, **{name: getattr(whole, name) * BETTER for name in names})


def _less(whole: Whole, *names: str) -> Whole:
    return replace(whole, **{name: getattr(whole, name) / BETTER for name in names})
