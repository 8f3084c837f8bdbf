"""What clients that mean a server no good need: a server to themselves, and how much memory it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def resident_bytes() -> Callable[[], int]:
    """How much memory this process has, which the server is a thread of."""
    status = Path("/proc/self/status")
    return lambda: int(status.read_text().split("VmRSS:")[1].split()[0]) * 1024


@pytest.fixture(scope="module")
def target(serve: Any, tokenizer: Any) -> Iterator[Any]:
    """One server for all tests of a file; afterwards nothing may be left of anybody."""
    with serve(tokenizer, engine={"kv_tokens": 4096, "max_sequences": 32}, body_bytes=1_000_000) as server:
        yield server
        server.require_sound()


@pytest.fixture(scope="module")
def hasty(serve: Any, tokenizer: Any) -> Iterator[Any]:
    """One that has little patience with its clients."""
    with serve(tokenizer, client_s=3.0) as server:
        yield server
        server.require_sound()
