"""What benchmarks and their targets share on the command line: how long to measure, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from laminabench.cli.traces.options import positive

_WORDS = {None: "[dim]not judged[/dim]", True: "[green]met[/green]", False: "[red]missed[/red]"}


def verdict(met: bool | None) -> str:
    """Whether a target was met; None where there is none."""
    return _WORDS[met]


def seconds_option(default: str, least: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--seconds of the benchmarks that measure for a time; `least` says what it takes in any case."""
    return click.option(
        "--seconds",
        metavar="X",
        callback=positive,
        default=default,
        show_default=True,
        help=f"About how long to measure{least}.",
    )
