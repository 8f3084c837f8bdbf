"""The far machine, the cable to it, and who cuts that."""

from __future__ import annotations

import json
import os
import runpy
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

AGENT = (
    os.environ.get("LAMINABENCH_RDMA_AGENT", ""),
    runpy.run_path(str(Path(__file__).with_name("agent.py")))["PORT"],
)
START_S = 120.0  # of the far machine
HOST = Path("/dev/ports/host")


class Far:
    """A process in the far machine."""

    def __init__(self, argv: list[str]) -> None:
        self._connection = socket.create_connection(AGENT, timeout=60)
        self._lines = self._connection.makefile("rb")
        self._status: int | None = None
        self._send(argv=argv)

    def line(self) -> str:
        """What it says next, on stdout or stderr."""
        message = next(self.lines(), None)
        assert message is not None, f"it has ended with status {self._status}"
        return message

    def wait(self) -> tuple[int, list[str]]:
        """Its exit status (minus the signal that ended it), and what it had still to say."""
        lines = list(self.lines())
        assert self._status is not None
        return self._status, lines

    def lines(self) -> Iterator[str]:
        """What it says until it ends."""
        while self._status is None:
            message = self._next()
            if "line" in message:
                yield message["line"]
            else:
                self._status = int(message["status"])

    def write(self, text: str) -> None:
        """A line for its stdin."""
        self._send(write=text)

    def end_input(self) -> None:
        self._send(end=True)

    def signal(self, number: int) -> None:
        """To it and to all that it has started."""
        self._send(signal=number)

    def close(self) -> None:
        """It is killed if it goes on."""
        self._lines.close()
        self._connection.close()

    def _next(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "the far machine is gone"
        message: dict[str, Any] = json.loads(line)
        return message

    def _send(self, **message: object) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


class Cable:
    """Between the two RDMA devices; what tests say to the far machine goes another way."""

    def cut(self, side: str = "there") -> None:
        """`there`: what is sent is lost on the way. `here`: our own link goes down as well."""
        self._order(f"cut {side}")

    def join(self) -> None:
        self._order("join")

    def _order(self, order: str) -> None:
        with HOST.open("r+b", buffering=0) as host:
            host.write(order.encode() + b"\n")
            answer = host.read(100)
        assert answer == b"done\n", answer


@pytest.fixture(scope="session")
def far() -> str:
    """The address of the far machine's device."""
    return os.environ["LAMINABENCH_RDMA_FAR"]


@pytest.fixture(scope="session")
def agent() -> None:
    """Waits until the far machine has started."""
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(AGENT, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@pytest.fixture
def run_there(agent: None) -> Iterator[Callable[..., Far]]:  # noqa: ARG001 - it has to be up
    """Start a command in the far machine; killed at the end."""
    with ExitStack() as started:

        def start(*argv: str) -> Far:
            made = Far(list(argv))
            started.callback(made.close)
            return made

        yield start


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Whole before and after."""
    made = Cable()
    yield made
    made.join()
