"""The page of live replays under way: progress, charts that grow, faults, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams

from laminabench.render.charts.chart import Chart, PlotlyJson, axis, dotted_line, rounded
from laminabench.render.format import number4
from laminabench.render.forms import badge, tiles
from laminabench.render.html import Markup, joined, script_data, table, tag
from laminabench.render.shown import COLOURS
from laminabench.render.style import PURPLE
from laminabench.render.view.index import Index
from laminabench.render.view.page import Page, address, empty
from laminabench.render.view.under_way import UnderWay, Watched
from laminabench.runs.live import SUFFIX, FaultEvent, Moment
from laminabench.runs.manifest import NUMBERS
from laminabench.util.errors import UserError
from laminabench.util.json import Json

# At most this many moments are drawn: a page opened late shows every n-th.
_MOST_POINTS = 2_000
_MOST_FAULTS = 50
_WORDS = {
    "running": "runs",
    "done": "is done",
    "interrupted": "was interrupted",
    "failed": "failed",
    "killed": "was killed: its process ended without a message",
}
# For each chart: its title, its axis, and its lines as fields of Moment with labels.
_CHARTS: dict[str, tuple[str, str, dict[str, str]]] = {
    "live-rate": ("Tokens a second", "tokens/s", {"tokens_per_s": "tokens/s"}),
    "live-tbt": ("Time between tokens", "ms", {"tbt_ms_p50": "p50", "tbt_ms_p99": "p99"}),
    "live-batch": ("Requests", "requests", {"batch": "decoding", "waiting": "waiting"}),
    "live-kv": ("KV tokens", "tokens", {"kv_tokens": "in use"}),
    "live-finished": ("Requests finished", "requests", {"finished": "finished", "failed": "failed"}),
}


def live_page(index: Index, watched: Watched, query: QueryParams) -> Page:
    """Return the list of live replays, or the one that the address names."""
    if "at" not in query:
        return _list(watched)
    key = query["at"]
    replay = watched.one(key)
    if replay is None:
        if (ended := _over(index, key)) is not None:
            return Page(f"{key.removesuffix(SUFFIX)}, live", ended)
        raise UserError(
            "view-not-there",
            f"no replay is running at '{key}' in this folder, and there is no Run of it",
        )
    shown = len(replay.moments)  # before drawing: another browser's request may add more
    charts = _charts(replay)
    feed = {
        "address": address("/live/moments", {"at": key}),
        "began": replay.header.began,
        "seen": shown,
        "lines": [[chart, *fields] for chart, (_, _, fields) in _CHARTS.items()],
    }
    grid = tag("div", *(chart.html() for chart in charts), class_="charts")
    body = joined((tag("div", _state(index, replay), id="state"), grid, script_data("feed", feed)))
    return Page(f"{replay.run_key}, live", body, charts, scripts=("live.js",))


def moments(index: Index, watched: Watched, query: QueryParams) -> dict[str, Json]:
    """Return new moments for the script; `reload` if the page is of another replay."""
    key, shown = query.get("at", ""), query.get("seen", "0")
    replay = watched.one(key)
    if replay is None:
        # The Run exists shortly before this folder is scanned again.
        ended = _over(index, key)
        waiting = tag("p", "It has ended, and its Run is not here yet.", role="status")
        return {"html": ended or waiting, "over": ended is not None, "faults": None, "points": {}, "seen": 0}
    if replay.header.began != query.get("began") or not shown.isdecimal() or len(shown) > 9:
        return {"reload": True}
    count = len(replay.moments)
    new = replay.moments[int(shown) : count]
    return {
        "html": _state(index, replay),
        "over": replay.state != "running",
        "faults": [fault.at_s for fault in replay.faults[:_MOST_FAULTS]],
        "points": {name: _values(new, name) for name in ("at_s", *_fields())},
        "seen": count,
    }


def _values(there: Sequence[Moment], name: str) -> list[float | None]:
    """Return a field of the moments as numbers for a chart."""
    values = (getattr(moment, name) for moment in there)
    return rounded(float("nan") if value is None else value for value in values)


def _fields() -> list[str]:
    return [name for _, _, fields in _CHARTS.values() for name in fields]


def _list(watched: Watched) -> Page:
    there = watched.all()
    if not there:
        how = tag("code", "laminabench replay --backend live --trace azure-conv --num-requests 200")
        return Page(
            "Live", empty("No replay is under way in this folder.", tag("p", "One is begun by ", how))
        )
    rows = [
        (
            tag("a", each.run_key, href=address("/live", {"at": each.key})),
            tag("span", _WORDS[each.state].partition(":")[0], class_=f"state {each.state}"),
            f"{each.header.system} {each.header.deployment}",
            each.header.trace,
            f"{each.last.finished if each.last else 0:,} of {each.header.requests:,}",
            _seconds(each.left_s) if each.state == "running" else "",
        )
        for each in there
    ]
    header = ("Run", "", "System", "Trace", "Requests finished", "Time left")
    return Page("Live", table("Live replays of this folder", header, rows))


def _over(index: Index, key: str) -> Markup | None:
    """Return what to show when the live file is removed and its Run exists."""
    run = key.removesuffix(SUFFIX)
    if run not in index.refreshed().entries["run"]:
        return None
    link = tag("a", "look at its Run", href=address("/compare", {"run": run}))
    return tag("p", tag("span", "It is done", class_="state done"), ": ", link, ".", role="status")


def _state(index: Index, replay: UnderWay) -> Markup:
    header, state = replay.header, replay.state
    what = f" {header.model} on {header.trace}, {header.system} {header.deployment}, {header.mode}; it "
    now = tag("span", _WORDS[state], class_=f"state {state}", role="status")
    parts = [tag("p", badge(NUMBERS[header.backend]), what, now, "."), *_end(index, replay)]
    if replay.share is not None:
        label = "How much of it is done"
        parts.append(tag("progress", max="1", value=f"{replay.share:.4f}", aria_label=label))
    if replay.last is not None:
        parts.append(tiles(_tiles(replay, replay.last), class_="tiles"))
    if replay.faults:
        rows = [
            (number4(each.at_s), ", ".join(each.workers) or "none", each.why, number4(_lasted(each)))
            for each in replay.faults[-_MOST_FAULTS:][::-1]
        ]
        more = len(replay.faults) > _MOST_FAULTS
        title = f"Faults; the last {_MOST_FAULTS} of {len(replay.faults):,}" if more else "Faults"
        parts.append(table(title, ("At, s", "Workers", "Why", "Went on after, s"), rows))
    return joined(parts)


def _lasted(fault: FaultEvent) -> float | None:
    return None if fault.resumed_s is None else fault.resumed_s - fault.at_s


def _end(index: Index, replay: UnderWay) -> Iterator[Markup]:
    end = replay.end
    if end is not None and end.why:
        yield tag("p", end.why)
    if end is not None and end.resume:
        yield tag("p", "Resume it with ", tag("code", end.resume))
    if replay.state == "killed":
        yield tag("p", "If it wrote a journal, continue it with ", tag("code", replay.resume))
    if replay.state == "done" and replay.run_key in index.refreshed().entries["run"]:
        yield tag("p", tag("a", "Its Run", href=address("/compare", {"run": replay.run_key})))


def _tiles(replay: UnderWay, last: Moment) -> list[tuple[str, str]]:
    header = replay.header
    kv = "KV tokens"
    if last.kv_tokens is not None and header.kv_capacity_tokens:
        kv += f", {last.kv_tokens / header.kv_capacity_tokens:.0%}"
    lost = f", {last.workers_lost:,} lost" if last.workers_lost else ""
    facts = {
        "tokens/s": number4(last.tokens_per_s),
        "ms TBT p50": number4(last.tbt_ms_p50),
        "ms TBT p99": number4(last.tbt_ms_p99),
        "requests decode": number4(last.batch),
        "requests wait": number4(last.waiting),
        kv: number4(last.kv_tokens),
        f"finished of {header.requests:,}": number4(last.finished),
        "requests failed": number4(last.failed) if last.failed else "",
        "workers": f"{len(header.workers):,}{lost}" if header.workers else "",
        "since it began": _seconds(last.at_s),
        "left, about": _seconds(replay.left_s) if replay.state == "running" else "",
    }
    return [(unit, value) for unit, value in facts.items() if value not in ("", "-")]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 100 else f"{minutes // 60}:{minutes % 60:02} h"


def _charts(replay: UnderWay) -> list[Chart]:
    # From the end, to include the last moment.
    every = -(-len(replay.moments) // _MOST_POINTS) or 1
    there = replay.moments[::-1][::every][::-1]
    at_s = [moment.at_s for moment in there]
    colour = COLOURS.get(replay.header.system, PURPLE)
    charts = []
    for key, (title, unit, fields) in _CHARTS.items():
        traces = [
            _line(name, at_s, _values(there, field), colour, dash)
            for (field, name), dash in zip(fields.items(), ("solid", "dot"), strict=False)
        ]
        limited = key == "live-tbt"
        limit = dotted_line(replay.header.slo_tbt_ms, "limit", vertical=False) if limited else {"shapes": []}
        # The script draws later ones.
        limit["shapes"] += [_mark(fault.at_s) for fault in replay.faults[:_MOST_FAULTS]]
        layout: PlotlyJson = {
            **limit,
            "xaxis": axis("seconds since the replay began"),
            "yaxis": axis(unit, rangemode="tozero"),
            "margin": {"l": 60, "r": 48, "t": 20, "b": 44},
        }
        note = f"{' and '.join(fields.values())}, of the last seconds; vertical lines are faults."
        alt = f"{title} since the replay began, so far."
        charts.append(Chart(key, title, alt, note, traces, layout, 240))
    return charts


def _line(name: str, x: Sequence[float], y: Sequence[float | None], colour: str, dash: str) -> PlotlyJson:
    line = {"color": colour, "dash": dash, "width": 2}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": line}


def _mark(at_s: float) -> PlotlyJson:
    ends = {"x0": at_s, "x1": at_s, "y0": 0, "y1": 1, "yref": "paper"}
    return {"type": "line", "name": "fault", "line": {"color": "#c23b22", "width": 1}, **ends}
