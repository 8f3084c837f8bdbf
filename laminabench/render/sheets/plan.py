"""A plan: its candidates, why the winner wins, and how prices decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from laminabench.catalog.deployment import assumed_amounts
from laminabench.render.format import number, share
from laminabench.render.model import Cell, Row, Sheet
from laminabench.render.sheets.replay import PARTS, source_of
from laminabench.render.terminal import literal, print_answer, print_sheet
from laminabench.workflows.plan.effects import gained_by
from laminabench.workflows.plan.measure import meets
from laminabench.workflows.plan.reprice import Billed, Front
from laminabench.workflows.plan.stored import Effect, StoredPlan, StoredPoint
from laminabench.workflows.plan.verdict import includes, verdict_on

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.traces.table import Trace
    from laminabench.workflows.plan.answer import Answer
    from laminabench.workflows.plan.measure import Point
    from laminabench.workflows.plan.request import ResolvedPlan

# Reasons not to replay a candidate, in the order of the checks.
WHY = {
    "does_not_fit": "do not hold the model",
    "too_small": "do not hold the longest request",
    "falls_behind": "would fall behind, by a bound",
    "bound_too_slow": "are too slow, by a bound",
    "dearer": "cost more",
    "missed": "miss a limit early in the trace",
    "bound_dominated": "are beaten in cost and TBT, by a bound",
    "halved": "are beaten on samples",
    "replayed": "replayed in full",
}
# Decisions at the search's prices, which may be wrong at others.
BY_PRICES = ("dearer", "bound_dominated", "halved")

# Marks a device without measurements.
ASSUMED = "*"
GAINS = {
    "throughput_gain": "more tokens/s",
    "tbt_p99_gain": "less TBT p99",
    "ttft_p99_gain": "less TTFT p99",
}


def print_plan(
    console: Console, plan: ResolvedPlan, trace: Trace, answers: Sequence[Answer], top: int
) -> None:
    """Print the answer, then a part for each cost set, and whether they agree."""
    for answer in answers:
        print_answer(console, [*verdict_on(answer).sentences, *includes(answer).lines])
    request = plan.request
    power = f" and {request.power_budget:,g} W" if request.power_budget else ""
    first = f"TTFT p99 of at most {request.slo_ttft_ms:g} ms, " if request.slo_ttft_ms else ""
    prompts = f", prompts {request.prefill}" if request.prefill != "off" else ""
    console.print(
        f"[bold]{literal(trace.meta.name)}[/bold], {source_of(trace.meta)}, {len(trace):,} requests,",
        f"with {literal(plan.model.name)} ({request.mode}{prompts}, [bold]modelled[/bold]):",
        f"{first}TBT p99 of at most {request.slo_tbt_p99_ms:g} ms,",
        f"at most ${plan.budget:.2f} an hour{power}",
        soft_wrap=True,
    )
    for answer in answers:
        console.print()
        _answer(console, answer, top)
    console.print()
    for line in _together(plan, answers, top):
        console.print(line, soft_wrap=True)


def _answer(console: Console, answer: Answer, top: int) -> None:
    costs = f"costs {answer.question.costs.name}"
    if answer.winner is None and answer.nearest is None:
        console.print(f"[bold]{literal(costs)}: nothing serves the trace[/bold]", soft_wrap=True)
    elif answer.winner is None:
        nearest = [answer.nearest] if answer.nearest else []
        print_sheet(console, sheet_of(f"{costs}: nothing meets the limit; nearest is", nearest, answer))
    else:
        title = f"{costs}: the front of cost and TBT, the winner in bold"
        print_sheet(console, sheet_of(title, answer.front, answer))
        if top:
            cheapest = _cheapest(answer, top)
            console.print()
            title = f"the {len(cheapest)} cheapest that meet the limit and were replayed"
            print_sheet(console, sheet_of(title, cheapest, answer))
        _why(console, answer, answer.winner)
        _prices(console, answer)
    result = answer.search
    console.print(
        f"[dim]{result.considered:,} candidates in {result.seconds:.2f} s, "
        f"{result.considered / result.seconds:,.0f} a second: {counted(result.counts)}[/dim]",
        soft_wrap=True,
    )


def _cheapest(answer: Answer, top: int) -> list[Point]:
    """Return the `top` cheapest points that meet the limit; none without a winner."""
    limit = answer.question.slo_tbt_p99_ms
    meeting = (point for point in answer.search.points if meets(point, limit))
    return sorted(meeting, key=lambda point: point.usd_per_million_tokens)[:top] if answer.winner else []


def counted(counts: Mapping[str, int]) -> str:
    """Return how many candidates each reason decided about."""
    return ", ".join(f"{counts[key]:,} {words}" for key, words in WHY.items() if counts.get(key))


def points_sheet(
    title: str, points: Sequence[Billed], winner: StoredPoint | None, plan: StoredPlan | None = None
) -> Sheet:
    """Return a row a candidate; of a saved plan also what binds it."""
    prompts = any(each.point.ttft_p99_ms is not None for each in points)
    columns = [
        *("system", "deployment", ">batches", ">$/h", ">tokens/s", ">mean batch", ">TBT p50 ms", ">p99 ms"),
        *(">in limit", *((">TTFT p50 ms", ">p99 ms", ">tokens/iteration") if prompts else ()), ">$/M tokens"),
    ]
    rows: list[Row] = []
    for each in points:
        point = each.point
        # The limit of requests that a board runs at once.
        limit = f", {point.most_requests} on each" if point.most_requests else ""
        instances = f"{point.instances} of " if point.instances > 1 else ""
        cells = [
            Cell(point.system),
            Cell(f"{instances}{point.deployment}{ASSUMED * bool(point.assumed_devices)}{limit}"),
            Cell(str(point.batches)),
            Cell(f"{each.usd_per_hour:.2f}", each.usd_per_hour),
            Cell(number(point.tokens_per_s), point.tokens_per_s),
            Cell(number(point.mean_batch), point.mean_batch),
            Cell(f"{point.tbt_p50_ms:.1f}", point.tbt_p50_ms),
            Cell(f"{point.tbt_p99_ms:.1f}", point.tbt_p99_ms),
            Cell(share(point.token_attainment), point.token_attainment),
            *(_of_prompts(point) if prompts else ()),
            Cell(f"{each.usd_per_million_tokens:.3f}", each.usd_per_million_tokens),
        ]
        row = [cell._replace(tone="strong") for cell in cells] if point == winner else cells
        rows.append([*row, binds_of(point, plan)] if plan else row)
    return Sheet(title, [*columns, "a tenth more of what binds"] if plan else columns, rows)


def binds_of(point: StoredPoint, plan: StoredPlan) -> Cell:
    """Return what binds first, and what is next."""
    if not point.binds:
        return Cell("not looked into", tone="quiet")
    first, *rest = (f"{each.resource} {_gains(each, plan)}" for each in point.binds)
    return Cell(first, more=f"then {rest[0]}" if rest else "")


def _gains(effect: Effect, plan: StoredPlan) -> str:
    """Return the gains of a change: of throughput, or of times where a trace's arrivals fix throughput."""
    if plan.mode != "open":
        return f"{effect.throughput_gain:+.1%} tokens/s"
    first = (
        f", {-effect.ttft_p99_gain:+.1%} TTFT p99" if effect.ttft_p99_gain and plan.slo_ttft_p99_ms else ""
    )
    return f"{-effect.tbt_p99_gain:+.1%} TBT p99{first}"


def front_sheet(plan: StoredPlan, front: Front, *, every: bool) -> Sheet:
    """Return a saved plan's front at some prices, numbered; with `every` then all others."""
    rest = sorted(set(range(len(front.all))) - set(front.on), key=lambda i: front.all[i].order)
    places = [*front.on, *(rest if every else ())]
    title = "The front, from the fastest on" + (", then all others that were replayed" if every else "")
    winner = None if front.winner is None else front.all[front.winner].point
    sheet = points_sheet(title, [front.all[i] for i in places], winner, plan)
    numbers = [str(place) if place <= len(front.on) else "" for place in range(1, len(places) + 1)]
    names = sorted({device for each in front.all for device in each.point.assumed_devices})
    note = f"{ASSUMED} {', '.join(names)}: not measured, its coefficients are another's."
    rows = [[number, *row] for number, row in zip(numbers, sheet.rows, strict=True)]
    return Sheet(title, ["#", *sheet.columns], rows, [note] if names else [])


def _of_prompts(point: StoredPoint) -> Iterator[Cell]:
    for time_ms in (point.ttft_p50_ms, point.ttft_p99_ms):
        yield Cell("-" if time_ms is None else f"{time_ms:,.0f}", time_ms)
    yield Cell(str(point.max_batched_tokens))


def sheet_of(title: str, points: Sequence[Point], answer: Answer) -> Sheet:
    """Return a row for each of an answer's points, the winner in bold."""
    stored = {point: msgspec.convert(answer.row_of(point), StoredPoint) for point in points}
    billed = [
        Billed(each, point.candidate.usd_per_hour, point.usd_per_million_tokens)
        for point, each in stored.items()
    ]
    return points_sheet(title, billed, stored.get(answer.winner) if answer.winner else None)


def _why(console: Console, answer: Answer, winner: Point) -> None:
    """Print what limits the winner, with evidence from its replay and what was tried against it."""
    first, *others = answer.effects
    gained = gained_by(answer.question, winner)
    summary = answer.summary
    assert summary is not None
    tbt_p99_ms = winner.tbt_p99_ms * (1 - first.tbt_p99_gain)
    beyond = ", over the limit" if tbt_p99_ms > answer.question.slo_tbt_p99_ms else ""
    sooner = f", {-first.ttft_p99_gain:+.1%} TTFT p99" if isinstance(first.ttft_p99_gain, float) else ""
    console.print(
        f"\n[bold]{first.resource}[/bold] binds: a tenth more of it alone gives "
        f"{first.throughput_gain:+.1%} tokens/s, {-first.tbt_p99_gain:+.1%} TBT p99{beyond}{sooner}"
    )
    rest = (f"{each.resource} {getattr(each, gained):+.1%}" for each in others)
    console.print(f"others, {GAINS[gained]}: {', '.join(rest)}", soft_wrap=True)
    if answer.without_prompts is not None:
        console.print(
            f"prompts cost [bold]${answer.usd_of_prompts:.3f}[/bold] of the "
            f"${winner.usd_per_million_tokens:.3f} a million tokens: were they there already, "
            f"{literal(str(answer.without_prompts.candidate))} would do, for "
            f"${answer.without_prompts.usd_per_million_tokens:.3f}",
            soft_wrap=True,
        )
    idle = (f"{pool} {share(left)}" for pool, left in summary.bubbles.pools().items())
    shares = summary.time_shares
    spent = (f"{part} {share(getattr(shares, part))}" for part in PARTS)
    console.print(
        f"KV memory filled to {share(summary.kv.peak_share)}; idle: {', '.join(idle)}; "
        f"a token's time: {', '.join(spent)}",
        soft_wrap=True,
    )


def _prices(console: Console, answer: Answer) -> None:
    """Print a line for each device."""
    console.print("\n[bold]prices[/bold], one changed by 10 % at a time")
    by_device: dict[str, list[str]] = {}
    for price in answer.prices:
        candidate = literal(price.winner)
        winner = "same winner" if price.stays else f"[bold]{candidate}[/bold] wins"
        by_device.setdefault(price.device, []).append(
            f"at ${price.usd_each_per_hour:.2f} {winner}, ${price.usd_per_million_tokens or 0:.3f}/M"
        )
    width = max(map(len, by_device))
    for device, changes in by_device.items():
        console.print(f"  {device:{width}}  {'; '.join(changes)}", soft_wrap=True)


def _together(plan: ResolvedPlan, answers: Sequence[Answer], top: int) -> Iterator[str]:
    """Yield whether all cost sets agree, and which devices they have no measurements of."""
    if len(answers) > 1:
        winners = [answer.winner for answer in answers if answer.winner is not None]
        costs = [point.usd_per_million_tokens for point in winners]
        if len(winners) < len(answers):
            yield "the cost sets disagree: not all of them have a winner"
        elif len({str(point.candidate) for point in winners}) > 1:
            yield f"the cost sets disagree about the winner; ${min(costs):.3f} to ${max(costs):.3f}/M tokens"
        else:
            yield f"the cost sets agree on it: ${min(costs):.3f} to ${max(costs):.3f}/M tokens"
    boards = [device.name for device in plan.devices if device.board]
    assumed = {
        device
        for answer in answers
        for point in (*answer.front, *_cheapest(answer, top), *filter(None, [answer.nearest]))
        for device in point.candidate.borrowed(answer.question.costs)
    }
    scaled = {name for name in assumed if any(answer.question.costs.scaled(name) for answer in answers)}
    for names, how in (
        (assumed - scaled - set(boards), "not measured in this cost set, coefficients borrowed"),
        (scaled, "matrix products scaled from another device"),
    ):
        if names:
            note = f"{', '.join(sorted(names))}: {how} (costs show)"
            yield f"[dim]{ASSUMED} {note}[/dim]"
    # Notes on boards appear even if no table has one.
    for name in boards:
        yield (
            f"[dim]{ASSUMED} {name}: not measured, computed from the board's parameters (hardware boards); "
            f"weights and KV in int8, elsewhere in {plan.model.dtype}[/dim]"
        )
    for line in assumed_amounts(plan.devices):
        yield f"[dim]{line}[/dim]"
