"""Downloads against a real HTTP server that misbehaves on request."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import http.server
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laminabench.traces import fetch as module
from laminabench.traces.catalogue import Entry, RemoteFile, recorded
from laminabench.traces.fetch import DownloadError, fetch
from laminabench.util.errors import CheckFailedError, UserError

BODY = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves BODY; the fields say how badly."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.etag = '"one"'
        self.cut_after: list[int] = []
        self.statuses: list[int] = []
        self.ranges = True
        self.sends_length = True
        self.leads_to: str | None = None
        self.sent = 0
        self.requested: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        expected = self.headers.get("Range")
        self.server.requested.append(expected)
        if self.server.statuses:
            self.send_error(self.server.statuses.pop(0))
            return
        if self.server.leads_to:
            self.send_response(302)
            self.send_header("Location", self.server.leads_to)
            self.end_headers()
            return
        start = 0
        if expected and self.server.ranges and self.headers.get("If-Range") == self.server.etag:
            start = int(expected.removeprefix("bytes=").removesuffix("-"))
        body = self.server.body[start:]
        self.send_response(206 if start else 200)
        if self.server.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self.server.etag)
        self.end_headers()
        stop = self.server.cut_after.pop(0) if self.server.cut_after else len(body)
        self.close_connection = True
        with contextlib.suppress(ConnectionError):  # the client has hung up
            for first in range(0, stop, 1 << 16):
                self.wfile.write(body[first : min(stop, first + (1 << 16))])
                self.server.sent += 1 << 16

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0)
    # A proxy of the machine must not come between the test and its own server.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def entry(url: str, sha256: str | None = SHA256) -> Entry:
    return Entry(
        name="made-up",
        description="",
        format="azure",
        license="",
        citation="",
        homepage="",
        file=RemoteFile("body.csv", f"{url}/body.csv", sha256, len(BODY)),
    )


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_a_download_arrives_whole_with_progress(server: Server) -> None:
    steps: list[tuple[int, int | None]] = []
    path = fetch(entry(server.url), progress=lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == BODY
    assert files(path) == ["body.csv"]
    assert steps[0] == (0, len(BODY))
    assert steps[-1] == (len(BODY), len(BODY))


def test_a_second_fetch_sends_no_request(server: Server) -> None:
    fetch(entry(server.url))
    fetch(entry(server.url))
    assert server.requested == [None]


def test_a_cut_connection_is_resumed_where_it_stopped(server: Server) -> None:
    server.cut_after = [300_000, 200_000]
    path = fetch(entry(server.url))
    assert path.read_bytes() == BODY
    assert server.requested == [None, "bytes=300000-", "bytes=500000-"]
    assert files(path) == ["body.csv"]


def test_a_download_given_up_is_resumed_by_the_next_command(server: Server) -> None:
    server.cut_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match="download-failed"):
        fetch(entry(server.url))
    assert not entry(server.url).downloaded_path.exists()
    path = fetch(entry(server.url))
    assert path.read_bytes() == BODY
    assert server.requested[-1] == "bytes=300000-"


@pytest.mark.parametrize(
    "trouble",
    [{"ranges": False, "cut_after": [300_000]}, {"statuses": [503, 429]}],
    ids=["sends it all again without ranges", "is asked again when it is busy"],
)
def test_a_server_in_trouble(server: Server, trouble: dict[str, object]) -> None:
    vars(server).update(trouble)
    assert fetch(entry(server.url)).read_bytes() == BODY


def test_a_file_that_changed_upstream_is_not_glued_together(server: Server) -> None:
    server.cut_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(entry(server.url, sha256=None))
    server.body, server.etag = BODY[::-1], '"two"'
    assert fetch(entry(server.url, sha256=None)).read_bytes() == BODY[::-1]


@pytest.mark.usefixtures("server")
def test_no_listener_fails_at_once() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_address[1]
    with pytest.raises(DownloadError, match="download-failed"):
        fetch(entry(f"http://127.0.0.1:{port}"))


def test_from_a_mirror_or_a_folder(server: Server, tmp_path: Path) -> None:
    assert fetch(entry("http://127.0.0.1:1"), base=server.url + "/").read_bytes() == BODY
    entry(server.url).downloaded_path.unlink()
    (tmp_path / "body.csv").write_bytes(BODY)
    assert fetch(entry(server.url), base=str(tmp_path)).read_bytes() == BODY
    entry(server.url).downloaded_path.unlink()
    with pytest.raises(DownloadError, match="download-cannot-read"):
        fetch(entry(server.url), base=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="download-bad-address"):
        fetch(entry(server.url), base="ftp://127.0.0.1")


@pytest.mark.usefixtures("server")
def test_a_silent_network_costs_one_timeout_an_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(DownloadError, match="download-failed"):
            fetch(entry(f"http://127.0.0.1:{silent.getsockname()[1]}"), attempts=1, timeout_s=0.05)
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize(
    ("served", "sha256", "requested", "code"),
    [
        ({"body": BODY[:-1] + b"!"}, SHA256, {}, "download-wrong-checksum"),
        ({"statuses": [404]}, SHA256, {}, "download-failed"),
        ({"statuses": [503, 503]}, SHA256, {"attempts": 1}, "download-failed"),
        ({}, SHA256, {"most_bytes": len(BODY) - 1}, "download-too-large"),
        ({"sends_length": False}, SHA256, {"most_bytes": len(BODY)}, "download-too-large"),
        ({"sends_length": False}, None, {}, "download-unverifiable"),
    ],
)
def test_an_unavailable_file_is_requested_once_and_leaves_nothing(
    server: Server, served: dict[str, Any], sha256: str | None, requested: dict[str, Any], code: str
) -> None:
    for name, value in served.items():
        setattr(server, name, copy.copy(value))
    expected = entry(server.url, sha256)
    with pytest.raises((UserError, CheckFailedError), match=code):
        fetch(expected, **requested)
    assert len(server.requested) == 1
    assert list(expected.downloaded_path.parent.iterdir()) == []


def test_a_sum_or_a_length_is_enough(server: Server) -> None:
    assert fetch(entry(server.url), most_bytes=len(BODY)).read_bytes() == BODY
    entry(server.url).downloaded_path.unlink()
    server.sends_length = False
    assert fetch(entry(server.url)).read_bytes() == BODY


def test_a_file_without_a_published_sum_gets_ours_next_to_it(server: Server) -> None:
    path = fetch(entry(server.url, sha256=None))
    assert files(path) == ["body.csv", "body.csv.sha256"]
    assert recorded(path) == SHA256


def test_a_folder_that_cannot_be_written_is_a_failed_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="download-cannot-write"):
        fetch(entry("http://127.0.0.1:1"))


def test_our_full_disk_is_not_the_sources_fault(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "body.csv").write_bytes(BODY)
    # Every write to it meets a full disk.
    full = Path("/dev/full").open("ab+", buffering=0)  # noqa: SIM115 - `fetch` closes it
    monkeypatch.setattr(module, "_locked", lambda _: full)
    monkeypatch.setattr(module, "_restart", lambda _: None)
    with pytest.raises(DownloadError, match="download-cannot-write"):
        fetch(entry(server.url), base=str(tmp_path))


@pytest.mark.parametrize(
    "base", ["http://[", "http://:80", "http://a:99999", "http://a:b", "http://a b", "http://a\n/"]
)
@pytest.mark.usefixtures("server")
def test_what_is_no_address_is_one_sentence(base: str) -> None:
    with pytest.raises(UserError, match="download-bad-address"):
        fetch(entry("http://127.0.0.1:1"), base=base)


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_two_fetches_at_once_make_one_download(server: Server, sha256: str | None) -> None:
    paths: list[Path] = []
    expected = entry(server.url, sha256)
    threads = [threading.Thread(target=lambda: paths.append(fetch(expected))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == BODY for path in paths] == [True] * 4
    assert len(server.requested) == 1
    assert files(paths[0])[0] == "body.csv"


def test_a_partial_file_that_goes_while_it_is_looked_at_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, stat, looks = tmp_path / "body.csv.part", Path.stat, []

    def missing_at_second_stat(self: Path, **options: bool) -> os.stat_result:
        looks.append(self)
        if len(looks) == 2:
            self.unlink()
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", missing_at_second_stat)
    with module._locked(path) as part:
        part.write(b"1")
    assert part.closed


@pytest.mark.parametrize(
    ("leads_to", "code"),
    [("ftp://127.0.0.1:1/body.csv", "download-bad-address"), ("file:///etc/hosts", "download-failed")],
)
def test_a_redirect_leads_to_http_or_nowhere(server: Server, leads_to: str, code: str) -> None:
    server.leads_to = leads_to
    with pytest.raises(DownloadError, match=code):
        fetch(entry(server.url))
    assert len(server.requested) == 1
    assert list(entry(server.url).downloaded_path.parent.iterdir()) == []


def test_a_redirect_from_https_to_http_is_refused() -> None:
    request = urllib.request.Request("https://host/body.csv")
    with pytest.raises(DownloadError, match="download-bad-address"):
        module._Redirects().redirect_request(request, None, 302, "", {}, "http://host/body.csv")


def test_more_than_the_published_size_is_not_taken(server: Server) -> None:
    server.body = BODY + b"!"
    with pytest.raises(DownloadError, match="download-longer-than-known"):
        fetch(entry(server.url))
    # Nor where it is not said, and much more would come.
    server.body, server.sends_length = BODY * 64, False
    with pytest.raises(DownloadError, match="download-longer-than-known"):
        fetch(entry(server.url))
    assert server.sent < len(BODY) * 32
    assert list(entry(server.url).downloaded_path.parent.iterdir()) == []


def test_a_damaged_note_of_the_version_begins_the_download_anew(server: Server) -> None:
    server.cut_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(entry(server.url))
    part = entry(server.url).downloaded_path.with_name("body.csv.part.validator")
    part.write_bytes(b"\0\xff\n")
    assert fetch(entry(server.url)).read_bytes() == BODY
    assert server.requested[-1] is None
