"""Pages of sweeps, plans and validations: numbers, choices in the link, hostile names; as served too."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import structs
from starlette.datastructures import QueryParams
from view_things import CANDIDATES, GRID, HOSTILE, LIMIT_MS, PRICES, keep_all, throughput

from laminabench.render.charts.chart import PlotlyJson
from laminabench.render.charts.sweep_grid import choices, grid, in_order
from laminabench.render.view import plan_page, sweep_page, validation_page
from laminabench.render.view.app import make_app
from laminabench.render.view.folder import Entry, scan
from laminabench.render.view.index import Index
from laminabench.render.view.page import Page
from laminabench.util.errors import UserError
from laminabench.workflows.plan.reprice import front_at
from laminabench.workflows.plan.stored import read_plan
from laminabench.workflows.sweep.read import read_sweep


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_all(tmp_path_factory.mktemp("things"))


@pytest.fixture
def things(root: Path) -> dict[str, Entry]:
    return {key: each for kind in scan(root).entries.values() for key, each in kind.items()}


def query(**chosen: Any) -> QueryParams:
    return QueryParams(urlencode(chosen, doseq=True))


def sweep_of(things: dict[str, Entry], **chosen: Any) -> Page:
    return sweep_page.page(things["sweeps/one"], query(**chosen))


def plan_of(things: dict[str, Entry], **chosen: Any) -> Page:
    return plan_page.page(things["plans/one"], query(**chosen))


def trace(page: Page, chart: int, **like: Any) -> PlotlyJson:
    return next(
        each
        for each in page.charts[chart].traces
        if all(each.get(key) == value for key, value in like.items())
    )


def test_a_map_has_the_best_of_what_is_not_chosen(things: dict[str, Entry]) -> None:
    page = sweep_of(things, x="batches", y="attention-workers", metric="throughput_tokens_per_s")
    heat = trace(page, 0, type="heatmap")
    assert (heat["x"], heat["y"]) == (["1", "2"], ["2", "3", "4"])
    expected = [[throughput(count, HOSTILE, batches) for batches in (1, 2)] for count in (2, 3, 4)]
    assert heat["z"] == [expected[0], [expected[1][0], None], expected[2]]
    rows = [row for line in heat["customdata"] for row in line]
    assert [GRID[row] for row in rows if row is not None] == [
        (count, HOSTILE, batches) for count in (2, 3, 4) for batches in (1, 2) if (count, batches) != (3, 2)
    ]
    failed = trace(page, 0, name="failed")
    assert (failed["x"], failed["y"]) == (["2"], ["3"])
    assert "3 do not split" in failed["text"][0]
    numbers = trace(page, 0, mode="text")
    assert numbers["text"][:2] == [f"{expected[0][0]:,.0f}", f"{expected[0][1]:,.0f}"]
    assert not heat["reversescale"]


def test_a_map_of_one_value_of_the_others(things: dict[str, Entry]) -> None:
    page = sweep_of(things, x="batches", y="attention-workers", **{"fix-network": "fhbn"})
    heat = trace(page, 0, type="heatmap")
    assert heat["z"][0] == [throughput(2, "fhbn", batches) for batches in (1, 2)]
    # Of times the least is the best, and bright.
    page = sweep_of(things, x="batches", y="network", metric="tbt_ms.p99")
    heat = trace(page, 0, type="heatmap")
    assert heat["z"] == [[32.0, 32.0], [32.0, 32.0]]
    assert heat["reversescale"]


def test_over_one_flag_it_is_a_line(things: dict[str, Entry]) -> None:
    page = sweep_of(things, x="attention-workers", y="-", metric="mean_batch", **{"fix-batches": "2"})
    (line,) = page.charts[0].traces
    assert (line["x"], line["y"]) == (["2", "4"], [20.0, 40.0])
    assert "Failed: 3" in page.charts[0].note


def test_all_points_side_by_side(things: dict[str, Entry]) -> None:
    page = sweep_of(things, metric="tbt_ms.p50", along=["network", "batches"])
    (lines,) = page.charts[1].traces
    network, batches, metric = lines["dimensions"]
    known = [point for point in GRID if (point[0], point[2]) != (3, 2)]
    assert network["tickvals"] == [0, 1]
    assert network["values"] == [[1.0, 0.0][point[1] == "fhbn"] for point in known]
    assert batches["values"] == [float(point[2]) for point in known]
    assert metric["values"] == lines["line"]["color"] == [20.0 + point[0] for point in known]
    assert "2 points without these numbers are left out" in page.charts[1].note


def test_a_table_is_sorted_and_keeps_what_failed(things: dict[str, Entry]) -> None:
    sweep = read_sweep(things["sweeps/one"].path)
    failed = [row for row, point in enumerate(GRID) if (point[0], point[2]) == (3, 2)]
    for sort, reverse in (("throughput_tokens_per_s", True), ("-throughput_tokens_per_s", False)):
        rows = in_order(sweep, sort)
        values = [throughput(*GRID[row]) for row in rows[:-2]]
        assert values == sorted(values, reverse=reverse)
        assert sorted(rows[-2:]) == failed
    assert [GRID[row][0] for row in in_order(sweep, "attention-workers")] == sorted(each[0] for each in GRID)
    assert len(sweep_of(things).body.split('class="why"')) == 1 + len(failed)


def test_a_point_says_how_to_repeat_it(things: dict[str, Entry]) -> None:
    row = GRID.index((4, HOSTILE, 2))
    page = sweep_of(things, point=row)
    result = re.search('<pre id="command"[^>]*>(.*?)</pre>', page.body, re.S)
    assert result
    command = shlex.split(html.unescape(result[1]))
    assert command == [
        *("laminabench", "replay", "--trace", "azure-conv", "--network", HOSTILE),
        *("--batches", "2", "--deployment", "2xh100+4xh20"),
    ]


@pytest.mark.parametrize(
    "chosen",
    [
        {"x": "seed"},
        {"y": "seed"},
        {"metric": "network"},
        {"fix-batches": "7", "x": "network", "y": "attention-workers"},
        {"along": "seed"},
        {"sort": "-seed"},
        {"point": "999"},
        {"point": "-1"},
        {"point": "9" * 5000},
    ],
)
def test_what_a_sweep_has_not_is_refused(chosen: dict[str, str], things: dict[str, Entry]) -> None:
    with pytest.raises(UserError) as error:
        sweep_of(things, **chosen)
    assert error.value.code == "view-value"


def test_a_link_keeps_every_choice(things: dict[str, Entry]) -> None:
    sweep = read_sweep(things["sweeps/one"].path)
    requested = {"x": "network", "y": "batches", "metric": "mean_batch", "fix-attention-workers": "4"}
    requested |= {"along": ["batches", "mean_batch"], "sort": "-batches", "point": "3"}
    chosen = choices(sweep, "sweeps/one", query(**requested))
    again = choices(sweep, "sweeps/one", QueryParams(chosen.link()[1:]))
    assert again == chosen
    assert chosen.fixed == {"attention-workers": "4"}
    assert choices(sweep, "", query(x="network", y="network")).y == "attention-workers"
    assert grid(sweep, chosen).ys == ["1", "2"]


def numbers_of(page: Page, name: str) -> float:
    unit = {"hour": "$ an hour", "million": "$ a million tokens"}[name]
    result = re.search(rf'<dt>{re.escape(unit)}</dt><dd><data value="([^"]+)"', page.body)
    assert result
    return float(result[1])


def test_a_plan_at_its_own_prices_and_at_others(things: dict[str, Entry]) -> None:
    page = plan_of(things)
    hour = 4 * PRICES["h100"] + 4 * PRICES["h20"]
    assert numbers_of(page, "hour") == pytest.approx(hour)
    assert numbers_of(page, "million") == pytest.approx(hour / (12000 * 3600) * 1e6)
    assert "wins at the plan&#x27;s prices too" in page.body
    front = next(each for each in page.charts[0].traces if each["meta"]["role"] == "front")
    assert [CANDIDATES[i][4] for i in front["customdata"]] == [30, 40, 46, 55, 60, 62]
    assert front["x"] == sorted(front["x"])
    assert front["y"] == sorted(front["y"], reverse=True)
    cheap = plan_of(things, **{"price-h20": "0.5"})
    assert numbers_of(cheap, "hour") == pytest.approx(8 * 0.5)
    assert "At the plan&#x27;s prices it is lamina 4xh100+4xh20" in cheap.body
    free = plan_of(things, **{"price-h20": "0"})
    assert free.charts[0].layout["yaxis"]["type"] == "linear"


@pytest.mark.parametrize("cost", ["usd_per_million_tokens", "usd_per_hour"])
@pytest.mark.parametrize("speed", ["tbt_p99_ms", "tokens_per_s"])
def test_a_front_of_other_axes(cost: Any, speed: Any, things: dict[str, Entry]) -> None:
    page = plan_of(things, cost=cost, speed=speed)
    front = next(each for each in page.charts[0].traces if each["meta"]["role"] == "front")
    plan = read_plan(things["plans/one"].path)
    result = front_at(plan.answers[0].replayed, plan.prices, LIMIT_MS, cost, speed)
    assert front["customdata"] == result.on
    assert front["y"] == pytest.approx([getattr(result.all[i], cost) for i in result.on], rel=1e-5)


@pytest.mark.parametrize(
    "chosen", [{"price-h20": "x"}, {"price-h20": "-1"}, {"price-h20": "inf"}, {"cost": "y"}, {"costs": "z"}]
)
def test_prices_that_are_none_are_refused(chosen: dict[str, str], things: dict[str, Entry]) -> None:
    with pytest.raises(UserError) as error:
        plan_of(things, **chosen)
    assert error.value.code == "view-value"


def test_a_validation_has_errors_next_to_targets(things: dict[str, Entry]) -> None:
    page = validation_page.page(things["validation"], query())
    recorded, published, tpot, ttft, twin = page.charts
    met = next(each for each in recorded.traces if each["name"] == "met")
    missed = next(each for each in recorded.traces if each["name"] == "missed")
    assert dict(zip(met["y"], met["x"], strict=True)) == {"TPOT p50": 0.5, "TPOT p90": 1.0}
    assert set(missed["y"]) == {"TTFT", "latency", "TPOT", "TPOT p99"}
    others = next(each for each in recorded.traces if each["name"] == "other simulators")
    assert others["x"] == [1.5, 2.5, 0.5, 0.6, 0.7, 0.8]
    assert next(each for each in published.traces if each["name"] == "missed")["x"] == [12.21]
    assert len(tpot.traces[-1]["y"]) == len(ttft.traces[-1]["y"]) == 1  # without what is known to be off
    assert (tpot.traces[0]["base"], tpot.traces[0]["x"]) == ([0], [7.0])
    (dot,) = [each for each in twin.traces if each["name"] == "met"]
    low, high = (100 * (104 / end - 1) for end in (105, 95))
    assert dot["error_x"]["array"] == [pytest.approx(high - 4, rel=1e-4)]
    assert dot["error_x"]["arrayminus"] == [pytest.approx(4 - low, rel=1e-4)]
    assert "nobody knows" in page.body


def texts_of(page: Page) -> list[str]:
    """Everything that plotly takes for text."""

    def walk(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for inner in value.values() for text in walk(inner)]
        if isinstance(value, list | tuple):
            return [text for inner in value for text in walk(inner)]
        return [value] if isinstance(value, str) else []

    return [text for chart in page.charts for text in walk([chart.traces, chart.layout])]


@pytest.mark.parametrize("key", ["sweeps/one", "sweeps/half", "plans/one", "validation"])
def test_names_are_names(key: str, things: dict[str, Entry]) -> None:
    pages: dict[str, Any] = {"sweep": sweep_page, "plan": plan_page, "validation": validation_page}
    page = pages[things[key].kind].page(
        things[key], query(at=key, x="network") if key == "sweeps/one" else query(at=key)
    )
    assert "window.hacked" in page.body
    assert not re.search("<(script>|img|b>)", re.sub("<script type.*?</script>", "", page.body, flags=re.S))
    for data in re.findall("<script type[^>]*>(.*?)</script>", page.body, re.S):
        assert "<" not in data
        json.loads(data)
    for text in texts_of(page):
        assert not re.search("<(script|img)", text), text


def test_what_is_replayed_at_no_speed_costs_without_end(things: dict[str, Entry]) -> None:
    plan = read_plan(things["plans/one"].path)
    still = structs.replace(plan.answers[0].replayed[0], tokens_per_s=0.0)
    result = front_at([still], plan.prices, LIMIT_MS)
    assert math.isinf(result.all[0].usd_per_million_tokens)


def get(root: Path, address: str) -> tuple[int, dict[str, str], str]:
    """What the app answers, without a network."""
    path, _, requested = address.partition("?")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": requested.encode(), "root_path": "",
        "headers": [(b"host", b"localhost")], "server": ("localhost", 80), "client": ("localhost", 1),
    }  # fmt: skip
    asyncio.run(make_app(Index(root))(scope, receive, send))
    body = b"".join(each.get("body", b"") for each in sent if each["type"] == "http.response.body")
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, body.decode()


@pytest.mark.parametrize(
    "address",
    ["/sweeps?at=sweeps/one", "/sweeps?at=sweeps/half", "/plans?at=plans/one", "/validations?at=validation"],
)
def test_each_has_an_address(address: str, root: Path) -> None:
    status, headers, body = get(root, address)
    assert status == 200
    assert body.startswith("<!doctype html>")
    # Only the parallel coordinates need it.
    assert ("unsafe-eval" in headers.get("content-security-policy", "")) is address.endswith("sweeps/one")


def test_a_part_of_a_sweep_is_the_part_of_its_page(root: Path) -> None:
    requested = "/sweeps?at=sweeps/one&x=batches&metric=mean_batch"
    part = json.loads(get(root, f"{requested}&part=shown")[2])
    whole = get(root, requested)[2]
    assert part["html"] in whole
    assert [each["id"] for each in part["figures"]] == ["map", "lines"]


def test_a_part_of_a_plan_is_the_part_of_its_page(root: Path) -> None:
    requested = "/plans?at=plans/one&price-h20=0.5"
    part = json.loads(get(root, f"{requested}&part=shown")[2])
    assert part["html"] in get(root, requested)[2]
    assert "vllm 8xh20" in part["html"]
    assert [each["id"] for each in part["figures"]] == ["front"]


def test_wrong_choices_are_a_page_that_says_so(root: Path) -> None:
    status, _, body = get(root, "/plans?at=plans/one&price-h20=cheap")
    assert status == 400
    assert "price-h20=cheap" in body
    (root / "plans" / "broken").mkdir(exist_ok=True)
    (root / "plans" / "broken" / "plan.json").write_text('{"format": "laminabench plan"}')
    status, _, body = get(root, "/plans?at=plans/broken")
    assert status == 400
    assert "is damaged" in body
