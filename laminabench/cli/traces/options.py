"""The options of every command that takes a trace: where it may come from, and how it is cut."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from laminabench.cli.output import Output
from laminabench.cli.ranges import positive
from laminabench.traces.resolve import resolve
from laminabench.traces.table import MAX_REQUESTS, Trace
from laminabench.traces.transform import Transforms


def window(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Callback of an option that takes a stretch of seconds, "A:B"; either end may be left out."""
    if value is None:
        return None
    first, colon, last = value.partition(":")
    try:
        stretch = (float(first or 0), float(last or math.inf))
    except ValueError:
        stretch = (math.nan, math.nan)
    if not colon or not 0 <= stretch[0] < stretch[1]:
        raise click.BadParameter(f"'{value}' is not a window; write seconds as A:B with A < B, such as 0:600")
    return stretch


COUNT = click.IntRange(min=1)
# Of requests that are made, not chosen from those that are there.
REQUESTS = click.IntRange(1, MAX_REQUESTS)


def target_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The -o option of the commands that write one file, passed on as `target`."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", "target", required=True, type=path, help=help_)


TRACE_FILE = "FILE.parquet, .csv or .jsonl."

_OPTIONS = (
    click.option("--offline", is_flag=True, help="Never download; use what is here, else the profile."),
    click.option(
        "--window",
        "window_s",
        metavar="A:B",
        callback=window,
        help="Only requests arriving in these seconds.",
    ),
    click.option(
        "--scale-lengths",
        metavar="X",
        callback=positive,
        default="1",
        help="Multiply prompt and output lengths.",
    ),
    click.option("--max-prompt", type=COUNT, help="Longest prompt let through, in tokens."),
    click.option("--max-output", type=COUNT, help="Longest output let through, in tokens."),
    click.option(
        "--too-long",
        type=click.Choice(["truncate", "drop"]),
        default="truncate",
        help="What happens to longer requests.",
    ),
    click.option("--sample", type=COUNT, help="This many requests at random, whole sessions together."),
    click.option("--num-requests", "--num-prompts", type=COUNT, help="Only the first N requests."),
    click.option(
        "--request-rate",
        metavar="X",
        callback=positive,
        help="Replace the arrival times: this many a second.",
    ),
    click.option(
        "--burstiness",
        metavar="X",
        callback=positive,
        default="1",
        help="With --request-rate: gamma shape of the gaps; 1 is Poisson, less is burstier.",
    ),
    click.option(
        "--rate-scale",
        metavar="X",
        callback=positive,
        default="1",
        help="Scale the load: 2 means twice the rate.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="For everything drawn at random."),
)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What the user asked of the trace."""

    offline: bool
    transforms: Transforms

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> TraceOptions:
        """From the values of all these options, by name."""
        transforms = Transforms(**{field.name: parameters[field.name] for field in fields(Transforms)})
        if transforms.burstiness != 1.0 and transforms.request_rate is None:
            raise click.UsageError("--burstiness shapes the gaps of --request-rate; give that too")
        return cls(parameters["offline"], transforms)

    def load(self, name: str, out: Output) -> Trace:
        """Resolve, transform, and tell on stderr what was done."""
        return self.cut(self.whole(name, out), out)

    def whole(self, name: str, out: Output) -> Trace:
        """Resolve, and tell where it is from."""
        with out.progress(f"downloading {name}") as progress:
            trace = resolve(
                name,
                offline=self.offline,
                requests=self.transforms.prefix_needed(),
                seed=self.transforms.seed,
                notice=out.note,
                progress=progress,
            )
        # The notice has told that a trace is generated; what its profile rests on is for -v and --json.
        for sentence in trace.meta.notes:
            (out.note if trace.meta.source == "file" else out.detail)(sentence)
        return trace

    def cut(self, trace: Trace, out: Output) -> Trace:
        """Transform what `whole` gave, and tell what was done."""
        transformed = self.transforms.apply(trace)
        for sentence in transformed.meta.notes[len(trace.meta.notes) :]:
            out.note(sentence)
        return transformed


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the trace options, and pass them on as `workload`."""
    names = [field.name for field in fields(Transforms)]

    @functools.wraps(command)
    def wrapped(*args: Any, offline: bool, **kwargs: Any) -> Any:
        workload = TraceOptions.of({"offline": offline, **{name: kwargs.pop(name) for name in names}})
        return command(*args, workload=workload, **kwargs)

    decorated: Callable[..., Any] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
