"""Two signals end it, whatever hangs: a stopped fork server that is missed, with all that came from it."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.processes import alive, eventually, fork_servers, workers
from experiments.serving import serving
from experiments.stream_client import SeededRequest

# Far more than it takes, far less than what hangs is waited for.
ENDS_S = 10.0
STARTS_S = 120.0


@contextlib.contextmanager
def hanging(front_end: int) -> Iterator[list[int]]:
    """Stop the fork server and kill a worker, which then cannot be replaced."""
    (fork_server,), forked = fork_servers(front_end), workers(front_end)
    os.kill(fork_server, signal.SIGSTOP)
    os.kill(forked[0], signal.SIGKILL)
    yield [fork_server, *forked]
    with contextlib.suppress(ProcessLookupError):
        os.kill(fork_server, signal.SIGKILL)


def lost(pids: list[int]) -> bool:
    return eventually(lambda: not any(map(alive, pids)), ENDS_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_server(number: signal.Signals) -> None:
    with serving("--kv-tokens", "20000") as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=STARTS_S)
        looking = http.client.HTTPConnection("127.0.0.1", running.port, timeout=STARTS_S)

        def drains() -> bool:
            looking.request("GET", "/health")
            return b"draining" in looking.getresponse().read()

        with contextlib.closing(connection), contextlib.closing(looking), hanging(running.pid) as pids:
            connection.sock = None
            connection.connect()
            connection.sock.sendall(SeededRequest((3, 4, 5), 2000, 1).head_and_body)
            running.process.send_signal(number)
            assert eventually(drains, ENDS_S)
            running.process.send_signal(number)
            assert running.process.wait(ENDS_S) == 128 + number
            assert lost(pids)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_live_replay(number: signal.Signals, tmp_path: Path) -> None:
    with replaying(tmp_path) as process, hanging(process.pid) as pids:
        process.send_signal(number)
        # Two that have not been heard are one to the kernel: more until they have.
        until_s = time.monotonic() + ENDS_S
        while process.poll() is None and time.monotonic() < until_s:
            process.send_signal(number)
            time.sleep(0.05)
        assert process.poll() == 128 + number
        assert lost(pids)


def test_a_front_end_that_is_killed(tmp_path: Path) -> None:
    """The kernel ends what is stopped."""
    with replaying(tmp_path) as process, hanging(process.pid) as pids:
        process.kill()
        process.wait(ENDS_S)
        assert lost(pids)


@contextlib.contextmanager
def replaying(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One that has its workers."""
    command = "replay --trace profile:azure-conv --backend live --model llama-tiny --prefill model --no-out"
    process = subprocess.Popen(
        [sys.executable, "-m", "laminabench", *command.split(), "--scale-lengths", "0.05", "--oversubscribe"],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # in a container init, which adopts what it leaves, may be of this one's
    )
    try:
        there = lambda: len(workers(process.pid)) == 2 or process.poll() is not None  # noqa: E731
        assert eventually(there, STARTS_S)
        yield process
    finally:
        process.kill()
        process.wait(ENDS_S)
