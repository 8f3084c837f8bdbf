"""The built site in a browser: it fits, is accessible, loads nothing from the network and can be searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import chromium
from doc_blocks import ROOT

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

pytestmark = pytest.mark.outside
PAGES = ("index", "start", "tutorial-pays", "concepts", "cli/replay", "reference-python", "metrics")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does it, which may say nothing at all."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_fits_and_loads_nothing(
    browser: Any, site: Path, name: str, width: int, scheme: str
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_selector("body[data-md-color-scheme]")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    result = axe.Axe().run(page).response["violations"]
    serious = [each for each in result if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []
    page.close()


def test_search_works_on_a_page_from_a_file(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("rotation")
    page.wait_for_selector(".md-search-result__item", timeout=60_000)
    page.close()


def test_every_command_has_a_page_with_its_flags(site: Path) -> None:
    from laminabench.cli.main import SECTIONS

    names = [name for commands in SECTIONS.values() for name in commands]
    assert {path.stem for path in (site / "cli").glob("*.html")} == {*names, "index"}
    assert "--slo-tbt-p99-ms" in (site / "cli" / "plan.html").read_text()
    indexed = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any(entry["location"].startswith("cli/plan.html") for entry in indexed)
