"""The end of a command: exit codes, error sentences, and streams that may be closed."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

import click

from laminabench.render.terminal import visible
from laminabench.util.errors import CheckFailedError, Terminated, UserError, not_text
from laminabench.util.shutdown import end_at_once

# The extra that installs each lazily imported package.
EXTRAS = {
    **dict.fromkeys(("matplotlib", "pandas", "scipy", "seaborn"), "figures"),
    **dict.fromkeys(("msgpack", "ray", "safetensors", "torch", "transformers"), "engine"),
    **dict.fromkeys(("fastapi", "prometheus_client", "pydantic", "starlette"), "engine,serve"),
    **dict.fromkeys(("httptools", "uvloop"), "endpoint"),
    "plotly": "report",
    "tokenizers": "tokenize",
}

DONE, CHECK_FAILED, WRONG_USE, BUG, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143


# How libraries report that the system has given no memory, for a module's code and a thread's stack.
_NO_MEMORY = re.compile(
    r"^ImportError: .*(failed to map segment|annot allocate memory|shared object descriptor)"
    r"|^RuntimeError: can't start new thread"
)

# Time for a command to end by itself after the second signal.
AT_ONCE_S = 0.5


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated on SIGTERM and KeyboardInterrupt on Ctrl-C, unless handlers are set already.

    A second signal ends hanging work and its processes; the exit code stays that of the first one.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signals = 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if signals == 2:
            # Let the shutdown go on: another exception would only interrupt it.
            last = threading.Timer(AT_ONCE_S, end_at_once, (128 + number,))
            last.daemon = True
            last.start()

    before = {signal.SIGTERM: signal.SIG_DFL}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.default_int_handler  # type: ignore[assignment]
    # Registered first, so that it runs last: a second signal must end the other exit handlers too.
    atexit.register(_deaf, before)
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        if not signals:
            for number, handler in before.items():
                signal.signal(number, handler)


def _deaf(numbers: Iterable[int]) -> None:
    """Ignore signals while the interpreter shuts down, when their default would end it at once."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def open_streams() -> None:
    """Reopen closed standard streams (`>&-`) on /dev/null, and make every character printable."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # This is the lowest free number: no later file may become stdout.
            os.open(os.devnull, os.O_RDWR)
    # None if the stream was closed when the interpreter started.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def close_streams() -> None:
    """Flush the streams, and redirect broken ones, which would fail the interpreter's own flush."""
    for stream in (sys.stdout, sys.stderr):
        # click wraps a stdout whose reader has closed it.
        stream = getattr(stream, "wrapped", stream)  # noqa: PLW2901
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_error(sentence: str) -> None:
    """Print one line on stderr; if that fails, the exit code has to do."""
    with contextlib.suppress(OSError):
        click.echo(visible(sentence), err=True)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a command: its exit code, and a sentence if it failed."""

    exit_code: int
    sentence: str = ""
    error_code: str = ""


def print_json_error(end: End) -> None:
    """Print the error object of a --json command that failed before its result."""
    error = {"code": end.error_code, "message": end.sentence.removeprefix("laminabench: ")}
    with contextlib.suppress(OSError, ValueError):
        click.echo(json.dumps({"error": error}, indent=2))


def end_of(error: Exception) -> End:
    """Return the exit code and sentence of an error."""
    if isinstance(error, CheckFailedError):
        return End(CHECK_FAILED, f"laminabench: check failed: {error}", error.code)
    if isinstance(error, UserError):
        return End(WRONG_USE, f"laminabench: error: {error}", error.code)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return End(WRONG_USE, f"laminabench: error: {where}{error.strerror or error}", "os-error")
    if isinstance(error, subprocess.TimeoutExpired):
        command = error.cmd if isinstance(error.cmd, str) else str(error.cmd[0])
        sentence = f"{command} has not ended in {error.timeout:g} s; see what it waits for, and try again"
        return End(WRONG_USE, f"laminabench: error: {sentence}", "program-hangs")
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return end_of(not_text(" ".join(error.object.split())[:200]))
    if isinstance(error, MemoryError) or _NO_MEMORY.search(f"{type(error).__name__}: {error}"):
        sentence = "this needs more memory than there is; ask for fewer or smaller requests"
        return End(WRONG_USE, f"laminabench: error: {sentence}", "out-of-memory")
    if isinstance(error, ModuleNotFoundError) and (sentence := missing_package(error.name or "")):
        return End(WRONG_USE, f"laminabench: error: {sentence}", "package-missing")
    return End(
        BUG,
        f"laminabench: internal error: {type(error).__name__}: {error}; this is a bug: "
        "please report it with what LAMINABENCH_DEBUG=1 shows",
        "internal",
    )


def missing_package(name: str) -> str:
    """Return how to install a missing package; nothing if no extra provides it."""
    if name == "lamina._native":
        return "this needs the engine, whose native part is not built (`make replay` builds none): make setup"
    extra = EXTRAS.get(name.partition(".")[0])
    return f"this needs {name}, which is not installed: pip install 'laminabench[{extra}]'" if extra else ""
