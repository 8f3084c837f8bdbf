"""What benchmarks share on the command line: how long to measure, on what, and the verdict on a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from laminabench.cli.ranges import positive

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


def device_option(on_a_gpu: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--device of the benchmarks that measure something else on a GPU."""
    return click.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        default="cpu",
        show_default=True,
        help=f"cuda measures {on_a_gpu}, over sizes of its own; not verified on hardware.",
    )
