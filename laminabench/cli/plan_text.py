"""What a plan prints: the front, then why its winner wins, then how far prices decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from laminabench.catalog.deployment import assumed_amounts
from laminabench.present.numbers import number, share
from laminabench.present.plan import counted
from laminabench.present.replay import PARTS, SOURCES
from laminabench.present.terminal import literal, table
from laminabench.workflows.plan.effects import gained_by
from laminabench.workflows.plan.measure import meets

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from laminabench.traces.table import Trace
    from laminabench.workflows.plan.answer import Answer
    from laminabench.workflows.plan.measure import Point
    from laminabench.workflows.plan.request import ResolvedPlan

ASSUMED = "*"
GAINS = {
    "throughput_gain": "more tokens/s",
    "tbt_p99_gain": "less TBT p99",
    "ttft_p99_gain": "less TTFT p99",
}


def render(console: Console, plan: ResolvedPlan, trace: Trace, answers: Sequence[Answer], top: int) -> None:
    """One part a cost set, and whether they agree."""
    request = plan.request
    power = f" and {request.power_budget:,g} W" if request.power_budget else ""
    first = f"TTFT p99 of at most {request.slo_ttft_ms:g} ms, " if request.slo_ttft_ms else ""
    prompts = f", prompts {request.prefill}" if request.prefill != "off" else ""
    console.print(
        f"[bold]{literal(trace.meta.name)}[/bold], {SOURCES[trace.meta.source]}, {len(trace):,} requests,",
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
    title = f"[bold]costs {literal(answer.question.costs.name)}[/bold]"
    if answer.winner is None:
        nearest = answer.nearest
        failure = "nothing serves the trace" if nearest is None else "nothing meets the limit; nearest is"
        console.print(f"{title}: {failure}")
        if nearest is not None:
            console.print(_points([nearest], answer))
    else:
        console.print(f"{title}: the front of cost and TBT, the winner in bold")
        console.print(_points(answer.front, answer))
        if top:
            cheapest = _cheapest(answer, top)
            console.print(f"\nthe {len(cheapest)} cheapest that meet the limit and were replayed")
            console.print(_points(cheapest, answer))
        _why(console, answer, answer.winner)
        _prices(console, answer)
    found = answer.found
    console.print(
        f"[dim]{found.considered:,} candidates in {found.seconds:.2f} s, "
        f"{found.considered / found.seconds:,.0f} a second: {counted(found.counts)}[/dim]",
        soft_wrap=True,
    )


def _cheapest(answer: Answer, top: int) -> list[Point]:
    """None where there is no winner."""
    limit = answer.question.slo_tbt_p99_ms
    meeting = (point for point in answer.found.points if meets(point, limit))
    return sorted(meeting, key=lambda point: point.usd_per_million_tokens)[:top] if answer.winner else []


def _points(points: Sequence[Point], answer: Answer) -> Table:
    numbers = (">batches", ">$/h", ">tokens/s", ">mean batch", ">TBT p50 ms", ">p99 ms", ">in limit")
    prompts = answer.question.prompts
    more = (">TTFT p50 ms", ">p99 ms", ">tokens/iteration") if prompts else ()
    drawn = table(("system", "deployment", *numbers, *more, ">$/M tokens"))
    for point in points:
        candidate = point.candidate
        # How many requests a board may run at once.
        limit = f", {candidate.most_requests} on each" if candidate.most_requests else ""
        assumed = ASSUMED * bool(candidate.borrowed(answer.question.costs))
        drawn.add_row(
            candidate.system,
            f"{candidate.hardware}{assumed}{limit}",
            str(candidate.batches),
            f"{candidate.usd_per_hour:.2f}",
            number(point.tokens_per_s),
            number(point.mean_batch),
            f"{point.tbt_p50_ms:.1f}",
            f"{point.tbt_p99_ms:.1f}",
            share(point.token_attainment),
            *(_of_prompts(point) if prompts else ()),
            f"{point.usd_per_million_tokens:.3f}",
            style="bold" if point == answer.winner else None,
        )
    return drawn


def _of_prompts(point: Point) -> tuple[str, ...]:
    times = ("-" if time is None else f"{time:,.0f}" for time in (point.ttft_p50_ms, point.ttft_p99_ms))
    return (*times, str(point.candidate.prompt_budget))


def _why(console: Console, answer: Answer, winner: Point) -> None:
    """What binds, with the signs of it in the replay beside what was tried."""
    first, *others = answer.effects
    gained = gained_by(answer.question, winner)
    summary = answer.summary
    assert summary is not None
    tbt_p99_ms = winner.tbt_p99_ms * (1 - first.tbt_p99_gain)
    beyond = ", over the limit" if tbt_p99_ms > answer.question.slo_tbt_p99_ms else ""
    sooner = "" if first.ttft_p99_gain is None else f", {-first.ttft_p99_gain:+.1%} TTFT p99"
    console.print(
        f"\n[bold]{first.resource}[/bold] binds: a tenth more of it alone comes to "
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
    idle = (f"{who} {share(left)}" for who, left in summary.bubbles.pools().items())
    shares = summary.time_shares
    spent = (f"{part} {share(getattr(shares, part))}" for part in PARTS)
    console.print(
        f"KV memory filled to {share(summary.kv.peak_share)}; idle: {', '.join(idle)}; "
        f"a token's time: {', '.join(spent)}",
        soft_wrap=True,
    )


def _prices(console: Console, answer: Answer) -> None:
    """One line a device."""
    console.print("\n[bold]prices[/bold], one changed by 10 % at a time")
    by_device: dict[str, list[str]] = {}
    for price in answer.prices:
        candidate = literal(str(price.winner.candidate))
        winner = "same winner" if price.stays else f"[bold]{candidate}[/bold] wins"
        by_device.setdefault(price.device, []).append(
            f"at ${price.usd_each_per_hour:.2f} {winner}, ${price.winner.usd_per_million_tokens:.3f}/M"
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
    for held in dict.fromkeys(answer.question.costs.held_against for answer in answers):
        yield f"[dim]{literal(held)}[/dim]"
    boards = [device.name for device in plan.devices if device.board]
    assumed = {
        device
        for answer in answers
        for point in (*answer.front, *_cheapest(answer, top), *filter(None, [answer.nearest]))
        for device in point.candidate.borrowed(answer.question.costs)
    }
    if borrowed := sorted(assumed - set(boards)):
        note = f"{', '.join(borrowed)}: not measured in this cost set, coefficients borrowed (costs show)"
        yield f"[dim]{ASSUMED} {note}[/dim]"
    # Of boards, whether or not one of them is in a table.
    for name in boards:
        yield (
            f"[dim]{ASSUMED} {name}: not measured, computed from the board's parameters (hardware boards); "
            f"weights and KV in int8, elsewhere in {plan.model.dtype}[/dim]"
        )
    for line in assumed_amounts(plan.devices):
        yield f"[dim]{line}[/dim]"
