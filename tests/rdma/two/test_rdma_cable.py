"""The cable between the two machines, and what soft-RoCE makes of its being cut, by programs of others."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

Server = Callable[..., subprocess.Popen[str]]

PORT = 18515  # of a machine that runs nothing else
RPING_PORT = 7174
LIMIT_S = 60
PINGS = 5
TRIES, WAIT_S = 10, 100.0  # of writers, for each start of a server; of all of them
FEW = ("ib_write_lat", "-d", "rxe0", "-p", str(PORT), "-n", "100")
# With a row for each second, at once: on a pipe it would keep them. The count of retries, which the program
# takes with rdma_cm only, is 7 otherwise, and soft-RoCE takes that for "without end".
STREAM = (
    *("stdbuf", "-oL", "ib_write_bw", "-d", "rxe0", "-p", str(PORT), "-R", "--retry_count=3"),
    *("-s", "4096", "--run_infinitely", "-D", "1"),
)
RETRIES_EXCEEDED = "Failed status 12"  # IBV_WC_RETRY_EXC_ERR


def test_rping_reaches_the_far_machine(near: str, run_there: Callable[..., Any]) -> None:
    # It listens where no /proc/net/tcp shows it: the far one tries until it is answered. Pings are counted
    # since rping's event thread may end either process with status 255 after its last ping.
    with subprocess.Popen(["rping", "-s", "-a", near, "-p", str(RPING_PORT), "-C", str(PINGS)]) as server:
        client = f"rping -c -a {near} -p {RPING_PORT} -C {PINGS} -v | tee /dev/fd/2"
        tries = f"until [ $({client} | grep -c 'ping data: rdma-ping') = {PINGS} ]; do sleep 0.2; done"
        status, message = run_there("timeout", str(LIMIT_S), "sh", "-c", tries).wait()
        assert status == 0, message
        server.wait(LIMIT_S)


def test_perftest_writes_to_the_far_machine(write_here: Callable[[], None]) -> None:
    write_here()


@pytest.mark.parametrize("side", ["there", "here"])
def test_a_cut_in_mid_stream_is_an_error_and_a_joined_cable_works(
    side: str, stream: Any, cable: Any, write_here: Callable[[], None]
) -> None:
    cable.cut(side)
    status, message = stream.wait()
    assert status > 0, message
    assert any(RETRIES_EXCEEDED in line for line in message), message
    cable.join()
    write_here()


@pytest.fixture
def stream(near: str, run_there: Callable[..., Any]) -> Iterator[Any]:
    """A program in the far machine that writes into this one's memory without end, in mid-stream."""
    with ExitStack() as servers:
        yield next(writer for writer in tries(near, run_there, servers) if writes(writer))


def tries(near: str, run_there: Callable[..., Any], servers: ExitStack) -> Iterator[Any]:
    """Until one is heard: nothing here shows that rdma_cm listens.

    A server takes one writer. One that came too early may have ended it, or left it waiting for more.
    """
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        server = servers.enter_context(subprocess.Popen(STREAM, stdout=subprocess.DEVNULL))
        servers.callback(server.kill)
        for _ in range(TRIES):
            if server.poll() is None:
                yield run_there(*STREAM, near)
        server.kill()
        server.wait()
    raise AssertionError(f"no writer was heard in {WAIT_S:.0f} s")


def writes(writer: Any) -> bool:
    """Whether it gets as far as its first row."""
    return any(line.split()[:1] == ["4096"] for line in writer.lines())


@pytest.fixture
def write_here(near: str, serve: Server, run_there: Callable[..., Any]) -> Callable[[], None]:
    """The far machine writes into this one's memory."""

    def write() -> None:
        server = serve(PORT, *FEW)
        status, message = run_there(*FEW, near).wait()
        assert status == 0, message
        assert server.wait(LIMIT_S) == 0
        assert message[-2].split()[:2] == ["2", "100"], message

    return write
