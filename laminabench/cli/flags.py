"""Command-line options made of request fields: the only module where requests meet click."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.cli.options import CountOr, Decorator, NamedPath, NumberRange
from laminabench.requests.compare import BOTH, NEITHER
from laminabench.requests.fields import Field, Request
from laminabench.requests.replay import CUTS, FIELDS, GROUPS, MODELLED, OUTPUT, ReplayRequest, seconds
from laminabench.systems.modelled.h2m2.timing import POLICIES
from laminabench.systems.registry import MODULES, NAMES, find_system, takes
from laminabench.util.errors import UserError

# The words of fields whose types do not list them.
_WORDS: Mapping[str, Iterable[str]] = {
    "system": NAMES,
    "mapping": POLICIES,
    "host_async": (NEITHER, BOTH, *MODULES),
    "sort": COLUMNS,
}
# Keys of a context: whether the help has all options, and the system whose options it has.
_ALL, _SYSTEM = "laminabench.help.all", "laminabench.help.system"


class FieldOption(click.Option):
    """The option of a field: None or () if not given, since the request has the default."""

    def __init__(self, declarations: Sequence[str], *, field: Field, **attributes: Any) -> None:
        self.field = field
        super().__init__(declarations, **attributes)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the help, with the default and the kinds of systems that take the option."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        system, option, extra = ctx.meta.get(_SYSTEM), self.field.option, []
        every, default = ctx.meta.get(_ALL, True), self.field.default
        if system:
            default = system.defaults.get(self.field.name, default)
        elif every and option.takes and MODELLED not in option.takes:
            extra = [f"({', '.join(option.takes)})"]
        text = option.help if every or system else option.brief
        if option.required:
            extra = ["[required]", *extra]
        elif default is not None and default is not False and default != ():
            extra = [f"[default: {default}]", *extra]
        return record[0], "  ".join([text, *extra])


def with_fields(
    command: Callable[..., Any], names: Iterable[str], kind: type[Request] = ReplayRequest
) -> Callable[..., Any]:
    """Give a command the options of these fields, each passed by its name."""
    for name in reversed(list(names)):
        field = kind.fields()[name]
        option = field.option
        spelled = f"{field.flag}/--no-{field.key}" if option.opposite else field.flag
        also = option.also.split()
        command = click.option(
            *(each for each in also if not each.startswith("--")),
            spelled,
            *(each for each in also if each.startswith("--")),
            name,
            cls=FieldOption,
            field=field,
            type=None if field.switch else _type(field),
            metavar=option.metavar or option.unit.upper() or None,
            **({"is_flag": True, "default": None} if field.switch else {}),
            multiple=field.repeatable,
            required=option.required,
            help=option.help,
            callback=_check_window if option.kind == "window" else None,
        )(command)
    return command


price_options = functools.partial(with_fields, names=("price", "power", "price_basis"))


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that cut a trace, passed on as the request `workload`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        workload = ReplayRequest(**given_in({name: kwargs.pop(name) for name in GROUPS[CUTS]}))
        workload.require_gaps()
        return command(*args, workload=workload, **kwargs)

    return with_fields(wrapped, GROUPS[CUTS])


def request_options(kind: type[Request]) -> Decorator:
    """Return a decorator that gives a command the options of a request, passed on as `request`."""
    own = list(kind.fields())

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            fields = given_in({name: kwargs.pop(name) for name in own}, kind)
            for attribute, source, names in kind.shared():
                part = source(**given_in({name: kwargs.pop(name) for name in names}, source))
                if isinstance(part, ReplayRequest):
                    part.require_gaps()
                fields[attribute] = part
            return command(*args, request=kind(**fields), **kwargs)

        with_shared: Callable[..., Any] = wrapped
        for _, source, names in kind.shared():
            with_shared = with_fields(with_shared, names, source)
        return with_fields(with_shared, own, kind)

    return decorated


def given_in(parameters: Mapping[str, Any], kind: type[Request] = ReplayRequest) -> dict[str, Any]:
    """Return the fields that were given on a command line."""
    return {name: value for name, value in parameters.items() if name in kind.fields() and _is_given(value)}


def _is_given(value: Any) -> bool:
    return value is not None and value != ()


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Parse arguments of `laminabench replay` into fields; a UsageError for wrong ones."""
    context = _parser.make_context("laminabench replay", arguments)
    return given_in(context.params)


def parsed_line(text: str) -> dict[str, Any]:
    """Parse a line of arguments; a ValueError for wrong ones."""
    try:
        return parsed(shlex.split(text))
    except click.UsageError as error:
        raise ValueError(error.format_message().rstrip(".")) from error


def changed(request: ReplayRequest, given: Mapping[str, Any]) -> ReplayRequest:
    """Return the request with these fields replaced."""
    return msgspec.structs.replace(request, **given)


class GroupedCommand(click.Command):
    """A command whose help groups the fields of its request: the common ones, or all with --help-all.

    With --system the help shows the options that the system takes, with its defaults.
    """

    def __init__(self, *args: Any, short: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.short = short

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Add --help-all before --help."""
        *others, help_ = super().get_params(ctx)
        return [*others, self._help_all, help_] if self.short else [*others, help_]

    @functools.cached_property
    def _help_all(self) -> click.Option:
        def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
            if value and not ctx.resilient_parsing:
                ctx.meta[_ALL] = True
                click.echo(ctx.get_help())
                ctx.exit()

        return click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show,
            help="Show every option and exit.",
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for --help first, which shows less than there is, and depends on --system."""
        if self.short and {"-h", "--help", "--help-all"} & set(args):
            ctx.meta[_ALL] = False
            with_system = [word for word in args if word.startswith("--system")]
            if with_system:
                options, *_ = self.make_parser(ctx).parse_args(list(args))
                ctx.meta[_SYSTEM] = find_system(options.get("system"), options.get("backend"))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group; options that are no fields are in the last one."""
        system, every = ctx.meta.get(_SYSTEM), ctx.meta.get(_ALL, True)
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            field = parameter.field if isinstance(parameter, FieldOption) else None
            if not (
                _is_shown(field, system, every=every) if field else every or parameter.name not in _SELDOM
            ):
                continue
            rows.setdefault(field.option.group if field else OUTPUT, []).append(record)
        for group in sorted(rows, key=list(GROUPS).index):
            with formatter.section(group):
                formatter.write_dl(rows[group])


# Commands' own options that only --help-all shows.
_SELDOM = ("print_config", "again", "resume", "quiet", "verbose", "no_out", "strict", "markdown")


def _is_shown(field: Field, system: Any, *, every: bool) -> bool:
    """Return whether the help has the option."""
    return takes(system, field.name) if system else every or field.option.common


def _type(field: Field) -> click.ParamType[Any] | None:
    if field.name in _WORDS:
        return click.Choice(list(_WORDS[field.name]))
    option = field.option
    if option.words:
        return CountOr(*option.words)
    if option.kind in ("file", "folder"):
        return NamedPath(dir_okay=option.kind == "folder", file_okay=option.kind == "file")
    kinds = field.alternatives()
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


def window(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Parse an option that is a window of seconds, "A:B"; a callback of click's."""
    try:
        return None if value is None else seconds(value, parameter.opts[0])
    except UserError as error:
        raise click.BadParameter(str(error).partition(": ")[2]) from None


def _check_window(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    window(context, parameter, value)
    return value


@click.command(add_help_option=False)
@functools.partial(with_fields, names=FIELDS)
def _parser(**_: Any) -> None:
    """Parse the arguments of a replay that is one of many."""
