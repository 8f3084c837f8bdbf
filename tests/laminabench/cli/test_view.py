"""`laminabench view` before there is a page."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_what_cannot_be_shown(refused: Any) -> None:
    refused("[view-no-folder]", "view", "nowhere", "-v")
    Path("file").write_text("")
    refused("[view-no-folder]", "view", "file", "-v")
    refused("[file-not-readable]", "view", "x" * 300, "-v")
    refused("--port", "view", "--port", "70000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("[view-unbound]", "view", "--port", str(taken.getsockname()[1]), "-v")


@pytest.mark.parametrize("package", ["plotly", "fastapi", "httptools"])
def test_without_the_extra_it_says_how_to_get_it(package: str, tmp_path: Path) -> None:
    """In a process of its own: modules that others have loaded are not to be taken from them."""
    without = f"import sys; sys.modules[{package!r}] = None"
    code = f"{without}; from laminabench.cli.main import run; run(['view', '.'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "pip install 'laminabench[view]'" in done.stderr
