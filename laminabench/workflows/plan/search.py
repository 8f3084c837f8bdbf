"""The search: bounds for all, replays of those that could win, halving on samples for the other ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from laminabench.workflows.plan.bounds import Bound
from laminabench.workflows.plan.measure import (
    Point,
    excess,
    front,
    meets,
    nearest,
    usd_per_million_tokens,
    winner,
)
from laminabench.workflows.plan.question import Candidate, Question, Slo
from laminabench.workflows.plan.stages import Team, stage_of, team

# How much a price is changed to see what it does to the winner.
PRICE_CHANGE = 0.1
# What could win if one price changed by that much is replayed too: 1.1 times the winner's cost against the
# same, or the winner's against 0.9 times another's.
REACH = 1 / (1 - PRICE_CHANGE)
# Replays between two checks of which candidates can still win: few at first, until some can be compared.
FIRST_ROUND, LARGEST_ROUND = 16, 64
# Candidates whose bounds are computed in one batch, cheapest first.
WAVE = 512


@dataclass(frozen=True)
class SearchResult:
    """The points replayed in full, and the outcome of all other candidates."""

    points: tuple[Point, ...]
    considered: int
    counts: Mapping[str, int]  # of considered, by what decided about them; they add up
    seconds: float


@dataclass
class Search:
    team: Team
    candidates: Sequence[Candidate]
    report: Callable[[int, int], None]
    bounds: dict[int, Bound] = field(default_factory=dict)
    exact: dict[int, Point] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)  # a limit, in the first part of an open trace
    reach: float = REACH
    done: int = 0

    @property
    def question(self) -> Question:
        return self.team.stage.question

    @property
    def slo_ms(self) -> float:
        return self.question.slo_tbt_p99_ms

    def judge(self, some: Sequence[int]) -> Counter[str]:
        """Compute the bounds of those that fit; count the others by reason."""
        bounds = self.team.bounds([self.candidates[i] for i in some], lambda some: None)
        self.bounds |= {i: each for i, each in zip(some, bounds, strict=True) if isinstance(each, Bound)}
        out = Counter(each for each in bounds if not isinstance(each, Bound))
        self._report(out.total())
        return Counter({str(why): count for why, count in out.items()})

    def cost_at_least(self, i: int) -> float:
        return usd_per_million_tokens(self.candidates[i], self.bounds[i].tokens_per_s)

    def could_meet(self, i: int) -> bool:
        ttft_ms = self.question.slo_ttft_ms or float("inf")
        bound = self.bounds[i]
        return bound.tbt_p99_s * 1000 <= self.slo_ms and bound.ttft_p99_s * 1000 <= ttft_ms

    def meeting(self) -> list[int]:
        """Return candidates not replayed yet, and perhaps within the limits."""
        return [i for i in self.left() if self.could_meet(i)]

    def left(self) -> list[int]:
        return [i for i in self.bounds if i not in self.exact and i not in self.missed]

    def replay(self, some: Sequence[int]) -> None:
        points = self.team.points([self.candidates[i] for i in some], self._report)
        self.exact.update(zip(some, points, strict=True))

    def try_out(self, some: Sequence[int], slo: Slo) -> None:
        """Replay them; of an open trace only its first part, where that is enough to miss a limit."""
        if self.question.mode != "open":
            self.replay(some)
            return
        chosen = [self.candidates[i] for i in some]
        points = self.team.points_unless_missed(slo, chosen, self._report)
        self.exact |= {i: point for i, point in zip(some, points, strict=True) if point is not None}
        self.missed = (self.missed | set(some)) - self.exact.keys()

    def find_winner(self, of_system: str = "", reach: float | None = None) -> None:
        """Replay by best bound first, until no other candidate could cost less than the best."""
        size = FIRST_ROUND
        while some := self.could_win(of_system, reach)[:size]:
            self.try_out(some, self.question.slo)
            size = min(2 * size, LARGEST_ROUND)

    def find_nearest(self, some: Iterable[int]) -> None:
        """Replay the best bounds first until none left could be nearer, where nothing meets the limits."""
        left = [i for i in some if i not in self.exact]
        while left := [i for i in left if self.excess_at_least(i) < self.least_excess()]:
            left.sort(key=self.excess_at_least)
            self.try_out(left[:FIRST_ROUND], self.question.slo.times(self.least_excess()))
            del left[:FIRST_ROUND]

    def least_excess(self) -> float:
        """Return the worst ratio to a limit of the nearest that was replayed."""
        best = nearest(self.exact.values(), self.question)
        return math.inf if best is None else excess(best, self.question)

    def excess_at_least(self, i: int) -> float:
        """Return a bound of the worst ratio to a limit; it has none of queueing."""
        bound, slo = self.bounds[i], self.question.slo
        return max(bound.tbt_p99_s / slo.tbt_s, bound.ttft_p99_s / slo.ttft_s)

    def undominated(self) -> list[int]:
        """Return candidates not replayed yet, and by their bounds perhaps on the front."""
        serving = (point for point in self.exact.values() if meets(point, self.slo_ms))
        known = [(point.usd_per_million_tokens, point.tbt_p99_ms) for point in serving]

        def beaten(i: int) -> bool:
            cost, tbt_ms = self.cost_at_least(i), self.bounds[i].tbt_p99_s * 1000
            return any(its_cost <= cost and its_tbt_ms <= tbt_ms for its_cost, its_tbt_ms in known)

        return [i for i in self.meeting() if not beaten(i)]

    def could_win(self, of_system: str = "", reach: float | None = None) -> list[int]:
        """Return candidates of one system, or of all, that could be its cheapest."""

        def of(candidate: Candidate) -> bool:
            return of_system in ("", candidate.system)

        best = winner((point for point in self.exact.values() if of(point.candidate)), self.slo_ms)
        reach = self.reach if reach is None else reach
        limit = float("inf") if best is None else best.usd_per_million_tokens * reach
        costs = {i: self.cost_at_least(i) for i in self.meeting() if of(self.candidates[i])}
        return sorted((i for i, cost in costs.items() if cost <= limit), key=lambda i: (costs[i], i))

    def not_replayed(self, otherwise: str) -> Counter[str]:
        """Return how many with bounds are too slow by them, and why the others are out."""
        left, meeting = len(self.left()), len(self.meeting())
        return Counter({"bound_too_slow": left - meeting, otherwise: meeting})

    def _report(self, some: int) -> None:
        self.done += some
        self.report(min(self.done, len(self.candidates)), len(self.candidates))


def search(
    question: Question,
    candidates: Sequence[Candidate],
    *,
    exhaustive: bool = False,
    winner_only: bool = False,
    jobs: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> SearchResult:
    """Replay what the answer needs; `exhaustive` replays everything that fits.

    `winner_only`: the front away from the winner is not searched.
    """
    with team(stage_of(question), len(candidates), jobs) as several:
        return _searched(Search(several, candidates, report), exhaustive=exhaustive, winner_only=winner_only)


def search_each(
    question: Question,
    groups: Sequence[Sequence[Candidate]],
    *,
    jobs: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[SearchResult]:
    """Find the winner of each group of candidates alone, at these prices, by the same worker processes."""
    total, results, done = sum(map(len, groups)), list[SearchResult](), 0
    with team(stage_of(question), total, jobs) as several:
        for group in groups:

            def part(some: int, _: int, before: int = done) -> None:
                report(before + some, total)

            run = Search(several, group, part, reach=1.0)
            results.append(_searched(run, winner_only=True))
            done += len(group)
    return results


def _searched(run: Search, *, exhaustive: bool = False, winner_only: bool) -> SearchResult:
    began, candidates = perf_counter(), run.candidates
    if run.question.mode == "open" and winner_only and not exhaustive:
        counts = _cheapest_first(run)
    else:
        counts = run.judge(range(len(candidates)))
        if exhaustive:
            run.replay(list(run.bounds))
        else:
            counts += _decided(run, winner_only=winner_only)
    counts += Counter(missed=len(run.missed))
    counts["replayed"] = len(run.exact)
    points = tuple(point for _, point in sorted(run.exact.items()))
    return SearchResult(points, len(candidates), dict(counts), perf_counter() - began)


def _cheapest_first(run: Search) -> Counter[str]:
    """Search by cost: where all make the requested tokens, it is known before their bounds are.

    Candidates that could not win even if a price changed are skipped: the front has the others.
    """
    rate = next(iter(run.team.stage.demands.values())).rate
    costs = [usd_per_million_tokens(each, rate) for each in run.candidates]
    order = sorted(range(len(costs)), key=lambda i: (costs[i], i))
    counts: Counter[str] = Counter()
    for start in range(0, len(order), WAVE):
        wave = order[start : start + WAVE]
        best = winner(run.exact.values(), run.slo_ms)
        if best is not None and costs[wave[0]] > best.usd_per_million_tokens * run.reach:
            counts["dearer"] = len(order) - start
            break
        counts += run.judge(wave)
        run.find_winner()
    if winner(run.exact.values(), run.slo_ms) is None:
        run.find_nearest(run.bounds)
    return counts + run.not_replayed("dearer")


def _decided(run: Search, *, winner_only: bool) -> Counter[str]:
    """Replay what the answer needs of those that have bounds; how many of the others it needs not, by why."""
    run.find_winner()
    if winner(run.exact.values(), run.slo_ms) is None:
        run.find_nearest(run.bounds)
    if winner_only:
        return +run.not_replayed("dearer")
    # Until the cheapest of every system is known, at these prices.
    for name in dict.fromkeys(each.system for each in run.candidates):
        run.find_winner(name, reach=1.0)
    return _find_front(run)


def _find_front(run: Search) -> Counter[str]:
    """Replay the points that may be on the front; return why others may not, with counts."""
    dropped = _halved(run, run.undominated()) if run.question.mode == "saturate" else set()
    while left := [i for i in run.undominated() if i not in dropped]:
        # A candidate good at both is beaten by few, and beats many.
        left.sort(key=lambda i: run.cost_at_least(i) * run.bounds[i].tbt_p99_s)
        run.try_out(left[:FIRST_ROUND], run.question.slo)
    counts = run.not_replayed("bound_dominated")
    counts["bound_dominated"] -= len(dropped)
    return counts + Counter(halved=len(dropped))


def _halved(run: Search, rivals: Sequence[int]) -> set[int]:
    known = [point.candidate for point in front(list(run.exact.values()), run.slo_ms)]
    undominated = undominated_on_samples(run.team, [run.candidates[i] for i in rivals], known)
    return {i for i, keep in zip(rivals, undominated, strict=True) if not keep}


# Of the trace's requests, one in so many.
SHARES = (16, 4)
# So often must a sample fill the batches of a candidate to say anything about it: they begin empty.
FEWEST_TURNS = 3
# How far samples of one trace were off against each other, whole traces being right: 15 % of throughput and
# 22 % of TBT between the two worst of 788 candidates on three traces, with one in 16 requests.
COST_MARGIN, TBT_MARGIN = 1.15, 1.22


def undominated_on_samples(team: Team, rivals: Sequence[Candidate], known: Sequence[Candidate]) -> list[bool]:
    """Return which rivals may be on the front with the known ones, judged by parts of the trace."""
    remaining = [True] * len(rivals)
    for share in SHARES:
        part = team.stage.part(share)
        left = [i for i, keep in enumerate(remaining) if keep]
        if part is None or not left:
            continue
        some = [*(rivals[i] for i in left), *known]
        points = team.points(some, lambda _: None, share)
        informative = [point for point in points if point.mean_batch * FEWEST_TURNS <= len(part)]
        for i, point in zip(left, points, strict=False):
            remaining[i] = point not in informative or not any(_beats(other, point) for other in informative)
    return remaining


def _beats(one: Point, other: Point) -> bool:
    """Return whether one is better in both by more than a sample's error."""
    cheaper = one.usd_per_million_tokens * COST_MARGIN <= other.usd_per_million_tokens
    return cheaper and one.tbt_p99_ms * TBT_MARGIN <= other.tbt_p99_ms
