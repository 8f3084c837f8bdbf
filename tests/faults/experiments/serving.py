"""`laminabench serve` as a separate process for experiments: started, inspected, ended without a trace."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from experiments.processes import alive, eventually, facts, fork_servers, shared_memory, workers

START_S = 300.0
END_S = 60.0
# Libraries may cache a little; a leak for each request is far larger.
MORE_DESCRIPTORS = 0
_CLEAR_S = 10.0


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    errors: IO[str]
    was_shared: set[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def metrics(self) -> dict[str, float]:
        return metrics_of(self.port)

    def takes(self) -> dict[str, float]:
        """Return the resources of front end, fork server and workers."""
        parts = {"front_end": [self.pid], "workers": [*fork_servers(self.pid), *workers(self.pid)]}
        return {
            f"{part}_{name}": value for part, pids in parts.items() for name, value in facts(pids).items()
        }

    def at_rest(self) -> str | None:
        """Return what is left of requests after all have ended; None if nothing is."""
        names = ("lamina_requests_running", "lamina_requests_waiting", "lamina_kv_tokens_used")
        left: dict[str, float] = {}

        if self.process.poll() is not None:
            return f"the server has ended: {self.error_text()}"

        def nothing() -> bool:
            metrics = self.metrics()
            left.clear()
            left.update({name: metrics[name] for name in names if metrics[name]})
            return not left

        return None if eventually(nothing, _CLEAR_S) else str(left)

    def end(self) -> str | None:
        """Terminate it; return what it left behind or printed, if anything."""
        began = [self.pid, *fork_servers(self.pid), *workers(self.pid)]
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return f"it did not end in {END_S:g} s"
        if not eventually(lambda: not any(map(alive, began[1:])), _CLEAR_S):
            return f"processes outlive it: {[pid for pid in began if alive(pid)]}"
        if left := shared_memory() - self.was_shared:
            return f"/dev/shm: {', '.join(sorted(left))}"
        message = self.error_text()
        return f"it ended with {status}: {message}" if status or message else None

    def error_text(self) -> str:
        """Return the end of its standard error."""
        self.errors.seek(0)
        return self.errors.read().strip()[-250:]


def metrics_of(port: int) -> dict[str, float]:
    """Return a server's current metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_S)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    lines = (line.rpartition(" ") for line in page.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines}


@contextlib.contextmanager
def serving(*more: str) -> Iterator[Server]:
    """Run a server of the smallest model; it is killed if it still runs at the end of the block."""
    was = shared_memory()
    # In float32 tokens that are computed again are the same.
    command = ["serve", "--model", "llama-tiny", "--dtype", "fp32", "--port", "0", "--json", "-q"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "laminabench", *command, "--oversubscribe", *more],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield Server(process, _port(process, errors), errors, was)
        finally:
            process.kill()


def _port(process: subprocess.Popen[str], errors: IO[str]) -> int:
    assert process.stdout
    line = process.stdout.readline()
    if not line.startswith('{"url"'):
        process.wait(END_S)
        errors.seek(0)
        raise RuntimeError(f"the server did not start: {errors.read().strip()[-300:]}")
    return int(json.loads(line)["url"].rpartition(":")[2])


def growth(before: dict[str, float], after: dict[str, float], names: Sequence[str]) -> str | None:
    """Return a description of what has grown; None if nothing has."""
    more = [
        f"{name} {after[name]:g}, before {before[name]:g}" for name in names if after[name] > before[name]
    ]
    return "; ".join(more) or None
