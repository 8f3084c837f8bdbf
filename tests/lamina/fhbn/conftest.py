"""Two ends of a link, and other processes."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lamina import fhbn
from lamina._softnic import SoftNic, SoftWriter
from lamina.fhbn import softnic
from lamina.fhbn.control import Control, Deadline, Place
from lamina.fhbn.engines import engine
from lamina.fhbn.readiness import readable

CHILD = Path(__file__).with_name("child.py")
# What goes over a NIC, `softnic+reorders` being one with that habit; in `make rdma-test` what needs one.
NICS = ("softnic", "softnic+drops_blueflame", "softnic+reorders", "verbs")
# Left to the long suite: what a NIC does in which order is nothing that a channel promises.
HABITS = [pytest.param(kind, marks=pytest.mark.long) for kind in NICS[1:3]]
IN_A_VM = NICS[-1:] if os.environ.get("LAMINABENCH_RDMA_VM") else ()
LIMIT_S = 10.0  # of what is over in a moment
Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]


@pytest.fixture
def secret() -> bytes:
    return fhbn.new_secret()


@pytest.fixture
def listener(secret: bytes) -> Iterator[fhbn.Listener]:
    with fhbn.Listener("model worker 0", secret) as made:
        yield made


@pytest.fixture
def both() -> Iterator[Both]:
    """Two calls that need each other: the results of both, or the first one's error."""
    with ThreadPoolExecutor(1) as pool:

        def run(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
            other = pool.submit(second)
            try:
                own = first()
            except BaseException:
                other.exception(timeout=60)
                raise
            return own, other.result(timeout=60)

        yield run


@pytest.fixture
def controls(both: Both, secret: bytes) -> Iterator[Callable[[str], tuple[Control, Control]]]:
    """Make a control connection to an address of this machine: the connector's end, and the listener's."""
    with ExitStack() as opened:

        def make(host: str) -> tuple[Control, Control]:
            with socket.create_server((host, 0)) as server:
                first = socket.create_connection(server.getsockname())
                second, _ = server.accept()
            made: tuple[Control, Control] = both(
                lambda: Control(first, secret, listening=False, deadline=Deadline(30)),
                lambda: Control(second, secret, listening=True, deadline=Deadline(30)),
            )
            for control in made:
                opened.callback(control.close)
            return made

        yield make


@pytest.fixture
def pair(controls: Callable[[str], tuple[Control, Control]]) -> tuple[Control, Control]:
    """A control connection, as most are."""
    return controls("127.0.0.1")


@pytest.fixture
def meet(listener: fhbn.Listener, secret: bytes, both: Both) -> Callable[..., tuple[fhbn.Link, fhbn.Link]]:
    """Connect to the listener: its end of the link, and that of the process of this name."""

    def call(name: str = "attention worker 0", timeout_s: float = 30) -> tuple[fhbn.Link, fhbn.Link]:
        met: tuple[fhbn.Link, fhbn.Link] = both(
            lambda: listener.accept(timeout_s),
            lambda: fhbn.connect(listener.address, name=name, secret=secret, timeout_s=timeout_s),
        )
        return met

    return call


@pytest.fixture
def links(meet: Callable[..., tuple[fhbn.Link, fhbn.Link]]) -> Iterator[tuple[fhbn.Link, fhbn.Link]]:
    """Two ends of one link, both in this process: model worker 0's and attention worker 0's."""
    ours, theirs = meet()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Skip the test where an engine cannot be used, and give this process's softnic its habit."""

    def call(kind: str) -> str:
        name, _, habit = kind.partition("+")
        here = Place.here()
        why = engine(name).missing(here, here)
        if why is not None:
            pytest.skip(f"{name} cannot be used: {why}")
        if habit:
            made = SoftNic(**{habit: True}, seed=5)
            monkeypatch.setattr(softnic, "nic", lambda: made)
        return kind

    return call


@pytest.fixture(params=IN_A_VM or ("shm", "gloo", *NICS[:1], *HABITS, *NICS[-1:]))
def kind(request: pytest.FixtureRequest, prepared: Callable[[str], str]) -> str:
    """An engine of channels, and the habit of this process's softnic, as child.py takes them."""
    return prepared(request.param)


@pytest.fixture(params=IN_A_VM or NICS)
def nic(request: pytest.FixtureRequest, prepared: Callable[[str], str]) -> str:
    """The same of those that go over a NIC."""
    return prepared(request.param)


@pytest.fixture
def network(nic: str) -> str:
    """The engine's name."""
    return nic.partition("+")[0]


@pytest.fixture
def survives(network: str) -> None:
    """For what only engines promise that survive a timeout and a signal."""
    if network == "gloo":
        pytest.skip("a call over gloo that timed out or was interrupted has broken its channel")


@pytest.fixture
def module(network: str) -> ModuleType:
    """The engine's."""
    return importlib.import_module(f"lamina.fhbn.{network}")


@pytest.fixture
def ends(links: tuple[fhbn.Link, fhbn.Link], both: Both) -> Callable[..., tuple[Any, Any]]:
    """Open a channel between the two ends of a link: its sender and its receiver."""

    def make(
        network: str = "auto", message_bytes: int = 4096, slots: int = 4, first_seqno: int = 0
    ) -> tuple[Any, Any]:
        return both(
            lambda: links[0].sender("data", network=network),
            lambda: links[1].receiver(
                "data", message_bytes=message_bytes, slots=slots, first_seqno=first_seqno, network=network
            ),
        )

    return make


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> dict[str, SoftWriter]:
    """What writes for a softnic's sender and for its receiver, once there are any."""
    made: dict[str, SoftWriter] = {}

    def noted(*requested: Any, mirror: bool) -> SoftWriter:
        writer = SoftWriter(*requested, mirror=mirror)
        made["sender" if mirror else "receiver"] = writer
        return writer

    monkeypatch.setattr(softnic, "SoftWriter", noted)
    return made


@pytest.fixture
def spawn(listener: fhbn.Listener, secret: bytes) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start child.py in a role; killed and reaped at the end."""
    with ExitStack() as children:

        def start(role: str, network: str, *arguments: str | Path) -> subprocess.Popen[str]:
            child = subprocess.Popen(
                [sys.executable, CHILD, role, listener.address, network, *arguments],
                stdin=subprocess.PIPE,
                text=True,
            )
            children.callback(end, child)
            assert child.stdin is not None
            child.stdin.write(secret.hex() + "\n")
            child.stdin.close()
            return child

        yield start


class Forked:
    """A process that another one has forked, as far as tests need it."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Until it has ended."""
        assert readable(self._handle, 60), "it goes on"

    def close(self) -> None:
        os.close(self._handle)


@pytest.fixture
def fork(listener: fhbn.Listener, secret: bytes) -> Iterator[Callable[..., Forked]]:
    """As `spawn`, for many: they are forked from one process, killed and ended when it is over."""
    with (
        subprocess.Popen(
            [sys.executable, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent,
        ExitStack() as children,
    ):
        assert parent.stdin is not None
        assert parent.stdout is not None
        children.callback(parent.stdin.close)

        def start(role: str, network: str, *arguments: str | Path) -> Forked:
            assert parent.stdin is not None
            assert parent.stdout is not None
            messages = [secret.hex(), role, listener.address, network, *map(str, arguments)]
            parent.stdin.write(json.dumps(messages) + "\n")
            parent.stdin.flush()
            child = Forked(int(parent.stdout.readline()))
            for last in (child.close, child.wait):
                children.callback(last)
            children.callback(kill, child)
            return child

        yield start


def kill(child: Forked) -> None:
    with suppress(ProcessLookupError):
        child.kill()


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


@pytest.fixture(scope="session")
def parts_of() -> Callable[[int], list[bytes]]:
    """What the child's message of a seqno says."""
    results: Callable[[int], list[bytes]] = runpy.run_path(str(CHILD))["parts_of"]
    return results


@pytest.fixture(scope="session")
def take(parts_of: Callable[[int], list[bytes]]) -> Callable[..., None]:
    """Receive one message, which must be the next one, and whole."""

    def call(receiver: fhbn.Receiver, timeout_s: float | None = None) -> None:
        expected = receiver.next_seqno
        with receiver.recv(timeout_s) as message:
            assert message.seqno == expected
            assert [bytes(part) for part in message] == parts_of(expected)

    return call


@pytest.fixture(scope="session")
def send_next(parts_of: Callable[[int], list[bytes]]) -> Callable[..., None]:
    """Send the next message, as the child would."""

    def call(sender: fhbn.Sender, timeout_s: float | None = None) -> None:
        sender.send(*parts_of(sender.next_seqno), timeout_s=timeout_s)

    return call


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails the test if it leaves shared memory, open files or threads."""
    gc.collect()  # what earlier tests have left to it
    before = traces()
    yield
    gc.collect()
    # A softnic's thread may be the last to let go of a ring, a moment later.
    until = time.monotonic() + LIMIT_S
    while (more := traces() - before) and time.monotonic() < until:
        time.sleep(0.005)
    assert not more, more


def traces() -> Counter[str]:
    files = [f"/dev/shm/{path.name}" for path in Path("/dev/shm").glob("*lamina*")]
    return Counter(files) + Counter(
        mappings=Path("/proc/self/maps").read_text().count("lamina-fhbn"),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=threading.active_count(),
    )
