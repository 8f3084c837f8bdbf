"""Processes that start at once, forked from one that has imported everything and converted the model.

Otherwise a replay of many interruptions would spend its time importing torch, twice each time. Orders come
over a local socket, with the descriptors of the new process's standard streams.
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


class Order(msgspec.Struct, frozen=True):
    """An order to fork a process: `laminabench` with arguments, a fork server, or a model to convert."""

    arguments: list[str] = []
    folder: str = ""
    model: bytes = b""


class Process:
    """A forked `laminabench`, which sends its exit status itself."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit status, or -SIGKILL if it sent none; None if it has not ended in time."""
        self._connection.settimeout(max(timeout_s, 1e-3))
        try:
            status = self._connection.recv(16)
        except TimeoutError:
            return None
        self._connection.close()
        return int(status) if status else -signal.SIGKILL

    def close(self) -> None:
        """Kill it if it has not ended."""
        if self._connection.fileno() >= 0:
            self.kill(signal.SIGKILL)
            self._connection.close()


class Warm:
    """The process that others are forked from."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._address = folder / "warm"
        command = [sys.executable, "-m", __name__, str(self._address)]
        ready, ready_fd = os.pipe()
        self._process = subprocess.Popen(
            [*command, str(ready_fd)],
            pass_fds=[ready_fd],
            env=child_environment(environment),
        )
        os.close(ready_fd)
        with open(ready, "rb") as file:  # noqa: PTH123 - a descriptor
            if not file.read(1):
                raise RuntimeError("the process that others are forked from has not started")

    def start(self, arguments: Sequence[str], folder: Path, errors: IO[bytes], out: IO[bytes]) -> Process:
        """Start `laminabench ARGUMENTS` in a folder, in a session of its own."""
        with open(os.devnull) as nothing:  # noqa: PTH123 - as subprocess has it
            standard = [nothing.fileno(), out.fileno(), errors.fileno()]
            connection = _send_order(self._address, Order(list(arguments), str(folder)), standard)
        connection.settimeout(_BEGUN_S)
        return Process(connection, int(connection.recv(16)))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _send_order(address: Path, what: Order, descriptors: Sequence[int]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.fspath(address))
    socket.send_fds(connection, [msgspec.msgpack.encode(what)], descriptors)
    return connection


def _serve(address: str, ready_fd: int) -> None:
    """Import, and fork for every order, until it is killed."""
    import torch

    from lamina.cluster import fork_server, messages
    from laminabench.systems.live.lamina import loop, prepared, setup  # noqa: F401
    from laminabench.workflows import replay  # noqa: F401

    _command()
    fork_server.load()
    torch.set_num_threads(1)
    server = fork_server.ForkServer()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forked processes are not waited for
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(ready_fd, b"!")
        os.close(ready_fd)
        while True:
            connection, _ = listening.accept()
            body, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
            order = msgspec.msgpack.decode(body, type=Order)
            if order.model:
                start = messages.decode(order.model, "a fork server")
                assert isinstance(start, messages.Start)
                server._models.weights(start.model)
            elif os.fork() == 0:
                listening.close()
                _become(server, connection, order, descriptors, address)
            for number in descriptors:
                os.close(number)
            connection.close()


def _become(
    server: ForkServer, connection: socket.socket, order: Order, descriptors: list[int], address: str
) -> NoReturn:
    """Run the child as if its program had been started, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        random.seed()
        if order.arguments:
            connection.send(str(os.getpid()).encode())
            status = _laminabench(order, address)
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
    """Return the entry point that is installed as `laminabench`."""
    (entry,) = entry_points(group="console_scripts", name="laminabench")
    return cast("Callable[[list[str]], None]", entry.load())


def _laminabench(order: Order, address: str) -> int:
    from lamina.cluster.machine import Machine

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order.folder)
    Machine.program = ("-m", __spec__.name, address)
    try:
        _command()(order.arguments)
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 1
    return 0


def _fork_server(server: ForkServer, address: str) -> None:
    """Serve as a fork server, and report models that were not there yet."""
    from lamina.cluster import fork_server, messages

    answer = server.answer

    def answering(message: messages.AnyMessage) -> messages.AnyMessage:
        if isinstance(message, messages.Start) and not server._models.has_weights(message.model):
            known = messages.encode(messages.Start(message.model, []))
            _send_order(Path(address), Order(model=known), []).close()
        return answer(message)

    server.answer = answering  # type: ignore[method-assign]
    fork_server.serve(server)


def _stand_in(address: str) -> None:
    """Run in place of an engine's fork server: another process answers through its descriptors.

    That process ends when the engine closes its end of them, and so does this one.
    """
    connection = _send_order(Path(address), Order(), [0, 1, 2])
    connection.recv(1)


def main() -> None:
    """Run `python -m experiments.prefork ADDRESS [DESCRIPTOR]`; with DESCRIPTOR, to fork others."""
    address, *ready_fd = sys.argv[1:]
    if ready_fd:
        _serve(address, int(ready_fd[0]))
    else:
        _stand_in(address)


if __name__ == "__main__":
    main()
