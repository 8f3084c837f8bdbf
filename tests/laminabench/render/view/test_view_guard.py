"""Access: the one-time link, the cookie, the host name; and how the server ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

Exploring = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def explorer(exploring: Exploring, two_runs: Path) -> Iterator[Any]:
    with exploring(two_runs) as explorer:
        assert explorer.get("/")[0] == 403
        assert explorer.get("/?token=" + "x" * 43)[0] == 403
        assert explorer.get("/?token=%ff")[0] == 403
        explorer.enter()
        yield explorer


def test_the_link_lets_one_browser_in(explorer: Any) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", explorer.url)
    status, body, _ = explorer.get("/")
    assert status == 200
    assert "runs/lamina" in body
    # Another browser has no cookie, and the link is spent.
    for path in (explorer.link, "/", "/compare?run=runs/lamina", "/static/x/view.js", "/news", "/nowhere"):
        status, body, _ = explorer.get(path, Cookie="")
        assert status == 403
        assert "lamina</a>" not in body
    # The browser that was let in may use it again, at whatever address, and goes on without the token.
    status, body, headers = explorer.get(f"/compare{explorer.link[1:]}&run=runs/a%26b")
    assert status == 200
    assert 'content="0;url=/compare?run=runs%2Fa%26b"' in body
    assert headers["cache-control"] == "no-store"
    _, body, _ = explorer.get(f"//other.host/{explorer.link[1:]}")
    assert 'content="0;url=/other.host/"' in body


def test_the_cookie_is_for_this_browser_alone(explorer: Any) -> None:
    _, _, headers = explorer.get(explorer.link)
    name, _, rest = headers["set-cookie"].partition("=")
    assert name == f"laminabench-view-{explorer.port}"
    assert rest.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Strict"
    for wrong in (f"{name}=x", f"{name}x={rest.partition(';')[0]}", "=;;=\x80", f"{name}="):
        assert explorer.get("/", Cookie=wrong)[0] == 403
    # Cookies are for all servers of a machine, and those of others may be anything.
    for other in ('a={"x": [1, 2]}', "a b=1", 'a="x', "x", "=;;=\x80", "\xe9=\xe9"):
        assert explorer.get("/", Cookie=f"{other}; {explorer.cookie}; {other}")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:{port}", "[::1]:{port}", "localhost:1", ""]
)
def test_other_names_are_refused(explorer: Any, host: str) -> None:
    for path in ("/", explorer.link):
        status, body, _ = explorer.get(path, Host=host.format(port=explorer.port))
        assert (status, "<table" in body) == (403, False)


def test_pages_may_load_and_send_nothing(explorer: Any) -> None:
    for path in ("/", "/compare?run=runs/lamina", "/live", "/nowhere", "/sweeps?at=x"):
        _, body, headers = explorer.get(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; " in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert re.findall(r'(?:src|href|action)="(?:https?:)?//', body) == []
        # No script is in the page itself.
        assert re.findall(r"<script(?! src=| type=\"application/json\")", body) == []
        assert re.findall(r"\son\w+=", body) == []
    assert "localhost" in f"localhost:{explorer.port}"
    assert explorer.get("/", Host=f"localhost:{explorer.port}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("HEAD", "/", 405),
        ("PUT", "/compare", 405),
        ("DELETE", "/?token=x", 405),
        ("GET", "/?q=" + "x" * 50_000, 414),
        ("GET", "/?q=" + "x" * 3_000, 200),
        ("GET", "/nowhere", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/compare?run=../../etc", 404),
        ("GET", "/compare", 400),
        ("GET", "/live?at=%00", 404),
        ("GET", "/live/moments?at=x", 200),
        ("GET", "/static/x/..%2Fapp.py", 404),
        ("GET", "/static/x/app.py", 404),
        ("GET", "/export?run=runs/lamina", 200),
    ],
)
def test_requested_fields(explorer: Any, method: str, path: str, status: int) -> None:
    assert explorer.get(path, method)[0] == status


def test_scripts_may_be_cached_forever(explorer: Any) -> None:
    _, body, _ = explorer.get("/")
    addresses = re.findall(r'"(/static/[^"]+)"', body)
    assert len(addresses) >= 4
    for address in addresses:
        status, _, headers = explorer.get(address)
        assert status == 200
        assert headers["cache-control"].endswith("immutable")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(exploring: Exploring, two_runs: Path, number: int) -> None:
    with exploring(two_runs) as explorer:
        explorer.enter()
        explorer.process.send_signal(number)
        assert explorer.process.wait(30) == 0
        assert explorer.process.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            explorer.get("/")
