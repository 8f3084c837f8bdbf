"""How a run of the command line ends: exit codes, sentences, and streams that may be gone."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

import click

from laminabench.render.terminal import visible
from laminabench.util.errors import CheckFailedError, Terminated, UserError
from laminabench.util.shutdown import end_at_once

# Of the packages that only some commands import, late: which extra brings them.
EXTRAS = {
    **dict.fromkeys(("matplotlib", "pandas", "scipy", "seaborn"), "figures"),
    **dict.fromkeys(("msgpack", "ray", "safetensors", "torch", "transformers"), "engine"),
    **dict.fromkeys(("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"), "engine,serve"),
    **dict.fromkeys(("httptools", "uvloop"), "endpoint"),
    "plotly": "report",
    "tokenizers": "tokenize",
}

DONE, CHECK_FAILED, WRONG_USE, BUG, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143


# What a command has after the second signal to end by itself.
AT_ONCE_S = 0.5


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated in here, and Ctrl-C KeyboardInterrupt, unless someone has already decided
    otherwise. After a second one of either it ends whatever hangs, and what it has begun with it; until its
    very end none makes another exit code of the first one's.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    heard = 0

    def hear(number: int, _: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if heard == 2:
            # What is being ended is let go on with it; another exception would only be in its way.
            last = threading.Timer(AT_ONCE_S, end_at_once, (128 + number,))
            last.daemon = True
            last.start()

    before = {signal.SIGTERM: signal.SIG_DFL}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.default_int_handler  # type: ignore[assignment]
    # Before all that is registered in here: it runs after that, which a second signal shall end too.
    atexit.register(_deaf, before)
    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        if not heard:
            for number, handler in before.items():
                signal.signal(number, handler)


def _deaf(numbers: Iterable[int]) -> None:
    """While the interpreter takes itself apart, a signal would have what the kernel does by itself."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def open_streams() -> None:
    """Closed standard streams (`>&-`) lead to nothing, and no character is unprintable."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one: no file of ours shall be taken for stdout.
            os.open(os.devnull, os.O_RDWR)
    # None where the interpreter found the stream closed.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def close_streams() -> None:
    """Flush. A stream that cannot be written is led to nothing, or the interpreter would fail on it too."""
    for stream in (sys.stdout, sys.stderr):
        # click wraps a stdout whose reader left.
        stream = getattr(stream, "wrapped", stream)  # noqa: PLW2901
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(sentence: str) -> None:
    """One line on stderr; if nobody can read it, the exit code must do."""
    with contextlib.suppress(OSError):
        click.echo(visible(sentence), err=True)


@dataclass(frozen=True, slots=True)
class End:
    """How a run of the command line ended: its exit code, and what is to be said of it, if anything."""

    exit_code: int
    sentence: str = ""
    error_code: str = ""


def say_as_json(end: End) -> None:
    """The one object on stdout of a command with --json that failed before it had a result."""
    error = {"code": end.error_code, "message": end.sentence.removeprefix("laminabench: ")}
    with contextlib.suppress(OSError, ValueError):
        click.echo(json.dumps({"error": error}, indent=2))


def end_of(error: Exception) -> End:
    """What to tell of an error, and the exit code for it."""
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
    if isinstance(error, MemoryError):
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
    """How to get a package that is not installed; nothing if it is none that may be missing."""
    if name == "lamina._native":
        return "this needs the engine, whose native part is not built (`make replay` builds none): make setup"
    extra = EXTRAS.get(name.partition(".")[0])
    return f"this needs {name}, which is not installed: pip install 'laminabench[{extra}]'" if extra else ""
