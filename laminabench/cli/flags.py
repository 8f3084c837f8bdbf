"""Flags of the command line made of a request's fields: the one place where a replay's choices meet click."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from laminabench.cli.options import CountOr, Decorator, NumberRange
from laminabench.requests.replay import CHOICES, CUTS, FLAGS, OUTPUT, Choice, ReplayRequest, seconds
from laminabench.systems.modelled.h2m2.timing import POLICIES
from laminabench.systems.registry import NAMES
from laminabench.util.errors import UserError

_CUTS = tuple(FLAGS[CUTS])
# Words that a choice may be, where its type does not say them.
_WORDS: Mapping[str, Iterable[str]] = {"system": NAMES, "mapping": POLICIES}


def _option(choice: Choice) -> Decorator:
    """The flag of a choice. What is not given is None, or (): what it is then, the request says."""
    flag = choice.flag
    default = f"  [default: {choice.default}]" if choice.default not in (None, ()) else ""
    help_ = flag.help + default
    if choice.switch:
        spelled = f"{choice.spelled}/--no-{choice.key}" if flag.opposite else choice.spelled
        return click.option(spelled, choice.name, is_flag=True, default=None, help=help_)
    return click.option(
        choice.spelled,
        *([f"--{flag.also}"] if flag.also else []),
        choice.name,
        type=_type(choice),
        metavar=flag.metavar,
        multiple=choice.repeatable,
        help=help_,
        callback=_seconds if flag.kind == "seconds" else None,
    )


def with_flags(command: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """Give a command the flags of these choices, each passed on by its name."""
    for name in reversed(list(names)):
        command = _option(CHOICES[name])(command)
    return command


price_options = functools.partial(with_flags, names=("price", "power", "price_basis"))


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the cuts of a trace, passed on as `workload`: a request of nothing else."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        workload = ReplayRequest(**given_in({name: kwargs.pop(name) for name in _CUTS}))
        workload.require_gaps()
        return command(*args, workload=workload, **kwargs)

    return with_flags(wrapped, _CUTS)


def given_in(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The choices that were made on a command line, by name."""
    return {name: value for name, value in flags.items() if name in CHOICES and value not in (None, ())}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The choices that these arguments of `laminabench replay` make; a UsageError for what is wrong."""
    context = _parser.make_context("laminabench replay", arguments)
    return given_in(context.params)


def parsed_line(said: str) -> dict[str, Any]:
    """The same of a line; a ValueError for what is wrong."""
    try:
        return parsed(shlex.split(said))
    except click.UsageError as error:
        raise ValueError(error.format_message().rstrip(".")) from error


def changed(request: ReplayRequest, given: Mapping[str, Any]) -> ReplayRequest:
    """The request with these choices made otherwise."""
    return msgspec.structs.replace(request, **given)


class GroupedCommand(click.Command):
    """A command whose help has its flags under the headings of a request."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each group in turn, what is no choice last."""
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in FLAGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                choice = CHOICES.get(parameter.name or "")
                rows[choice.group if choice else OUTPUT].append(record)
        for group, some in rows.items():
            if some:
                with formatter.section(group):
                    formatter.write_dl(some)


def _type(choice: Choice) -> click.ParamType[Any] | None:
    if choice.name in _WORDS:
        return click.Choice(list(_WORDS[choice.name]))
    if choice.flag.words:
        return CountOr(*choice.flag.words)
    if choice.flag.kind in ("file", "folder"):
        return click.Path(dir_okay=choice.flag.kind == "folder", file_okay=choice.flag.kind == "file")
    kinds = [kind for kind in _alternatives(choice.type) if kind is not type(None)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    numbers = [kind for kind in kinds if hasattr(kind, "__metadata__")]
    if not numbers:
        return click.Choice(words) if words else None
    if words:
        return CountOr(*words)
    number = numbers[0]
    limits = number.__metadata__[0]
    if number.__origin__ is int:
        return click.IntRange(limits.ge, limits.le)
    least = limits.ge if limits.gt is None else limits.gt
    return NumberRange(least, limits.le, min_open=limits.gt is not None)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Of a union what it is of, with the limits of each."""
    if hasattr(kind, "__metadata__") or get_origin(kind) is Literal:
        return (kind,)
    return get_args(kind) or (kind,)


def window(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Callback of an option that takes a stretch of seconds, "A:B"; either end may be left out."""
    try:
        return None if value is None else seconds(value, parameter.opts[0])
    except UserError as error:
        raise click.BadParameter(str(error).partition(": ")[2]) from None


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    window(context, parameter, value)
    return value


@click.command(add_help_option=False)
@functools.partial(with_flags, names=CHOICES)
def _parser(**flags: Any) -> None:
    """Reads the flags of a replay that is one of many."""
