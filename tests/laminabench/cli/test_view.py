"""`laminabench view` before there is a page."""

from __future__ import annotations

import builtins
import socket
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


@pytest.mark.parametrize("package", ["plotly", "fastapi", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(
    refused: Any, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("laminabench.view")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    refused("pip install 'laminabench[view]'", "view", ".")
