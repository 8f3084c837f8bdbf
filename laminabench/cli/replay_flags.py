"""The flags of `laminabench replay` for commands that replay many times: by name, as its parser has them."""

from __future__ import annotations

import click

from laminabench.cli.replay import replay

_ONE_RUN = "it is about one replay's Run"
# What a command that replays many times decides itself, and why.
NOT_OF_MANY = {
    "out": _ONE_RUN,
    "no-out": _ONE_RUN,
    "resume": "it goes on with one replay",
    "plot": "it draws one replay",
    "timeline": "it draws one replay",
    "timeline-window": "it draws one replay",
    "json": "it is how one replay is told",
    "quiet": "it is how one replay is told",
    "verbose": "it is how one replay is told",
}


def flags() -> dict[str, click.Option]:
    """All of them, by long name without dashes."""
    return {
        spelling.removeprefix("--"): option
        for option in replay.params
        if isinstance(option, click.Option)
        for spelling in option.opts
        if spelling.startswith("--")
    }


def flags_of_many() -> dict[str, click.Option]:
    """Those that each of many replays may have."""
    return {name: option for name, option in flags().items() if name not in NOT_OF_MANY}


def spelled(parameter: str) -> str:
    """A flag as a user writes it, by the name that its value is passed on by."""
    return next(
        (f"--{spelling}" for spelling, option in flags().items() if option.name == parameter), parameter
    )
