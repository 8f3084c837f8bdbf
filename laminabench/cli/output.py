"""The output of commands: results on stdout (text or one JSON object), all else on stderr."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

import click

from laminabench.cli.progress import Board, Display, Lines, Step
from laminabench.render.terminal import visible, without_markup
from laminabench.util.errors import require_text
from laminabench.util.json import json_safe
from laminabench.util.progress import Listener

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.util.live_progress import Expected, Happening

# The width of a pipe or file: no table is cut and no line is wrapped.
UNLIMITED = 1 << 16


class Output(Listener):
    """One command's output, as --json, -q and -v choose."""

    # Whether the JSON object has been printed: a later error must not add another.
    answered: ClassVar[bool] = False

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool, as_csv: bool = False) -> None:
        self.as_json = as_json
        self.as_csv = as_csv
        self.quiet = quiet
        self.verbose = verbose
        self._board = Board(self._display)

    def result(self, data: Mapping[str, object], render: Callable[[Console], None]) -> None:
        """Print the result: one JSON object, what `render` prints, or the tables of that as CSV."""
        if self.as_json:
            Output.answered = True
            click.echo(json.dumps(json_safe(data), indent=2, allow_nan=False))
        elif self.as_csv:
            console = CsvConsole(sys.stdout)
            render(cast("Console", console))
            console.print_values(json_safe(data))
        else:
            render(_console())

    def note(self, sentence: str) -> None:
        """Print a note on stderr unless -q is given."""
        if not self.quiet:
            write = self._board.display.print_message if self._board.display else _print_message
            write(sentence)

    def detail(self, sentence: str) -> None:
        """Print a note only if -v is given."""
        if self.verbose:
            self.note(sentence)

    @contextlib.contextmanager
    def progress(self, what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
        """Show a bar on stderr of a terminal, else lines during long work; nothing with -q.

        Without a unit nothing is counted but the time.
        """
        step = Step(what, unit)
        with self._board.under_way(step):
            yield step.report

    @contextlib.contextmanager
    def watch(self, expected: Expected) -> Iterator[Callable[[Happening], None]]:
        """Show progress with the last seconds' tokens/s and TBT, and a permanent line for each fault."""
        from laminabench.cli.progress import LiveStep, sentence_of
        from laminabench.util.live_progress import FaultEvent, Moment

        step = LiveStep("replaying", "requests", total=expected.requests, expected=expected)

        def report(happening: Happening) -> None:
            if isinstance(happening, Moment):
                step.happens(happening)
            elif isinstance(happening, FaultEvent) and step.moment is not None:
                write = self.note if happening.struck is None else self.detail
                write(sentence_of(happening))

        with self._board.under_way(step):
            yield report

    @contextlib.contextmanager
    def steps(self, unit: str) -> Iterator[Callable[[str, int, int], None]]:
        """Show progress through several named steps; without a terminal, note the start of each."""
        step = Step("", unit)
        watched = self._watched()

        def report(what: str, done: int, total: int) -> None:
            if what != step.what and not watched:
                self.note(what)
            step.what = what
            step.report(done, total)

        with self._board.under_way(step):
            yield report

    def _display(self, steps: list[Step]) -> Display | None:
        if self.quiet:
            return None
        if not self._watched():
            return Lines(steps, _print_message)
        from laminabench.cli.bars import Bars

        return Bars(steps, _rich_console(sys.stderr))

    def _watched(self) -> bool:
        """Return whether stderr is a terminal that can draw."""
        return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _print_message(sentence: str) -> None:
    click.echo(f"laminabench: {visible(sentence)}", err=True)


class _PipeConsole:
    """A console for pipes and files that avoids rich for lines: its import takes longer than a replay."""

    def print(self, *objects: object, soft_wrap: bool = False, **how: Any) -> None:
        if soft_wrap and not how and all(isinstance(each, str) for each in objects):
            click.echo(without_markup(" ".join(map(str, objects))))
        else:
            with self._rich.capture() as printed:
                self._rich.print(*objects, soft_wrap=soft_wrap, **how)
            lines = printed.get().split("\n")  # waits: not; it is text of rich
            click.echo("\n".join(map(str.rstrip, lines)), nl=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rich, name)

    @functools.cached_property
    def _rich(self) -> Console:
        return _rich_console(sys.stdout)


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --json, --csv, -q and -v, and pass them on as `out`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("--csv", "as_csv", is_flag=True, help="Print the tables as CSV, and no other text.")
    @click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
    @click.option("-v", "--verbose", is_flag=True, help="More notes on stderr.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, as_csv: bool, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise click.UsageError("--json and --csv exclude each other")
        # Before anything is written: half of an output would stay. Arguments are files, of any name.
        options = [
            each for each in click.get_current_context().command.params if isinstance(each, click.Option)
        ]
        for word in _texts(kwargs.get(each.name or "") for each in options):
            require_text(word)
        output = Output(as_json=as_json, quiet=quiet, verbose=verbose, as_csv=as_csv)
        return command(*args, out=output, **kwargs)

    return wrapped


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _texts(value)


def _console() -> Console:
    return _rich_console(sys.stdout) if sys.stdout.isatty() else cast("Console", _PipeConsole())


def _rich_console(stream: IO[str]) -> Console:
    from rich.console import Console

    watched = stream.isatty()
    # Explicit, since FORCE_COLOR in the environment would put colours into a pipe.
    return Console(file=stream, highlight=False, force_terminal=watched, width=None if watched else UNLIMITED)


_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")


class CsvConsole:
    """A console that writes tables as CSV, with a blank line between two, and drops other text."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._tables = stream, 0

    def print(self, *objects: Any, **how: Any) -> None:  # noqa: ARG002 - rich's signature
        from rich.table import Table

        for each in objects:
            if isinstance(each, Table):
                self._write(each)

    def print_values(self, data: Mapping[str, object]) -> None:
        """Write the result's values as rows of name and value, if no table was printed."""
        if not self._tables:
            rows = csv.writer(self._stream, lineterminator="\n")
            rows.writerows([("name", "value"), *_values("", data)])

    def _write(self, table: Any) -> None:
        self._stream.write("\n" if self._tables else "")
        self._tables += 1
        rows = csv.writer(self._stream, lineterminator="\n")
        rows.writerow([_plain(column.header) for column in table.columns])
        rows.writerows(
            zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True)
        )


def _values(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the dotted path and the value of each leaf of a JSON value."""
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _values(f"{path}.{key}" if path else str(key), each)
    else:
        yield path, value


def _plain(cell: Any) -> str:
    """Return the cell without markup, and a number without separators."""
    text = cell.plain if hasattr(cell, "plain") else without_markup(str(cell))
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
