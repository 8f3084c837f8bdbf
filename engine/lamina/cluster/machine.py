"""The front end's handle of the fork server, the process that loads models and starts workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from lamina import host_memory
from lamina.child_environment import child_environment
from lamina.cluster import messages
from lamina.cluster.layout import Layout
from lamina.cluster.messages import ModelSource, WorkerConfig
from lamina.cluster.process_states import Life, runs
from lamina.fhbn.control import Deadline
from lamina.fhbn.readiness import readable
from lamina.pipeline.options import EngineError, ModelFacts

if TYPE_CHECKING:
    from lamina.cluster.ray.machine import RayMachine


A = TypeVar("A", bound=messages.AnyMessage)
# Where workers run: here, or in a Ray cluster. They have handles, numbers that mean something to it alone.
Workplace: TypeAlias = "Machine | RayMachine"

END_S = 5.0
# Loading a model takes as long as it takes; a process that works has used its processor or its disk since.
SILENT_S = 20.0
LOOK_S = 0.5
_TAIL_BYTES = 4096


class LostError(EngineError):
    """An error of workers that cannot go on: the only one that an engine recovers from by itself.

    With no `workers` none has died, but all must reconnect. With `outside` the cause was not their work, as
    far as is known, but something outside the engine.
    """

    def __init__(self, workers: Collection[int], code: str, why: str, *, outside: bool = False) -> None:
        super().__init__(code, why)
        self.workers, self.outside = frozenset(workers), outside


class WorkplaceLostError(EngineError):
    """An error of the process that workers are forked from: it and they have ended; the next start replaces
    it.
    """


class Replaced(NamedTuple):
    workers: frozenset[str]  # by name
    pools: frozenset[int]  # KV memories that were lost with them, wholly or in part


class Machine:
    """This machine, on which workers are started.

    Importing torch takes seconds and converting a model one: both are done once, in a process that workers
    are forked from, and weights are in memory once however many replicas there are. It ends with this object,
    and with this process however that ends; its workers with it. Should it be lost, another one takes its
    place on the next request.
    """

    host = "127.0.0.1"  # where front end and workers listen for each other
    program: tuple[str, ...] = ("-m", "lamina.cluster.fork_server")

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # A file without a name, for what a worker writes when it dies.
        self._errors: IO[bytes] | None = None
        self._request_lock = threading.Lock()
        self._finish: Callable[[], object] | None = None
        self._closed = False

    def cores(self, layout: Layout) -> list[int]:
        return layout.cores()

    def free_bytes(self) -> int:
        return host_memory.free_bytes()

    def free_on(self, devices: Collection[str]) -> dict[str, int]:
        """Return the free bytes; an EngineError if one of these GPUs is missing or unusable."""
        return self._request(messages.Measure(sorted(devices)), messages.Free).nbytes if devices else {}

    def convert(self, model: ModelSource) -> ModelFacts:
        return self._request(messages.Convert(model), ModelFacts)

    def start(self, model: ModelSource, configs: Sequence[WorkerConfig]) -> list[int]:
        return self._request(messages.Start(model, list(configs)), messages.Started).pids

    def kill(self, pids: Sequence[int]) -> None:
        if self._process is not None:
            with contextlib.suppress(EngineError):
                self._request(messages.Reap(list(pids), kill=True), messages.Ends)

    def ends(self, pids: Sequence[int]) -> dict[int, int]:
        """Return the exit status of those that have ended, as subprocess does: below 0 is a signal."""
        return self._request(messages.Reap(list(pids), kill=False), messages.Ends).statuses

    def runs(self, pid: int) -> bool:
        return runs(pid)

    def inject_fault(self, pid: int, how: str) -> None:
        """Inject a fault into a worker: "kill" it, or "stop" it, so that it hangs."""
        os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])

    def errors(self) -> str:
        """Return the end of what has been written to standard error."""
        if self._errors is None or self._errors.closed:
            return ""
        # Not by seek: the processes that write share the position.
        file = self._errors.fileno()
        size = os.fstat(file).st_size
        tail = os.pread(file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return tail.decode(errors="replace").strip()

    def close(self) -> None:
        self._closed = True
        if self._finish:
            self._finish()

    def _request(self, message: messages.AnyMessage, kind: type[A]) -> A:
        with self._request_lock:
            process = self._running()
            assert process.stdin
            assert process.stdout
            try:
                messages.write(process.stdin.fileno(), message, Deadline(SILENT_S))
                life = Life(process.pid)
                while not readable(process.stdout, LOOK_S):
                    if life.silent_s() > SILENT_S:
                        raise TimeoutError
                answer = messages.read(process.stdout.fileno(), "the fork server", Deadline(SILENT_S))
                if answer is None:
                    raise self._lost(process)
            except BaseException as error:
                # Another caller's answer would be taken for ours next time.
                process.kill()
                if isinstance(error, OSError):
                    hung = f"it did nothing for {SILENT_S:g} s" if isinstance(error, TimeoutError) else ""
                    raise self._lost(process, hung) from error
                raise
        if isinstance(answer, messages.Refused):
            raise EngineError(answer.code, answer.why)
        if not isinstance(answer, kind):
            raise messages.unexpected(answer, "the fork server")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise EngineError("machine-closed", "the machine was closed: make a new one")
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process that writes to it
            # No module is imported from the current folder (-P).
            # A group of its own: Ctrl-C is for the front end, which ends the workers. In the front end's
            # session, as the kernel then ends stopped processes of an orphaned group.
            self._process = subprocess.Popen(
                [sys.executable, "-P", *self.program],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                process_group=0,
                bufsize=0,
            )
            assert self._process.stdin
            # Written as far as there is room: one that does not read must not block the caller.
            os.set_blocking(self._process.stdin.fileno(), False)
            # It ends too when this object is forgotten.
            self._finish = weakref.finalize(self, _end, self._process, self._errors)
        return self._process

    def _lost(self, process: subprocess.Popen[bytes], hung: str = "") -> EngineError:
        status, last = process.wait(SILENT_S), last_sentence(self.errors())
        ended = f"it was killed by {signal.Signals(-status).name}" if status < 0 else last or f"with {status}"
        how = hung or ended
        assert self._finish
        self._finish()
        self._process = None
        return WorkplaceLostError("machine-lost", f"the process that workers start from has ended: {how}")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    assert process.stdin
    assert process.stdout
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_S)
    process.stdout.close()
    errors.close()


def last_sentence(output: str) -> str:
    """Return the last line of a process's output that is a sentence: below it a traceback may have an error
    code.
    """
    return next((line for line in reversed(output.splitlines()) if " " in line), "")
