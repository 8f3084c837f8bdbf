"""A browser with access to an explorer, and the errors and foreign requests of its pages."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Largest picture in the documentation.
MOST_BYTES = 150_000
IMAGES = Path(__file__).parents[2] / "docs" / "images"
# In a driver's messages on a machine without a GPU.
_DRIVERS = "GL Driver Message"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser, started once for a module; skip the test if there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright, of the dev extra, is not installed"
    )
    names = (os.environ.get("LAMINABENCH_BROWSER", ""), "chromium", "chromium-browser", "google-chrome")
    path_of_browser = next((path for name in names if name and (path := shutil.which(name))), None)
    if path_of_browser is None:
        pytest.skip("no browser to open pages in: run ci/browser.sh, or name one in LAMINABENCH_BROWSER")
    # Root in a container has no namespaces for the browser's own sandbox.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # Generous, as the machine may be busy.
    sync_api.expect.set_options(timeout=30_000)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path_of_browser, args=sandbox)
        yield started
        started.close()


@dataclass
class Visitor:
    """Opens pages of one explorer, each in a window of its own."""

    browser: Any
    link: str  # that lets a browser in, once
    complaints: list[str] = field(default_factory=list)
    _cookies: list[Any] = field(default_factory=list)
    _windows: list[Any] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.link.partition("/?")[0]

    def open(self, address: str = "/", width: int = 1280, theme: str = "light", **more: Any) -> Any:
        status, height = more.pop("status", 200), more.pop("height", 900)
        window = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, **more
        )
        self._windows.append(window)
        if not self._cookies:
            page = window.new_page()
            page.goto(self.link)
            page.wait_for_url("**/")
            self._cookies = window.cookies()
            page.close()
        window.add_cookies(self._cookies)
        page = window.new_page()
        page.on("console", lambda message: _DRIVERS in message.text or self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._own(request.url))
        assert page.goto(self.base + address).status == status
        if status != 200:
            # The browser logs that by itself.
            self.complaints.clear()
        if more.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn]")
        return page

    def leave(self) -> list[str]:
        """Close the windows; return the complaints of their pages."""
        for window in self._windows:
            window.close()
        complaints = list(self.complaints)
        self._windows.clear()
        self.complaints.clear()
        return complaints

    def _own(self, url: str) -> None:
        if not url.startswith((self.base, "data:", "blob:")):
            self.complaints.append(f"asked for {url}")


def require_accessible(page: Any) -> None:
    """Fail if axe finds serious violations."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    violations = axe.Axe().run(page).response["violations"]
    bad = [each for each in violations if each["impact"] in ("serious", "critical")]
    assert bad == [], json.dumps(bad, indent=1)


def until(page: Any, condition: str) -> None:
    """Poll a condition from here: these pages forbid evaluating text, as the browser's own wait does."""
    deadline_s = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < deadline_s, condition
        page.wait_for_timeout(50)


def picture(page: Any, name: str) -> None:
    """Save a screenshot of a page for the documentation."""
    target = IMAGES / f"{name}.png"
    page.screenshot(path=target)
    assert target.stat().st_size < MOST_BYTES
