"""The options of every command that takes a trace: where it may come from, and how it is cut."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from laminabench.cli.flags import given_in, with_flags
from laminabench.cli.output import Output
from laminabench.errors import UserError
from laminabench.request import CHOICES, CUTS, ReplayRequest, seconds
from laminabench.traces.resolve import transforms_of
from laminabench.traces.table import MAX_REQUESTS, Trace
from laminabench.traces.transform import Transforms


def window(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Callback of an option that takes a stretch of seconds, "A:B"; either end may be left out."""
    if value is None:
        return None
    try:
        return seconds(value, parameter.opts[0])
    except UserError as error:
        raise click.BadParameter(str(error).partition(": ")[2]) from None


# Of requests that are made, not chosen from those that are there.
REQUESTS = click.IntRange(1, MAX_REQUESTS)


def target_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The -o option of the commands that write one file, passed on as `target`."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", "target", required=True, type=path, help=help_)


TRACE_FILE = "FILE.parquet, .csv or .jsonl."
_CUTS = tuple(name for name, choice in CHOICES.items() if choice.flag.group == CUTS)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What the user asked of the trace: a request of nothing else."""

    request: ReplayRequest

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> TraceOptions:
        """From the values of all these options, by name; those that were not given are None."""
        request = ReplayRequest(**given_in(parameters))
        request.require_gaps()
        return cls(request)

    @property
    def transforms(self) -> Transforms:
        return transforms_of(self.request)

    def load(self, name: str, out: Output) -> Trace:
        """Resolve, transform, and tell on stderr what was done."""
        from laminabench.traces.resolve import cut, whole

        return cut(
            whole(name, self.transforms, out, offline=bool(self.request.offline)), self.transforms, out
        )


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the trace options, and pass them on as `workload`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        workload = TraceOptions.of({name: kwargs.pop(name) for name in _CUTS})
        return command(*args, workload=workload, **kwargs)

    return with_flags(wrapped, _CUTS)
