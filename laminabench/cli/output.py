"""How commands speak: results on stdout (text or one JSON object), everything else on stderr."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

import click

from laminabench.json_safe import json_safe
from laminabench.listener import Listener
from laminabench.present.terminal import without_markup

if TYPE_CHECKING:
    from rich.console import Console

# Wide enough for every table when nobody's terminal says otherwise.
PIPE_WIDTH = 120


class Output(Listener):
    """One command's voice: --json, -q and -v decide what is said and where."""

    # Whether the one JSON object has been printed: what fails after that adds no other.
    answered: ClassVar[bool] = False

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose

    def result(self, data: Mapping[str, object], render: Callable[[Console], None]) -> None:
        """The answer: exactly one JSON object, or what `render` draws."""
        if self.as_json:
            Output.answered = True
            click.echo(json.dumps(json_safe(data), indent=2, allow_nan=False))
        else:
            render(_console())

    def note(self, sentence: str) -> None:
        """Something the user should know beside the result; -q silences it."""
        if not self.quiet:
            click.echo(f"laminabench: {sentence}", err=True)

    def detail(self, sentence: str) -> None:
        """Something only -v wants to know."""
        if self.verbose:
            self.note(sentence)

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        """A progress bar on stderr while a person watches; nothing in a pipe or with -q."""
        with self._bar(what, unit) as bar:
            yield lambda done, total: None if bar is None else bar(done, total, what)

    @contextlib.contextmanager
    def rates(self, what: str, unit: str, rate: str) -> Iterator[Callable[[int, int, int], None]]:
        """As `progress`, with how many of something else were made, shown as so many a second."""
        began = time.monotonic()
        with self._bar(what, unit) as bar:

            def told(done: int, total: int, made: int) -> None:
                if bar is not None:
                    per_s = made / max(time.monotonic() - began, 1e-9)
                    bar(done, total, f"{what}, {per_s:,.0f} {rate}")

            yield told

    @contextlib.contextmanager
    def steps(self, unit: str) -> Iterator[Callable[[str, int, int], None]]:
        """As `progress`, through several steps with names; where nobody watches, a note as each begins."""
        with self._bar("", unit) as bar:
            noted = ""

            def told(what: str, done: int, total: int) -> None:
                nonlocal noted
                if bar is not None:
                    bar(done, total, what)
                elif what != noted:
                    self.note(what)
                noted = what

            yield told

    @contextlib.contextmanager
    def _bar(self, what: str, unit: str) -> Iterator[Callable[[int, int | None, str], None] | None]:
        """A bar on stderr to be told of (done, total, description); None if nobody watches."""
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        from rich import progress as bars

        size = bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), size, bars.TimeRemainingColumn())
        with bars.Progress(*columns, console=_rich_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


class _PipeConsole:
    """A console for pipes and files. Lines are printed here, as importing rich takes longer than a replay."""

    def print(self, *objects: object, soft_wrap: bool = False, **how: Any) -> None:
        if soft_wrap and not how and all(isinstance(each, str) for each in objects):
            click.echo(without_markup(" ".join(map(str, objects))))
        else:
            self._rich.print(*objects, soft_wrap=soft_wrap, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rich, name)

    @functools.cached_property
    def _rich(self) -> Console:
        return _rich_console(sys.stdout)


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --json, -q and -v, and pass them on as `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        return command(*args, out=Output(as_json=as_json, quiet=quiet, verbose=verbose), **kwargs)

    return wrapped


def _console() -> Console:
    return _rich_console(sys.stdout) if sys.stdout.isatty() else cast("Console", _PipeConsole())


def _rich_console(stream: IO[str]) -> Console:
    from rich.console import Console

    watched = stream.isatty()
    # Said outright, or FORCE_COLOR in the environment would put colours into a pipe.
    return Console(
        file=stream, highlight=False, force_terminal=watched, width=None if watched else PIPE_WIDTH
    )
