"""Pages of sweeps, plans and validations in a browser: what can be moved moves, and a link says all of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import IMAGES, MOST_BYTES, Visitor, chromium, require_accessible
from view_things import GRID, HOSTILE, keep_all, throughput

from laminabench.workflows.plan.reprice import front_at
from laminabench.workflows.plan.stored import read_plan

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, of the dev extra, is not installed")
expect = sync_api.expect

pytestmark = pytest.mark.outside
PAGES = {
    "sweep": "/sweeps?at=sweeps/one",
    "plan": "/plans?at=plans/one",
    "validation": "/validations?at=validation",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_all(tmp_path_factory.mktemp("things"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def visitor(browser: Any, exploring: Any, root: Path) -> Iterator[Visitor]:
    with exploring(root) as running:
        yield Visitor(browser, running.url)


@pytest.fixture
def explorer(visitor: Visitor) -> Iterator[Visitor]:
    yield visitor
    assert visitor.leave() == []


@pytest.mark.parametrize("width", [390, 1280, 2560])
@pytest.mark.parametrize("name", PAGES)
def test_it_is_legible(name: str, width: int, explorer: Visitor) -> None:
    page = explorer.open(PAGES[name], width)
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".chart .main-svg").all():
        assert chart.bounding_box()["width"] > 200
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector(f"html[data-drawn={theme}]")
        require_accessible(page)
    assert page.evaluate("window.hacked") is None
    assert HOSTILE[:20] in page.inner_text("main")


FRONT = "#shown section:has(h2:text-is('Front')) tbody tr"


def front_of(page: Any) -> list[int]:
    """Whom the chart shows on the front."""
    messages: list[int] = page.evaluate(
        "document.getElementById('front').data.find((trace) => trace.meta.role === 'front').customdata"
    )
    return messages


def numbered(page: Any) -> list[str]:
    """The systems of the table's numbered rows, in their order."""
    rows = page.locator(FRONT).filter(has_text=re.compile("^\\d"))
    assert rows.locator("th").all_text_contents() == [str(n + 1) for n in range(rows.count())]
    return [row.locator("td").first.text_content() for row in rows.all()]


def winner_of(page: Any) -> tuple[str, str]:
    return page.inner_text("#winner-name"), page.inner_text(".winner dd >> nth=0")


def test_a_slider_moves_the_front(explorer: Visitor, root: Path) -> None:
    page = explorer.open(PAGES["plan"])
    plan = read_plan(root / "plans" / "one")
    points = plan.answers[0].replayed

    def systems(on: list[int]) -> list[str]:
        return [points[i].system for i in on]

    before = front_of(page)
    assert before == front_at(points, plan.prices, plan.slo_tbt_p99_ms).on
    assert numbered(page) == systems(before)
    assert winner_of(page)[0] == "lamina 4xh100+4xh20, 3 batches"
    page.locator(".price:has(#number-h20) input[type=range]").focus()
    page.keyboard.press("Home")
    price = float(page.input_value("#number-h20"))
    assert price == pytest.approx(plan.prices["h20"] / 4, rel=1e-3)
    now = front_at(points, {**plan.prices, "h20": price}, plan.slo_tbt_p99_ms)
    assert now.winner is not None
    won = now.all[now.winner]
    expect(page.locator("#winner-name")).to_have_text(won.point.candidate)
    assert winner_of(page) == (won.point.candidate, f"{won.usd_per_million_tokens:,.3f}")
    page.wait_for_url(f"**price-h20={price:g}**")
    assert front_of(page) == now.on != before
    # The same from its link, with a script and without.
    for script in (True, False):
        again = explorer.open(page.url.removeprefix(explorer.base), java_script_enabled=script)
        assert numbered(again) == systems(now.on)
        assert winner_of(again) == winner_of(page)
    page.get_by_role("button", name="Plan's prices").click()
    expect(page.locator("#winner-name")).to_have_text("lamina 4xh100+4xh20, 3 batches")


def test_without_a_script_the_form_is_enough(explorer: Visitor) -> None:
    page = explorer.open(PAGES["plan"], java_script_enabled=False)
    page.fill("#number-h20", "0.5")
    page.select_option("select[name=cost]", "usd_per_hour")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**cost=usd_per_hour**")
    assert page.inner_text("#winner-name") == "vllm 8xh20"
    assert "4.00" in page.inner_text(".winner dl")


def test_every_candidate_can_be_seen(explorer: Visitor) -> None:
    page = explorer.open(PAGES["plan"])
    rows = page.locator(FRONT)
    assert rows.count() == 6
    page.get_by_label("all that were replayed").check()
    expect(rows).to_have_count(7)
    page.wait_for_url("**all=1**")
    again = explorer.open(page.url.removeprefix(explorer.base))
    assert again.locator(FRONT).count() == 7


HEAT = "document.getElementById('map').data.find((trace) => trace.type === 'heatmap')"


def test_a_map_has_what_was_chosen(explorer: Visitor) -> None:
    page = explorer.open(f"{PAGES['sweep']}&x=batches&y=attention-workers")
    expected = [[throughput(count, HOSTILE, batches) for batches in (1, 2)] for count in (2, 3, 4)]
    expected[1][1] = None  # type: ignore[call-overload]
    assert page.evaluate(f"{HEAT}.z") == expected
    page.select_option("select[name=metric]", "tbt_ms.p99")
    page.wait_for_selector("html[data-filled]")
    assert page.evaluate(f"{HEAT}.z") == [[32.0, 32.0], [33.0, None], [34.0, 34.0]]
    again = explorer.open(page.url.removeprefix(explorer.base))
    assert again.input_value("select[name=metric]") == "tbt_ms.p99"
    assert again.evaluate(f"{HEAT}.z") == [[32.0, 32.0], [33.0, None], [34.0, 34.0]]


def test_all_points_are_drawn_as_lines(explorer: Visitor) -> None:
    page = explorer.open(PAGES["sweep"])
    expect(page.locator("#lines .parcoords .y-axis")).to_have_count(7)
    page.get_by_text("Axes of all points").click()
    page.locator("input[name=along][value='mean_batch']").check()
    expect(page.locator("#lines .parcoords .y-axis")).to_have_count(8)
    assert "along=mean_batch" in page.url
    # The canvases are not blank.
    painted = page.evaluate(
        """() => {
          const canvas = document.querySelector("#lines canvas.gl-canvas-context");
          return canvas.width > 0 && canvas.toDataURL() !== Object.assign(document.createElement("canvas"), {
            width: canvas.width, height: canvas.height }).toDataURL();
        }"""
    )
    assert painted


def test_a_click_on_the_map_says_how_to_repeat_a_point(explorer: Visitor) -> None:
    page = explorer.open(f"{PAGES['sweep']}&x=batches&y=attention-workers")
    page.locator("#map .nsewdrag").scroll_into_view_if_needed()
    box = page.locator("#map .nsewdrag").bounding_box()
    # Batches 2, four attention workers: the upper right of two by three.
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.12)
    # plotly looks where the mouse is every 50 ms, and forgets it if that comes between press and release.
    expect(page.locator("#map .hoverlayer text").first).to_be_visible()
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(r"point=\d+#point"))
    row = int(re.findall(r"point=(\d+)", page.url)[0])
    assert GRID[row] == (4, HOSTILE, 2)
    expect(page.locator("#command")).to_contain_text("--deployment 2xh100+4xh20")
    page.get_by_role("link", name="Close").click()
    expect(page.locator("#command")).to_have_count(0)


def test_a_title_sorts(explorer: Visitor) -> None:
    page = explorer.open(PAGES["sweep"])
    for sense in ("descending", "ascending"):
        page.locator(".points thead").get_by_role("link", name="throughput, tokens/s").click()
        expect(page.locator(f".points th[aria-sort={sense}]")).to_have_count(1)
    first = page.locator(".points tbody tr").first
    assert f"{throughput(2, 'fhbn', 1):,.0f}" in first.inner_text()


# As docs/view.md has them, but for the folder.
COMMANDS = (
    "sweep --trace profile:azure-conv --num-requests 400 --vary attention-workers=2,4,8 --vary batches=1,2 "
    "--vary admission=reserve,grow --vary network=fhbn,nccl --out attention",
    "plan --trace profile:azure-conv --num-requests 300 --slo-tbt-p99-ms 100 --budget 60 --out plan",
)
SHOTS = {
    "sweep": "/sweeps?at=attention&x=attention-workers&y=batches&fix-admission=reserve",
    "plan": "/plans?at=plan&price-h20=2.5",
    "validation": "/validations?at=validation",
}


@pytest.mark.skipif("LAMINABENCH_SCREENSHOTS" not in os.environ, reason="LAMINABENCH_SCREENSHOTS is not set")
def test_docs_have_pictures(browser: Any, exploring: Any, tmp_path: Path) -> None:
    """Of real results."""
    from PIL import Image

    for command in COMMANDS:
        called = [sys.executable, "-m", "laminabench", *command.split(), "-q"]
        subprocess.run(called, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "validation").mkdir()
    saved = Path(__file__).parents[3] / "results" / "validation" / "validation.json"
    shutil.copy(saved, tmp_path / "validation")
    with exploring(tmp_path) as running:
        explorer = Visitor(browser, running.url)
        for name, address in SHOTS.items():
            page = explorer.open(address)
            target = IMAGES / f"view-{name}.png"
            page.evaluate("document.querySelector('.folder').textContent = '~/results'")
            page.screenshot(path=target, clip={"x": 0, "y": 0, "width": 1280, "height": 1150}, full_page=True)
            # Colours that few pixels have are kept by it, too.
            few = Image.open(target).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
            few.save(target, optimize=True)
            assert target.stat().st_size < MOST_BYTES
