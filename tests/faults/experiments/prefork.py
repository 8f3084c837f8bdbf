"""Processes that begin at once: forked from one that has imported all and converted the model.

A replay of many interruptions would else spend its time importing torch, twice each time. What is asked for
comes over a local socket, with the descriptors that the new process has as its standard ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

import msgspec

from experiments import child_environment

if TYPE_CHECKING:
    from lamina.cluster.fork_server import ForkServer

_BEGUN_S = 120.0
_MOST_BYTES = 1 << 16


class Asked(msgspec.Struct, frozen=True):
    """Of a `laminabench` its command line; of an engine's fork server nothing, or the model it loaded."""

    arguments: list[str] = []
    folder: str = ""
    model: bytes = b""


class Process:
    """A `laminabench` that was forked. Its end is seen, and its status told by itself, or 0 below it."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, or -SIGKILL where it could not tell; None where it has not ended in time."""
        self._connection.settimeout(max(timeout_s, 1e-3))
        try:
            told = self._connection.recv(16)
        except TimeoutError:
            return None
        self._connection.close()
        return int(told) if told else -signal.SIGKILL

    def close(self) -> None:
        """If it has not ended, it does now."""
        if self._connection.fileno() >= 0:
            self.kill(signal.SIGKILL)
            self._connection.close()


class Warm:
    """The process that others are forked from."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._address = folder / "warm"
        command = [sys.executable, "-m", __name__, str(self._address)]
        ready, told = os.pipe()
        self._process = subprocess.Popen(
            [*command, str(told)],
            pass_fds=[told],
            env=child_environment(environment),
        )
        os.close(told)
        with open(ready, "rb") as file:  # noqa: PTH123 - a descriptor
            if not file.read(1):
                raise RuntimeError("what processes are forked from has not begun")

    def start(self, arguments: Sequence[str], folder: Path, errors: IO[bytes], out: IO[bytes]) -> Process:
        """`laminabench ARGUMENTS` in a folder, in a session of its own."""
        with open(os.devnull) as nothing:  # noqa: PTH123 - as subprocess has it
            standard = [nothing.fileno(), out.fileno(), errors.fileno()]
            connection = _asked(self._address, Asked(list(arguments), str(folder)), standard)
        connection.settimeout(_BEGUN_S)
        return Process(connection, int(connection.recv(16)))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _asked(address: Path, what: Asked, descriptors: Sequence[int]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.fspath(address))
    socket.send_fds(connection, [msgspec.msgpack.encode(what)], descriptors)
    return connection


def _serve(address: str, told: int) -> None:
    """Import, and fork for whoever asks, until it is killed."""
    import torch

    from lamina.cluster import fork_server, messages
    from laminabench.systems.live.lamina import loop, prepared, setup  # noqa: F401
    from laminabench.workflows import replay  # noqa: F401

    _command()
    fork_server.load()
    torch.set_num_threads(1)
    server = fork_server.ForkServer()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are forked
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(told, b"!")
        os.close(told)
        while True:
            connection, _ = listening.accept()
            body, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
            asked = msgspec.msgpack.decode(body, type=Asked)
            if asked.model:
                start = messages.decode(asked.model, "a fork server")
                assert isinstance(start, messages.Start)
                server._models.weights(start.model)
            elif os.fork() == 0:
                listening.close()
                _become(server, connection, asked, descriptors, address)
            for number in descriptors:
                os.close(number)
            connection.close()


def _become(
    server: ForkServer, connection: socket.socket, asked: Asked, descriptors: list[int], address: str
) -> NoReturn:
    """The child's whole life, as if its program had been started."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        random.seed()
        if asked.arguments:
            connection.send(str(os.getpid()).encode())
            status = _laminabench(asked, address)
            connection.send(str(status).encode())
        else:
            _fork_server(server, address)
            status = 0
    except KeyboardInterrupt:  # before the command line had begun
        with contextlib.suppress(OSError):
            connection.send(b"130")
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(status)


def _command() -> Callable[[list[str]], None]:
    """What is installed as `laminabench`."""
    (found,) = entry_points(group="console_scripts", name="laminabench")
    return cast("Callable[[list[str]], None]", found.load())


def _laminabench(asked: Asked, address: str) -> int:
    from lamina.cluster.machine import Machine

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked.folder)
    Machine.program = ("-m", __spec__.name, address)
    try:
        _command()(asked.arguments)
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 1
    return 0


def _fork_server(server: ForkServer, address: str) -> None:
    """Answers as that does, and tells of a model that was not there yet."""
    from lamina.cluster import fork_server, messages

    answer = server.answer

    def answering(message: messages.AnyMessage) -> messages.AnyMessage:
        if isinstance(message, messages.Start) and not server._models.has_weights(message.model):
            known = messages.encode(messages.Start(message.model, []))
            _asked(Path(address), Asked(model=known), []).close()
        return answer(message)

    server.answer = answering  # type: ignore[method-assign]
    fork_server.serve(server)


def _stand_in(address: str) -> None:
    """What an engine starts in place of its fork server: another process answers through its descriptors.

    That one ends when the engine's end of them is closed, and this one with it.
    """
    connection = _asked(Path(address), Asked(), [0, 1, 2])
    connection.recv(1)


def main() -> None:
    """`python -m experiments.prefork ADDRESS [DESCRIPTOR]`: with that, others are forked from it."""
    address, *told = sys.argv[1:]
    if told:
        _serve(address, int(told[0]))
    else:
        _stand_in(address)


if __name__ == "__main__":
    main()
