"""The explorer in a browser: every page legible, by keyboard too, and alive where the folder is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visitor, chromium, picture, require_accessible, until
from made_live import made_live

from laminabench.render.report import page as report_page
from laminabench.render.report import report
from laminabench.render.shown import shown
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.read import read_run
from laminabench.workflows.replay.run import run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, of the dev extra, is not installed")
expect = sync_api.expect

pytestmark = pytest.mark.outside
BOTH = "/compare?run=runs/lamina&run=runs/vllm"
NAME = """it's "a" %2F run <img src=x onerror=window.hacked=1>#frag?q=1&x=2
newline"""
PAGES = {
    "runs": "/",
    "search": "/?q=system%3Dlamina+tbt_ms.p99%3C500&col=system&col=request.costs&col=host.cores&sort=system",
    "wrong": "/?q=tbt_ms.p98%3C500",
    "columns": "/columns",
    "compare": BOTH,
    "one": "/compare?run=runs/lamina",
    "live": "/live?at=runs/under-way.live",
    "lives": "/live",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def here(two_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is written into: two Runs, a damaged one, one with a hostile name, a live replay."""
    folder = Path(shutil.copytree(two_runs, tmp_path_factory.mktemp("here") / "azure"))
    (folder / "runs/damaged").mkdir()
    (folder / "runs/damaged/run.json").write_text("{")
    hostile = folder / "runs" / NAME.replace("/", "-")
    shutil.copytree(folder / "runs/vllm", hostile)
    manifest = json.loads((hostile / "run.json").read_text())
    manifest["trace"]["name"] = "</script><script>window.hacked=1</script> %{x} <b>bold"
    del manifest["crc32"]
    (hostile / "run.json").write_text(json.dumps(manifest))
    made_live(folder / "runs/under-way.live")
    return folder


@pytest.fixture(scope="module")
def visitor_of_all(exploring: Callable[..., Any], here: Path, browser: Any) -> Iterator[Visitor]:
    with exploring(here) as explorer:
        yield Visitor(browser, explorer.url)


@pytest.fixture
def visitor(visitor_of_all: Visitor) -> Iterator[Visitor]:
    yield visitor_of_all
    assert visitor_of_all.leave() == []


def charts_of(page: Any) -> None:
    """Wait for charts that come later."""
    page.wait_for_selector("#charts .chart .main-svg")
    page.wait_for_selector("#lanes .main-svg")


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1280, "light"), (2560, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_legible(visitor: Visitor, name: str, width: int, theme: str) -> None:
    page = visitor.open(PAGES[name], width, theme)
    if name in ("compare", "one"):
        charts_of(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    require_accessible(page)
    assert page.evaluate("window.hacked") is None


def test_errors_are_pages(visitor: Visitor) -> None:
    for address, status in (("/compare", 400), ("/compare?run=gone", 404), ("/nowhere", 404)):
        page = visitor.open(address, status=status)
        assert page.locator(".empty").is_visible()
        require_accessible(page)


def test_by_keyboard_from_the_table_to_a_comparison(visitor: Visitor) -> None:
    page = visitor.open("/?q=4xh100,2x+OR")
    assert "No Run is like that" in page.inner_text("main")
    page.keyboard.press("/")
    page.keyboard.type("lamina")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=lamina")
    rows = page.locator("tr[data-key]")
    first = rows.first.get_attribute("data-key")
    page.keyboard.press("Tab")  # the skip link comes first
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-selected]")).to_have_text("1 selected")
    # A selection is kept while other queries are looked at.
    page.goto(f"{visitor.base}/?q=nothing")
    page.goto(f"{visitor.base}/?sort=run")
    expect(page.locator("[data-selected]")).to_have_text("1 selected")
    page.keyboard.press("j")
    for _ in range(rows.count()):
        page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("c")
    page.wait_for_url("**/compare?**")
    assert page.locator(".card").count() == 2
    assert first is not None
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(f"{visitor.base}/")
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()


def test_select_all_and_sort(visitor: Visitor) -> None:
    page = visitor.open("/?q=modelled")
    page.get_by_label("Select all that are shown").check()
    count = page.locator("tr[data-key]").count()
    expect(page.locator("[data-selected]")).to_have_text(f"{count} selected")
    page.get_by_role("link", name="TBT p99, ms").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("TBT p99")
    values = [
        float(each)
        for each in page.eval_on_selector_all("td:nth-child(10) data", "all => all.map(e => e.value)")
    ]
    assert values == sorted(values, reverse=True)
    assert len(values) == count


def test_names_are_shown_and_not_obeyed(visitor: Visitor) -> None:
    page = visitor.open("/?q=onerror")
    link = page.locator("tr[data-key] th a")
    assert r"<img src=x onerror=window.hacked=1>#frag?q=1&x=2\nnewline" in link.inner_text()
    link.click()
    charts_of(page)
    assert "</script><script>window.hacked=1</script>" in page.inner_text("main")
    assert page.evaluate("window.hacked") is None
    later = page.get_by_role("link", name="Later")
    later.click()
    page.wait_for_url("**window=**")
    expect(page.locator("#lanes .main-svg").first).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_the_window_of_the_timeline_moves_without_the_page(visitor: Visitor) -> None:
    page = visitor.open(f"{BOTH}&window=1:2")
    charts_of(page)
    expect(page.locator("#lanes h3")).to_have_text("Timeline from 1.000 to 2.000 s")
    page.evaluate("window.same = true")
    page.get_by_role("link", name="Later").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#lanes h3")).to_have_text("Timeline from 1.500 to 2.500 s")
    assert "window=1.5%3A2.5" in page.url
    expect(page.get_by_role("link", name="Later")).to_be_focused()
    page.fill("#window", "0.5:0.75")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#lanes h3")).to_have_text("Timeline from 0.500 to 0.750 s")
    expect(page.locator("#lanes .main-svg").first).to_be_visible()
    assert page.evaluate("window.same")
    # The link says what is seen.
    again = visitor.open(page.url.removeprefix(visitor.base))
    charts_of(again)
    expect(again.locator("#lanes h3")).to_have_text("Timeline from 0.500 to 0.750 s")


def test_runs_are_hidden_in_charts_that_came_later(visitor: Visitor) -> None:
    page = visitor.open(BOTH)
    charts_of(page)
    lines = page.locator("#cdf .scatterlayer .trace")
    expect(lines).to_have_count(2)
    page.locator("#keys button").first.click()
    expect(lines).to_have_count(1)


def test_base_and_limit_are_chosen(visitor: Visitor) -> None:
    page = visitor.open(BOTH)
    page.select_option("#base", "runs/vllm")
    page.fill("#slo", "40")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**slo=40**")
    assert page.locator("h1").inner_text() == "vllm 4xh100 and lamina 2xh100+4xh20"
    assert "of tokens within 40 ms" in page.inner_text("main")


def test_an_export_is_what_report_makes(visitor: Visitor, here: Path, tmp_path: Path) -> None:
    page = visitor.open(f"{BOTH}&slo=50&window=1:2")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as a report").click()
    download.value.save_as(tmp_path / "report.html")
    runs = shown([read_run(here / "runs" / name) for name in ("lamina", "vllm")], 50.0)
    assert (tmp_path / "report.html").read_text() == report_page(report(runs, None, (1.0, 2.0)))


def test_colours_are_remembered(visitor: Visitor) -> None:
    page = visitor.open()
    page.keyboard.press("t")
    page.wait_for_selector("html[data-drawn=dark]")
    page.goto(f"{visitor.base}/columns")
    page.wait_for_selector("html[data-drawn=dark]")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


def test_without_scripts_forms_and_links_are_enough(visitor: Visitor) -> None:
    page = visitor.open("/?q=system%3Dlamina,vllm+!%3D", java_script_enabled=False)
    page.goto(f"{visitor.base}/?q=deployment%3D4xh100+trace%3Dazure-conv")
    page.locator("tr[data-key] input").check()
    page.get_by_role("button", name="Compare").click()
    assert page.locator(".card").count() == 1
    assert page.locator("table.numbers").is_visible()


def test_new_runs_appear_by_themselves(visitor: Visitor, here: Path) -> None:
    page = visitor.open("/?q=brand-new")
    assert page.locator("tr[data-key]").count() == 0
    until(page, "performance.getEntriesByName(location.origin + '/news').length > 0")
    # Where the explorer is busy, it is asked again.
    page.route(lambda url: "part=rows" in url, lambda requested: requested.abort(), times=1)
    shutil.copytree(here / "runs/lamina", here / ".copy")
    (here / ".copy").rename(here / "runs/brand-new")
    expect(page.locator("tr.new")).to_have_attribute("data-key", "runs/brand-new")
    expect(page.locator("#news")).to_have_text("1 new Run")
    assert any("net::ERR_FAILED" in message for message in visitor.complaints)
    visitor.complaints.clear()
    shutil.rmtree(here / "runs/brand-new")
    expect(page.locator("tr[data-key]")).to_have_count(0)


def test_ten_thousand_runs(
    exploring: Callable[..., Any], two_runs: Path, browser: Any, tmp_path: Path
) -> None:
    manifest = json.loads((two_runs / "runs/lamina/run.json").read_text())
    for number in range(10_000):
        manifest["summary"]["tbt_ms"]["p99"] = 20.0 + number / 100
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}/run.json").write_text(json.dumps(manifest))
    with exploring(tmp_path) as explorer:
        visitor = Visitor(browser, explorer.url)
        page = visitor.open("/?q=tbt_ms.p99%3C100&sort=-tbt_ms.p99")
        assert "8,000 of 10,000 Runs, 1 to 100" in page.inner_text("main")
        assert page.locator("tr[data-key]").first.get_attribute("data-key") == "run-7999"
        page.get_by_role("link", name="Page 80").click()
        expect(page.locator("tr[data-key]").last).to_have_attribute("data-key", "run-0")
        assert page.locator(".places .count").first.inner_text() == "10,000"
        assert visitor.leave() == []


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A live one, that takes some seconds and loses a worker on its way."""
    rows = "".join(f"0,{40 + 7 * i},{300 + 20 * i}\n" for i in range(12))
    (tmp_path / "few.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    command = (
        "replay --trace few.csv --backend live --system lamina --model llama-tiny --oversubscribe "
        "--chaos attention:0@t=1s --out runs/live -q"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "laminabench", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "LAMINABENCH_HOME": str(tmp_path / ".home")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_a_live_replay_is_watched_to_its_end(
    exploring: Callable[..., Any], browser: Any, tmp_path: Path, replay: subprocess.Popen[str]
) -> None:
    with exploring(tmp_path) as explorer:
        visitor = Visitor(browser, explorer.url)
        table = visitor.open()
        expect(table.locator(".places a[href='/live'] .count")).to_have_text("1", timeout=120_000)
        table.keyboard.press("g")
        table.keyboard.press("l")
        table.get_by_role("link", name="runs/live").click()
        page = table
        expect(page.locator(".state")).to_have_text("runs")
        expect(page.locator("#state table")).to_contain_text("attention 0", timeout=60_000)
        until(page, "document.getElementById('live-rate').data?.[0].x.length > 4")
        # The limit, and the fault.
        until(page, "document.getElementById('live-tbt').layout.shapes.length >= 2")
        assert replay.wait(120) == 0, replay.stderr and replay.stderr.read()
        expect(page.locator("#state")).to_contain_text("It is done")
        page.get_by_role("link", name="look at its Run").click()
        assert "measured" in page.locator(".card .badge").first.inner_text()
        charts_of(page)
        assert visitor.leave() == []


def test_a_replay_that_was_killed(visitor: Visitor, here: Path) -> None:
    page = visitor.open("/live?at=runs/under-way.live")
    expect(page.locator(".state")).to_contain_text("was killed")
    assert f"laminabench replay --resume {here}/runs/under-way" in page.inner_text("main")
    page.wait_for_selector("html[data-over]")


def test_who_is_in_a_table_by_keyboard_stays_there_while_the_replay_goes_on(
    visitor: Visitor, here: Path
) -> None:
    path = here / "runs/watched.live"
    made_live(path, os.getpid(), steps=8)
    page = visitor.open("/live")
    expect(page.locator(".places a[href='/live'] .count")).to_have_text("2")
    page.reload()
    page.get_by_role("link", name="runs/watched").click()
    page.wait_for_selector("html[data-seen='8']")
    page.locator("#state .scrolls").focus()
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(lines[-1].replace(b'"finished":8', b'"finished":9'))
    page.wait_for_selector("html[data-seen='9']")
    expect(page.locator("#state .tiles")).to_contain_text("9")
    expect(page.locator("#state .scrolls")).to_be_focused()
    path.unlink()


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    """A folder to take pictures of: modelled replays, and a live one under way."""
    lamina = ({}, {"batches": 1}, {"deployment": "2xh100+8xh20"}, {"deployment": "4xh100+4xh20"})
    requests = [
        *(("lamina", more) for more in lamina),
        *(("vllm", {"deployment": deployment}) for deployment in ("4xh100", "8xh100", "8xh20")),
    ]
    for number, (system, more) in enumerate(requests):
        name = "-".join([system, *map(str, more.values())])
        request = ReplayRequest(
            trace="profile:azure-conv", num_requests=800, offline=True, system=system,
            directory=str(tmp_path / "runs" / name), **more,
        )  # fmt: skip
        run(request)
        at_s = 1_790_000_000 + 600 * number
        os.utime(tmp_path / "runs" / name / "run.json", (at_s, at_s))
    made_live(tmp_path / "runs/llama-mini.live", os.getpid())
    return tmp_path


@pytest.mark.skipif("LAMINABENCH_SCREENSHOTS" not in os.environ, reason="LAMINABENCH_SCREENSHOTS is not set")
def test_docs_have_pictures(exploring: Callable[..., Any], browser: Any, gallery: Path) -> None:
    both = "/compare?run=lamina&run=vllm-4xh100"
    with exploring(Path("runs"), cwd=gallery) as explorer:
        visitor = Visitor(browser, explorer.url)
        pages = {"runs": "/?q=system%3Dlamina,vllm", "compare": both, "live": "/live?at=llama-mini.live"}
        for name, address in pages.items():
            page = visitor.open(address, height=800)
            if name == "compare":
                charts_of(page)
            picture(page, f"view-{name}")
            if name == "compare":
                page.locator("#timeline-section").evaluate("each => each.scrollIntoView()")
                picture(page, "view-timeline")
        assert visitor.leave() == []
