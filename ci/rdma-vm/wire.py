"""The cable between two machines, cut and joined when a test in one of them asks for it.

A test writes `cut here`, `cut there` or `join` to /dev/ports/host and reads `done` when that is so. Cut here,
its own machine sees the link go down. Cut there, it sees nothing: what it sends is lost on the way, as behind
a broken switch.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

CABLE = "nic0"  # the other one, nic1, carries what tests say to each other
ENDS = ("here", "there")


class RefusedError(Exception):
    """A command that QEMU refused."""


class Monitor:
    """Orders to a running QEMU (its QMP)."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # its greeting
        self.order("qmp_capabilities")

    def order(self, command: str, **arguments: Any) -> None:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self._lines:
            reply = json.loads(line)
            if "error" in reply:
                raise RefusedError(f"QEMU refused {command}: {reply['error']['desc']}")
            if "return" in reply:  # all others are events
                return
        raise ConnectionError(f"QEMU ended before it had done {command}")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Wire:
    """A listener to one machine, in a thread, for as long as both live."""

    def __init__(self, near: Path, far: Path) -> None:
        self._monitors = {"here": Monitor(near / "qmp"), "there": Monitor(far / "qmp")}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(near / "host"))
        self._thread = threading.Thread(target=self._obey, name="wire")
        self._thread.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for monitor in self._monitors.values():
            monitor.close()

    def _obey(self) -> None:
        with self._socket.makefile("rwb", buffering=0) as lines, suppress(OSError):
            for line in lines:
                try:
                    answer = self._do(line.decode(errors="replace").split())
                except RefusedError as error:
                    answer = str(error)
                lines.write(answer.encode() + b"\n")

    def _do(self, words: list[str]) -> str:
        match words:
            case ["cut", side] if side in ENDS:
                self._monitors[side].order("set_link", name=CABLE, up=False)
            case ["join"]:
                for monitor in self._monitors.values():
                    monitor.order("set_link", name=CABLE, up=True)
            case _:
                return f"there is no such order: {' '.join(words)}"
        return "done"
