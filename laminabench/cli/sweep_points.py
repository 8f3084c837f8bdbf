"""The grid of a sweep: each point a whole replay, read by replay's own parser before anything runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from laminabench.cli.output import Output
from laminabench.cli.replay import Call, replay
from laminabench.cli.replay_flags import NOT_OF_MANY, flags
from laminabench.cli.traces.options import TraceOptions
from laminabench.errors import UserError
from laminabench.nearest import nearest
from laminabench.traces.transform import Transforms

if TYPE_CHECKING:
    from laminabench.cli.replay_backend import Replaying
    from laminabench.sweeps.values import Varied

MOST_POINTS = 100_000
# Parts of the deployment, which has no flag of its own for them.
COUNTS = {"model-workers": "model", "attention-workers": "attention"}
_ALIASES = {"attention": "attention-workers"}
REFUSED = {
    **NOT_OF_MANY,
    "plot": "it draws one replay; --plot of the sweep draws all points",
    "resume": "a sweep goes on by itself when it is called again",
    "ray": "--ray of the sweep has its points replayed in a cluster",
}
QUIET = Output(as_json=False, quiet=True, verbose=False)
# Parameters of the command that are not Call's.
_NOT_FLAGS = {field.name for field in fields(Transforms)} | {"offline", "as_json", "quiet", "verbose"}
_SWITCH = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


class TraceKey(NamedTuple):
    """What `TraceOptions.whole` depends on: points that share it share a trace."""

    name: str
    offline: bool
    requests: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Point:
    """One replay of the grid."""

    varied: dict[str, Any]
    call: Call
    backend: Replaying

    @property
    def trace(self) -> TraceKey:
        options = self.call.options
        transforms = options.transforms
        return TraceKey(
            self.call.flags["trace"], options.offline, transforms.prefix_needed(), transforms.seed
        )

    def __str__(self) -> str:
        return named(self.varied)


def named(varied: Mapping[str, Any]) -> str:
    """A point in a sentence."""
    return ", ".join(f"{name}={value}" for name, value in varied.items())


class _Value(NamedTuple):
    """One value of a flag that is varied: the parameter it sets, and to what; or a count of workers."""

    column: str
    told: Any  # as the table has it
    parameter: str | None
    value: Any


def points(flags: Sequence[str], varied: Sequence[Varied]) -> list[Point]:
    """All points, the first --vary slowest; a UserError that says which --vary, or which point, is wrong."""
    base = _parsed(flags)
    _require_sane(base)
    if base.params["trace"] is None and not any(each.name == "trace" for each in varied):
        raise click.UsageError("Missing option '--trace'.")
    size = math.prod(len(each.values) for each in varied)
    if size > MOST_POINTS:
        raise UserError("sweep-too-large", f"the grid has {size:,} points; {MOST_POINTS:,} are the most")
    axes = [list(_axis(each, flags, base)) for each in varied]
    for each, axis in zip(varied, axes, strict=True):
        again = next((value for value, times in Counter(of.told for of in axis).items() if times > 1), None)
        if again is not None:
            raise UserError("sweep-vary-twice", f"--vary {each.said!r}: {again} is said twice")
    names = [axis[0].parameter or axis[0].column for axis in axes]
    twice = next((varied[i].name for i, name in enumerate(names) if name in names[:i]), None)
    if twice:
        raise UserError("sweep-vary-twice", f"--vary {twice} is said twice: give all its values in one")
    return [_point(base, values) for values in itertools.product(*axes)]


def _axis(varied: Varied, flags: Sequence[str], base: click.Context) -> Iterator[_Value]:
    """The values of one --vary, each as replay's parser reads it."""
    name = _ALIASES.get(varied.name, varied.name)
    if name in COUNTS:
        yield from (_Value(name, _count(value, varied), None, None) for value in varied.values)
        return
    option = _option(name, varied)
    assert option.name is not None
    if _given(base, option.name) and not option.multiple:
        raise UserError(
            "sweep-given-and-varied",
            f"--{name} is given and varied too (--vary {varied.said!r}): leave one of them out",
        )
    if name == "model" and all(value.isdecimal() for value in varied.values):
        raise UserError(
            "sweep-vary-value",
            f"--vary {varied.said!r}: --model is the model's name; its workers are model-workers",
        )
    for value in varied.values:
        try:
            context = _parsed([*flags, *_arguments(option, name, value)])
        except click.UsageError as error:
            why = error.format_message().rstrip(".")
            raise UserError("sweep-vary-value", f"--vary {varied.said!r}: {why}") from error
        parsed = context.params[option.name]
        told = parsed if isinstance(parsed, bool | int | float | str) else value
        yield _Value(name, told, option.name, parsed)


def _option(name: str, varied: Varied) -> click.Option:
    """Replay's flag of that name."""
    if name in REFUSED:
        raise UserError(
            "sweep-flag-refused", f"--vary {varied.said!r}: --{name} cannot be varied: {REFUSED[name]}"
        )
    known = flags()
    if name not in known:
        there = [*COUNTS, *(each for each in known if each not in REFUSED)]
        raise UserError(
            "flag-unknown", f"--vary {varied.said!r}: replay has no flag --{name}; {nearest(name, there)}"
        )
    return known[name]


def _arguments(option: click.Option, name: str, value: str) -> list[str]:
    """As one would write it."""
    if not option.is_flag:
        return [f"--{name}={value}"]
    if value.lower() not in _SWITCH:
        raise click.UsageError(f"--{name} takes no value; write {name}=yes,no")
    if _SWITCH[value.lower()]:
        return [f"--{name}"]
    return option.secondary_opts[:1]


def _count(value: str, varied: Varied) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UserError("sweep-vary-value", f"--vary {varied.said!r}: {value!r} is no number of workers")
    return int(value)


def _parsed(arguments: Sequence[str]) -> click.Context:
    """By replay's parser; its errors are about flags as a person wrote them."""
    try:
        return replay.make_context("laminabench replay", list(arguments))
    except click.NoSuchOption as error:
        here = click.get_current_context().command.params
        known = [spelling for option in [*here, *replay.params] for spelling in option.opts]
        close = nearest(error.option_name, dict.fromkeys(each for each in known if each.startswith("--")))
        raise UserError(
            "flag-unknown", f"neither sweep nor replay has a flag {error.option_name}; {close}"
        ) from error


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _require_sane(base: click.Context) -> None:
    """A UserError for flags that say nothing about a sweep."""
    for option in base.command.params:
        assert option.name is not None
        name = option.opts[0].removeprefix("--")
        if name in REFUSED and name != "ray" and _given(base, option.name):
            raise UserError("sweep-flag-refused", f"--{name} does not go with a sweep: {REFUSED[name]}")


def _point(base: click.Context, values: Sequence[_Value]) -> Point:
    parameters = dict(base.params)
    given = {name for name in parameters if _given(base, name)}
    counts = {}
    for each in values:
        if each.parameter is None:
            counts[COUNTS[each.column]] = each.told
        else:
            parameters[each.parameter] = each.value
            given.add(each.parameter)
    varied = {each.column: each.told for each in values}
    try:
        return _built(varied, parameters, given, counts)
    except (UserError, click.UsageError) as error:
        why = error.format_message().rstrip(".") if isinstance(error, click.UsageError) else error
        raise UserError("sweep-point-invalid", f"point {named(varied)}: {why}") from error


def _built(
    varied: dict[str, Any], parameters: dict[str, Any], given: set[str], counts: Mapping[str, int]
) -> Point:
    flags = {name: value for name, value in parameters.items() if name not in _NOT_FLAGS}
    options = TraceOptions.of(parameters)

    def made(deployment: str | None) -> Point:
        chosen = {**flags, "deployment": deployment}
        call = Call(out=QUIET, workload=options, given=given, parameters=parameters, **chosen)
        return Point(varied, call, call.backend())

    point = made(flags["deployment"])
    if not counts:
        return point
    deployment = point.backend.setup.deployment
    if "attention" in counts and deployment.attention is None:
        raise UserError(
            "deployment-no-attention", f"{deployment} has no attention workers to count; vary model-workers"
        )
    parts = {part: replace(getattr(deployment, part), count=count) for part, count in counts.items()}
    return made(str(replace(deployment, **parts)))
