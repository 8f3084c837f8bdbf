"""The page of a plan: its front and winner at chosen prices, and what limits each candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast, get_args

from starlette.datastructures import QueryParams

from laminabench.render.charts.plan import COSTS, SPEEDS, front_chart
from laminabench.render.forms import badge, check, command, copies, form, hidden, select, submit, tiles
from laminabench.render.html import Markup, cell, exactly, joined, sheet_table, tag
from laminabench.render.model import Sheet, listed
from laminabench.render.sections import Section, grid
from laminabench.render.sheets.plan import BY_PRICES, WHY, binds_of, front_sheet
from laminabench.render.sheets.replay import SOURCES
from laminabench.render.view.folder import Entry
from laminabench.render.view.page import Page
from laminabench.util.errors import UserError
from laminabench.workflows.plan.reprice import Cost, Front, Speed, front_at
from laminabench.workflows.plan.stored import StoredAnswer, StoredDevice, StoredPlan, read_plan

# The sliders' range, as multiples of the plan's prices.
LEAST, MOST = 0.25, 4.0
PRICE = "price-"
PART = "shown"


def page(entry: Entry, query: QueryParams) -> Page:
    """Return the page at the query's prices, by default the plan's own."""
    plan = read_plan(entry.path)
    answer = _chosen(plan, query)
    prices = plan.prices | dict(_prices(plan, query))
    cost = cast("Cost", _one_of("cost", query, get_args(Cost)))
    speed = cast("Speed", _one_of("speed", query, get_args(Speed)))
    at = front_at(answer.replayed, prices, plan.slo_tbt_p99_ms, cost, speed)
    chart = front_chart(plan, at, cost, speed)
    every = "all" in query
    title = f"Plan for {plan.trace.name} with {plan.model}"
    sections = (
        Section("Winner", _winner(plan, answer, at)),
        Section("Front", joined((grid([chart], wide=True), sheet_table(front_sheet(plan, at, every=every))))),
        *_changed(answer),
        _search(answer),
    )
    shown = joined((_about(plan, answer), *(each.html() for each in sections)))
    if query.get("part") == PART:
        return Page(title, shown, [chart])
    choices = _form(plan, answer, prices, (cost, speed), at=entry.key, every=every)
    body = joined((choices, tag("div", shown, id=PART), _provenance(plan).html()))
    return Page(title, body, [chart], scripts=("plan.js", "copy.js"))


def _chosen(plan: StoredPlan, query: QueryParams) -> StoredAnswer:
    name = query.get("costs", plan.answers[0].costs)
    for each in plan.answers:
        if each.costs == name:
            return each
    there = listed([each.costs for each in plan.answers])
    raise UserError("view-value", f"costs={name}: the plan was made with {there}")


def _one_of(name: str, query: QueryParams, values: tuple[str, ...]) -> str:
    value = query.get(name, values[0])
    if value not in values:
        raise UserError("view-value", f"{name}={value}: choose {' or '.join(values)}")
    return value


def _prices(plan: StoredPlan, query: QueryParams) -> Iterator[tuple[str, float]]:
    for name in plan.prices:
        text = query.get(f"{PRICE}{name}")
        if not text:
            continue
        try:
            usd = float(text)
        except ValueError:
            usd = math.nan
        if not 0 <= usd < 1e6:
            raise UserError("view-value", f"{PRICE}{name}={text}: a price is $ an hour, such as 2.5")
        yield name, usd


def _about(plan: StoredPlan, answer: StoredAnswer) -> Markup:
    first = f"TTFT p99 of at most {plan.slo_ttft_p99_ms:g} ms, " if plan.slo_ttft_p99_ms else ""
    power = f" and {plan.power_budget_w:,g} W" if plan.power_budget_w else ""
    source = SOURCES.get(plan.trace.source, plan.trace.source)
    words = (
        f" {plan.trace.name}, {source}, {plan.trace.requests:,} requests, {plan.mode}; {first}TBT p99 of at "
        f"most {plan.slo_tbt_p99_ms:g} ms, at most ${plan.budget_usd_per_hour:,.2f} an hour{power} at the "
        f"plan's prices; costs {answer.costs}"
    )
    return tag("p", badge("modelled"), words, class_="kinds")


def _winner(plan: StoredPlan, answer: StoredAnswer, at: Front) -> Markup:
    """Return the card of the winner, and the winner at the plan's own prices."""
    own = front_at(answer.replayed, plan.prices, plan.slo_tbt_p99_ms)
    if at.winner is None or own.winner is None:
        return tag("p", "Nothing that was replayed meets the limit, at whatever price.")
    won, was = at.all[at.winner], own.all[own.winner]
    numbers = (
        ("$ a million tokens", won.usd_per_million_tokens, f"{won.usd_per_million_tokens:,.3f}"),
        ("$ an hour", won.usd_per_hour, f"{won.usd_per_hour:,.2f}"),
        ("tokens/s", won.point.tokens_per_s, f"{won.point.tokens_per_s:,.0f}"),
        ("TBT p99, ms", won.point.tbt_p99_ms, f"{won.point.tbt_p99_ms:,.1f}"),
    )
    cost = f"${was.usd_per_million_tokens:,.3f} a million tokens"
    other = f"At the plan's prices it is {was.point.candidate}, {cost}."
    return tag(
        "div",
        tag("h3", won.point.candidate, id="winner-name"),
        tiles((unit, exactly(value, written)) for unit, value, written in numbers),
        tag("p", "A tenth more of what binds: ", cell(binds_of(won.point, plan))),
        tag("p", "It wins at the plan's prices too." if won.point == was.point else other, id="winner-was"),
        class_="card winner",
        role="status",
        aria_label="Winner",
    )


def _form(
    plan: StoredPlan,
    answer: StoredAnswer,
    prices: Mapping[str, float],
    axes: tuple[Cost, Speed],
    *,
    at: str,
    every: bool,
) -> Markup:
    """Return fields for prices and axes; sliders need the script, numbers do not."""
    own = plan.prices
    rows = (_price(each, own[each.name], prices[each.name]) for each in plan.devices if each.name in own)
    sets = {each.costs: each.costs for each in plan.answers}
    shown = (
        select("cost", "Cost", COSTS, axes[0]),
        select("speed", "Speed", SPEEDS, axes[1]),
        select("costs", "Cost set", sets, answer.costs) if len(sets) > 1 else "",
        check("all", "1", "all that were replayed", checked=every),
    )
    reset = tag("button", "Plan's prices", type="button", id="reset", hidden=True)
    return form(
        "/plans",
        hidden({"at": at}),
        tag("fieldset", tag("legend", "Prices, $ an hour each"), *rows),
        tag("fieldset", tag("legend", "Shown"), *shown),
        tag("p", submit("Show"), reset, copies("Copy link", "link"), class_="buttons"),
        id="prices",
        class_="choices across",
        data_part=PART,
    )


def _price(device: StoredDevice, own: float, usd: float) -> Markup:
    times, name = usd / own if own else 1.0, f"number-{device.name}"
    basis = f", {device.price.basis}" if device.price is not None and device.price.basis else ""
    value = {"value": repr(usd), "data_price": repr(own)}
    label = f"{device.name}: times its price, {LEAST:g} to {MOST:g}"
    steps = {"min": math.log2(LEAST), "max": math.log2(MOST), "step": 0.01}
    at = round(math.log2(min(MOST, max(LEAST, times))), 2)
    return tag(
        "div",
        tag("label", device.name, for_=name),
        tag("input", type="number", id=name, name=f"{PRICE}{device.name}", min=0, step="any", **value),
        tag("input", type="range", **steps, value=at, aria_label=label, hidden=True),
        tag("span", f"{times:.2f} x ${own:.2f}{basis}", class_="quiet times"),
        class_="price",
    )


def _changed(answer: StoredAnswer) -> Iterator[Section]:
    """Yield the effect of each price on the winner, as the plan recorded it."""
    rows = [
        (
            each.device,
            f"{each.change:+.0%}",
            f"${each.usd_each_per_hour:,.2f}",
            "the same" if each.stays else each.winner,
            f"${each.usd_per_million_tokens or 0:,.3f}",
        )
        for each in answer.prices
    ]
    columns = ("device", ">changed by", ">to, an hour", "winner", ">a million tokens")
    if rows:
        yield Section("One price a tenth off", sheet_table(Sheet("Of the plan's prices", columns, rows)))


def _search(answer: StoredAnswer) -> Section:
    counts, replayed = answer.search.counts, len(answer.replayed)
    rows = [(words, f"{counts[key]:,}") for key, words in WHY.items() if counts.get(key)]
    priced = sum(counts.get(key, 0) for key in BY_PRICES)
    never = (
        f"Only the {replayed:,} candidates that were replayed can appear at other prices. {priced:,} more "
        "were left out as too dear or beaten at the prices of the search, to which the budget was applied "
        "too. To be sure far from them, plan again with --price, or with --exhaustive."
    )
    notice = tag("aside", never, class_="caveats", aria_label="What cannot appear")
    counted = sheet_table(Sheet(f"{answer.search.considered:,} candidates", ("of them", ""), rows), "")
    return Section("Search", joined((notice, counted)))


def _provenance(plan: StoredPlan) -> Section:
    rows = [
        (each.name, f"${each.price.usd:,.4g} an hour", each.price.basis, each.price.source, each.price.date)
        for each in plan.devices
        if each.price is not None
    ]
    code = f"laminabench {plan.laminabench.version or '-'}, commit {plan.laminabench.commit or '-'}"
    prices = Sheet("The plan's prices", ("device", "price", "kind", "source", "as of"), rows)
    return Section("Provenance", joined((tag("p", code), command(plan.command), sheet_table(prices, ""))))
