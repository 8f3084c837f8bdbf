"""A folder of Runs to look through, and an explorer over one as a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laminabench.requests.replay import ReplayRequest
from laminabench.workflows.replay.run import run as replay

TRACE = "profile:azure-conv"


class Explorer:
    """One that runs, and a browser of few words."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any]) -> None:
        self.process, self.url = process, ready["url"]
        split = urllib.parse.urlsplit(self.url)
        self.host, self.port, self.link = split.hostname or "", split.port or 0, f"{split.path}?{split.query}"
        self.origin = f"http://{split.netloc}"
        self.cookie = ""

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        if self.cookie:
            headers.setdefault("Cookie", self.cookie)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            with connection.getresponse() as answer:
                return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}

    def enter(self) -> None:
        """By the link, which is good for one browser."""
        _, _, headers = self.get(self.link)
        self.cookie = headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="session")
def exploring() -> Callable[..., contextlib.AbstractContextManager[Explorer]]:
    @contextlib.contextmanager
    def started(folder: Path, *more: str, cwd: Path | None = None) -> Iterator[Explorer]:
        command = [sys.executable, "-m", "laminabench", "view", str(folder), "--json", "--no-open", *more]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
        ) as process:
            try:
                assert process.stdout
                line = process.stdout.readline()
                assert line, process.stderr and process.stderr.read()
                yield Explorer(process, json.loads(line))
            finally:
                process.kill()

    return started


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Run of lamina and one of vllm; read-only for tests."""
    folder: Path = tmp_path_factory.mktemp("two")
    for system in ("lamina", "vllm"):
        request = ReplayRequest(
            trace=TRACE,
            num_requests=200,
            system=system,
            offline=True,
            directory=str(folder / "runs" / system),
        )
        replay(request)
        # Older than whatever comes to be, and always the same.
        os.utime(folder / "runs" / system / "run.json", (1_790_000_000, 1_790_000_000))
    return folder


@pytest.fixture
def folder(two_runs: Path, tmp_path: Path) -> Path:
    """The same, to be written into."""
    return Path(shutil.copytree(two_runs, tmp_path / "folder"))
