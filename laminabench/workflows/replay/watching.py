"""The status of a live replay for other processes: a file next to its future Run."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from laminabench.requests.replay import ReplayRequest
from laminabench.runs.live import End, Header, LiveFile, live_path, started
from laminabench.systems.base import Prepared, Replayed
from laminabench.traces.table import Trace
from laminabench.util.errors import CodedError, Interrupted, Terminated, UserError
from laminabench.util.live_progress import Expected, Gaps, Happening
from laminabench.util.progress import Listener, Passing
from laminabench.util.version import describe


class LiveReport(Passing):
    """A listener that writes a replay's reports to its live file, and passes them on."""

    def __init__(
        self,
        to: Listener,
        directory: Path | None,  # None: the Run is not stored, and nothing is written
        request: ReplayRequest,
        prepared: Prepared,
        trace: Trace,
    ) -> None:
        super().__init__(to)
        self._directory, self._request, self._prepared, self._trace = directory, request, prepared, trace
        self._file: LiveFile | None = None
        self._at_s = 0.0

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        # Ignore a file that cannot be written: writing the Run will report the same error.
        if self._directory:
            with contextlib.suppress(OSError, UserError):
                self._file = LiveFile(live_path(self._directory), self._header(expected))
        with self.to.watch(expected) as report:

            def both(happening: Happening) -> None:
                report(happening)
                if not isinstance(happening, Gaps):
                    self._at_s = happening.at_s
                    if self._file:
                        self._file.write(happening)

            yield both

    def ended(self, replayed: Replayed) -> None:
        """Report that the Run is being written, which takes a while for a long one."""
        if self._file is None:
            return
        partial = replayed.partial
        state: Literal["done", "interrupted", "failed"] = "failed" if partial else "done"
        if replayed.interrupted:
            state = "interrupted"
        self._file.write(End(at_s=self._at_s, state=state, why=partial.why if partial else ""))

    def left(self, error: BaseException, *, resumable: bool) -> None:
        """Report that there is no Run; if `resumable`, the file says how to resume."""
        if self._file and resumable:
            resume = f"laminabench replay --resume {shlex.quote(str(self._directory))}"
            self._file.write(End(at_s=self._at_s, state=_state(error), why=_why(error), resume=resume))
            self._file.close()
            self._file = None

    def over(self) -> None:
        """Remove the file."""
        if self._file:
            self._file.remove()

    def _header(self, expected: Expected) -> Header:
        prepared, stored = self._prepared, self._request.stored()
        return Header(
            laminabench=describe(),
            pid=os.getpid(),
            pid_started=started(os.getpid()),
            began=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            command=("laminabench", "replay", *stored.arguments()),
            request=prepared.request.stored().text(),
            trace=self._trace.meta.name,
            requests=expected.requests,
            tokens=expected.tokens,
            system=prepared.request.system,
            deployment=str(prepared.deployment),
            model=prepared.model.name,
            backend=prepared.backend,
            mode=prepared.request.mode,
            slo_tbt_ms=prepared.request.slo_tbt_ms,
            slo_ttft_ms=prepared.request.slo_ttft_ms,
            kv_capacity_tokens=expected.kv_capacity_tokens,
            workers=expected.workers,
        )


@contextlib.contextmanager
def live_report(
    to: Listener,
    directory: Path | None,
    request: ReplayRequest,
    prepared: Prepared,
    trace: Trace,
    resumable: Callable[[], bool],
) -> Iterator[LiveReport]:
    """Remove the file once the block has written the Run; else report what happened.

    The file is left only if `resumable` returns true.
    """
    report = LiveReport(to, directory, request, prepared, trace)
    try:
        yield report
    except BaseException as error:
        report.left(error, resumable=resumable())
        raise
    finally:
        report.over()


def _state(error: BaseException) -> Literal["interrupted", "failed"]:
    interrupted = isinstance(error, KeyboardInterrupt | Interrupted | Terminated)
    return "interrupted" if interrupted else "failed"


def _why(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return "Ctrl-C"
    if isinstance(error, Terminated):
        return "terminated"
    return str(error) if isinstance(error, CodedError) else f"{type(error).__name__}: {error}"
