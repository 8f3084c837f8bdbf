"""Ranges of numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click

COUNT = click.IntRange(min=1)


def positive(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that takes a finite number above zero."""
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a number") from None
    if not (math.isfinite(number) and number > 0):
        raise click.BadParameter(f"{value} is not above zero")
    return number


class NumberRange(click.FloatRange):
    """click's, which lets "nan" through: that is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, within the range."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number", param, ctx)
        return found


class CountOr(click.IntRange):
    """A number of batches or workers, or one of some words."""

    def __init__(self, *words: str) -> None:
        super().__init__(1, 64)
        self.words = words
        self.name = f"{', '.join(words)} or count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word, or the number."""
        return value if value in self.words else super().convert(value, param, ctx)
