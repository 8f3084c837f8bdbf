"""Declarations of options, and the types of their values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from laminabench.requests.fields import MAX_COUNT, MAX_SEED

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class NumberRange(click.FloatRange):
    """A click.FloatRange that refuses "nan", which compares as neither too low nor too high."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, checked against the range."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class CountOr(click.IntRange):
    """A number of batches or workers, or one of some words; a word with a colon takes arguments."""

    def __init__(self, *words: str) -> None:
        super().__init__(1, 64)
        self.words = words
        self.name = f"{', '.join(f'{word}...' if word.endswith(':') else word for word in words)} or count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, or the number."""
        word = "".join(str(value).partition(":")[:2])
        return value if word in self.words else super().convert(value, param, ctx)


class NamedPath(click.Path):
    """A click.Path that refuses an empty name, which would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("a path needs a name", param, ctx)
        return super().convert(value, param, ctx)


class _Positive(click.ParamType[float]):
    """A finite number above zero."""

    name = "x"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"'{value}' is not a number", param, ctx)
        if not (math.isfinite(number) and number > 0):
            self.fail(f"{value} is not above zero", param, ctx)
        return number


COUNT = click.IntRange(1, MAX_COUNT)
SEED = click.IntRange(0, MAX_SEED)
POSITIVE = _Positive()
PATH = NamedPath(path_type=Path)
FILE = NamedPath(dir_okay=False, path_type=Path)
FOLDER = NamedPath(file_okay=False, path_type=Path)


def option(
    spelled: str, kind: click.ParamType[Any] | None, text: str | None, default: Any = None, **more: Any
) -> Decorator:
    """Declare an option; `spelled` may end in the parameter's name: "--out folder"."""
    if default is not None:
        more |= {"default": default, "show_default": True}
    return click.option(*spelled.split(), type=kind, help=text, **more)


def target_option(text: str) -> Decorator:
    """Return the -o option of commands that write one file, passed on as `target`."""
    return option("-o --out --output target", FILE, text, required=True)
