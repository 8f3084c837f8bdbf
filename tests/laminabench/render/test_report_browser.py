"""The page in a browser: quiet, legible, its numbers there, and nothing that leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import chromium, require_accessible

from laminabench.render.report import report, write_page
from laminabench.render.shown import shown
from laminabench.runs.read import Run
from laminabench.runs.summary import FaultCost, InjectedFault
from laminabench.sim.outcome import Outcome
from laminabench.util.json import to_json

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, of the dev extra, is not installed")
expect = sync_api.expect

# A name that is taken for markup wherever it is not taken for a name.
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2> %{x} <b>bold"
FAULT = FaultCost(
    workers=["attention 0"],
    why="attention 0 has ended",
    struck=[InjectedFault(worker="attention 0", how="kill", at_s=0.4)],
    noticed_s=0.5,
    detection_s=0.1,
    recovery_s=0.2,
    normal_again_s=None,
    tbt_before_ms=30.0,
    tbt_worst_ms=250.0,
    goodput_lost_tokens=12.0,
    requests=1,
    kv_tokens=10,
)
CHARTS = (
    *("cdf", "attainment", "batch", "kv", "rate", "tbt-time", "hbm-1", "moved"),
    *("time", "price", "cost", "timeline"),
)

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def runs(keep: Callable[..., Run], on_boards: Callable[..., Outcome]) -> list[Run]:
    second = keep("vllm")
    boards = replace(second, outcome=on_boards(second.outcome))
    return [keep(), boards, keep(trace=HOSTILE, live=True, faults=[FAULT])]


@pytest.fixture(scope="module")
def path(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target: Path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(report(shown(runs), f"<i>{HOSTILE}", None), target)
    return target


class Opened:
    """A page, with whatever it complained of or asked for."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.messages: list[str] = []
        self.requested: list[str] = []
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.context.route("**/*", self._route)
        self.page.goto(path.as_uri())
        if context.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-drawn]")

    def _route(self, route: Any) -> None:
        if route.request.is_navigation_request() and route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.requested.append(route.request.url)
            route.abort()


@pytest.fixture(scope="module")
def wide(browser: Any, path: Path) -> Opened:
    """A desktop's window. A test that changes it changes it back: loading takes seconds."""
    return Opened(browser, path, viewport={"width": 1280, "height": 900}, color_scheme="light")


@pytest.fixture(scope="module")
def narrow(browser: Any, path: Path) -> Opened:
    """As on a telephone."""
    return Opened(browser, path, viewport={"width": 390, "height": 844}, color_scheme="dark")


@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("narrow", 390)])
def test_it_is_quiet_and_legible(request: pytest.FixtureRequest, name: str, width: int) -> None:
    result = request.getfixturevalue(name)
    page = result.page
    assert (result.messages, result.requested) == ([], [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector(f"html[data-drawn={theme}]")
        require_accessible(page)
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = false; })")
    for chart in CHARTS:
        box = page.locator(f"#{chart} .main-svg").first.bounding_box()
        assert 200 < box["height"] < 1200
        assert 300 < box["width"] <= width


def test_the_numbers_of_the_manifests_are_there(wide: Opened, runs: list[Run]) -> None:
    page = wide.page
    values = set(page.eval_on_selector_all("main data", "all => all.map(each => Number(each.value))"))
    for run in runs:
        summary = to_json(run.manifest.summary)
        assert set(summary["tbt_ms"].values()) <= values
        assert {summary["throughput_tokens_per_s"], summary["cost"]["usd_per_million_tokens"]} <= values
        assert {value for name, value in summary["slo"].items() if name != "tbt_ms"} <= values
    message = page.inner_text("main")
    assert f"{runs[0].manifest.summary.throughput_tokens_per_s:,.0f}" in message
    badges = page.locator("article .badge").all_inner_texts()
    assert badges == ["modelled", "modelled", "measured"] * 2


def test_a_name_is_shown_and_not_obeyed(wide: Opened) -> None:
    page = wide.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").inner_text() == f"<i>{HOSTILE}"
    assert page.title() == f"<i>{HOSTILE}"
    legend = page.locator("#cdf .legendtext").all_text_contents()
    assert any("<script>window.hacked=1</script>" in name for name in legend), legend


def test_a_run_can_be_hidden_and_shown_everywhere(wide: Opened) -> None:
    page = wide.page
    lines, bars = page.locator("#cdf .scatterlayer .trace"), page.locator("#cost .barlayer .point")
    key = page.locator("#keys button").first
    for pressed, shown_ in (("true", 3), ("false", 2), ("true", 3)):
        if key.get_attribute("aria-pressed") != pressed:
            key.click()
        expect(lines).to_have_count(shown_)
        expect(bars).to_have_count(shown_)
        assert key.get_attribute("aria-pressed") == pressed


def test_a_series_can_be_hidden_by_its_legend(wide: Opened) -> None:
    lines, key = wide.page.locator("#cdf .scatterlayer .trace"), wide.page.locator("#cdf .legendtoggle").first
    for shown_ in (2, 3):
        key.click()
        expect(lines).to_have_count(shown_)


def test_light_and_dark_change_places(wide: Opened) -> None:
    page = wide.page
    page.emulate_media(color_scheme="light")
    page.wait_for_selector("html[data-drawn=light]")
    for theme, paper in (("dark", "rgb(20, 23, 28)"), ("light", "rgb(255, 255, 255)")):
        page.locator("#theme").click()
        page.wait_for_selector(f"html[data-drawn={theme}]")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    page.evaluate("delete document.documentElement.dataset.theme")


def test_the_mouse_is_answered(wide: Opened) -> None:
    wide.page.locator("#batch .nsewdrag").hover()
    expect(wide.page.locator("#batch .hoverlayer text").first).to_be_visible()


def test_without_scripts_words_and_tables_remain(browser: Any, path: Path) -> None:
    page = Opened(browser, path, java_script_enabled=False).page
    assert page.locator("table.numbers").first.is_visible()
    assert page.locator(".missing").count() == len(CHARTS)
    assert "Distribution of the time between tokens" in page.inner_text("main")
    assert not page.locator("#theme").is_visible()
