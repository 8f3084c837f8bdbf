"""What a plan prints: the front, then why its winner wins, then how far prices decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape
from rich.table import Table

from laminabench.present.numbers import number, share
from laminabench.present.replay import SOURCES
from laminabench.runs.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console

# Why a candidate was not replayed, in the order in which it is found out.
WHY = {
    "does_not_fit": "do not hold the model",
    "too_small": "do not hold the longest request",
    "falls_behind": "would fall behind, by a bound",
    "bound_too_slow": "are too slow, by a bound",
    "bound_dominated": "are beaten in cost and TBT, by a bound",
    "halved": "are beaten on samples",
    "replayed": "replayed in full",
}
ASSUMED = "*"


def render(console: Console, result: dict[str, Any], top: int) -> None:
    """One part a cost set, and whether they agree."""
    trace, mode = result["trace"], result["mode"]
    console.print(
        f"[bold]{escape(trace['name'])}[/bold], {SOURCES[trace['source']]}, {trace['requests']:,} requests,",
        f"with {escape(result['model'])} ({mode}, [bold]modelled[/bold]):",
        f"TBT p99 of at most {result['slo_tbt_p99_ms']:g} ms,",
        f"at most ${result['budget_usd_per_hour']:.2f} an hour"
        + (f" and {result['power_budget_w']:,g} W" if result["power_budget_w"] else ""),
        soft_wrap=True,
    )
    for answer in result["answers"]:
        console.print()
        _answer(console, answer, top, mode)
    console.print()
    for line in _together(result, top):
        console.print(line, soft_wrap=True)


def _answer(console: Console, answer: dict[str, Any], top: int, mode: str) -> None:
    title = f"[bold]costs {escape(answer['costs'])}[/bold]"
    if answer["winner"] is None:
        nearest = answer["nearest"]
        said = "nothing serves the trace" if nearest is None else "nothing meets the limit; nearest is"
        console.print(f"{title}: {said}")
        if nearest is not None:
            console.print(_points([nearest], None))
    else:
        console.print(f"{title}: the front of cost and TBT, the winner in bold")
        console.print(_points(answer["front"], answer["winner"]))
        if top:
            cheapest = _cheapest(answer, top)
            console.print(f"\nthe {len(cheapest)} cheapest that meet the limit and were replayed")
            console.print(_points(cheapest, answer["winner"]))
        _why(console, answer, mode)
        _prices(console, answer)
    console.print(f"[dim]{_search(answer['search'])}[/dim]", soft_wrap=True)


def _cheapest(answer: dict[str, Any], top: int) -> list[dict[str, Any]]:
    """None where there is no winner."""
    meeting = (row for row in answer["replayed"] if row["keeps_up"] and not _over(row["tbt_p99_ms"], answer))
    found = sorted(meeting, key=lambda row: row["usd_per_million_tokens"]) if answer["winner"] else []
    return found[:top]


def _over(tbt_p99_ms: float, answer: dict[str, Any]) -> bool:
    limit: float = answer["summary"]["slo"]["tbt_ms"]
    return tbt_p99_ms > limit


def _points(rows: list[dict[str, Any]], winner: dict[str, Any] | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("system")
    table.add_column("deployment")
    for title in (
        "batches",
        "$/h",
        "tokens/s",
        "mean batch",
        "TBT p50 ms",
        "p99 ms",
        "in limit",
        "$/M tokens",
    ):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["system"],
            row["deployment"] + ASSUMED * bool(row["assumed_devices"]) + _limit(row),
            str(row["batches"]),
            f"{row['usd_per_hour']:.2f}",
            number(row["tokens_per_s"]),
            number(row["mean_batch"]),
            f"{row['tbt_p50_ms']:.1f}",
            f"{row['tbt_p99_ms']:.1f}",
            share(row["token_attainment"]),
            f"{row['usd_per_million_tokens']:.3f}",
            style="bold" if row == winner else None,
        )
    return table


def _limit(row: dict[str, Any]) -> str:
    """How many requests a board may run at once."""
    return f", {row['most_requests']} on each" if row["most_requests"] else ""


def _why(console: Console, answer: dict[str, Any], mode: str) -> None:
    """What binds, with the signs of it in the replay beside what was tried."""
    effects, summary = answer["binds"], msgspec.convert(answer["summary"], Summary)
    gained = "tbt_p99_gain" if mode == "open" else "throughput_gain"
    first = effects[0]
    then_ms = answer["winner"]["tbt_p99_ms"] * (1 - first["tbt_p99_gain"])
    beyond = ", over the limit" if _over(then_ms, answer) else ""
    console.print(
        f"\n[bold]{first['resource']}[/bold] binds: a tenth more of it alone comes to "
        f"{_percent(first['throughput_gain'])} tokens/s, {_percent(-first['tbt_p99_gain'])} TBT p99{beyond}"
    )
    rest = (f"{each['resource']} {_percent(each[gained])}" for each in effects[1:])
    what = "less TBT p99" if mode == "open" else "more tokens/s"
    console.print(f"others, {what}: {', '.join(rest)}", soft_wrap=True)
    idle = (f"{who} {share(left)}" for who, left in summary.bubbles.pools().items())
    shares = summary.time_shares
    spent = (
        f"{part} {share(getattr(shares, part))}"
        for part in ("model", "attention", "network", "host", "waiting")
    )
    console.print(
        f"KV memory filled to {share(summary.kv.peak_share)}; idle: {', '.join(idle)}; "
        f"a token's time: {', '.join(spent)}",
        soft_wrap=True,
    )


def _prices(console: Console, answer: dict[str, Any]) -> None:
    """One line a device."""
    console.print("\n[bold]prices[/bold], one changed by 10 % at a time")
    by_device: dict[str, list[str]] = {}
    for row in answer["prices"]:
        who = "same winner" if row["stays"] else f"[bold]{escape(row['winner'])}[/bold] wins"
        by_device.setdefault(row["device"], []).append(
            f"at ${row['usd_each_per_hour']:.2f} {who}, ${row['usd_per_million_tokens']:.3f}/M"
        )
    width = max(map(len, by_device))
    for device, said in by_device.items():
        console.print(f"  {device:{width}}  {'; '.join(said)}", soft_wrap=True)


def counted(counts: dict[str, int]) -> str:
    """What decided about how many candidates."""
    return ", ".join(f"{counts[key]:,} {words}" for key, words in WHY.items() if counts.get(key))


def _search(search: dict[str, Any]) -> str:
    return (
        f"{search['considered']:,} candidates in {search['seconds']:.2f} s, "
        f"{search['candidates_per_s']:,.0f} a second: {counted(search['counts'])}"
    )


def _together(result: dict[str, Any], top: int) -> list[str]:
    """What is to be said of all cost sets: whether they agree, and whose devices nobody measured."""
    lines = []
    answers = result["answers"]
    if len(answers) > 1:
        winners = [row for answer in answers if (row := answer["winner"]) is not None]
        costs = [row["usd_per_million_tokens"] for row in winners]
        names = {(row["system"], row["deployment"], row["batches"], row["most_requests"]) for row in winners}
        if len(winners) < len(answers):
            lines.append("the cost sets disagree: not all of them have a winner")
        elif len(names) > 1:
            lines.append(
                f"the cost sets disagree about the winner; ${min(costs):.3f} to ${max(costs):.3f}/M tokens"
            )
        else:
            lines.append(f"the cost sets agree on it: ${min(costs):.3f} to ${max(costs):.3f}/M tokens")
    assumed = {device for each in answers for row in _shown(each, top) for device in row["assumed_devices"]}
    boards = [row["name"] for row in result["devices"] if row["board"]]
    if borrowed := sorted(assumed - set(boards)):
        lines.append(
            f"[dim]{ASSUMED} {', '.join(borrowed)}: not measured, coefficients borrowed (costs show)[/dim]"
        )
    return lines + [f"[dim]{line}[/dim]" for line in _of_boards(result, boards)]


def _of_boards(result: dict[str, Any], boards: list[str]) -> Iterator[str]:
    """What is not measured of boards and not alike on them, whether or not one of them is in a table."""
    for name in boards:
        yield (
            f"{ASSUMED} {name}: not measured, computed from the board's parameters (hardware boards); "
            f"weights and KV in int8, elsewhere in {result['weights_and_kv']}"
        )
    yield from result["assumed"]


def _shown(answer: dict[str, Any], top: int) -> list[dict[str, Any]]:
    """All candidates that are in a table."""
    alone = [] if answer["nearest"] is None else [answer["nearest"]]
    return [*answer["front"], *_cheapest(answer, top), *alone]


def _percent(gain: float) -> str:
    return f"{gain:+.1%}"
