"""The grid of a sweep: complete requests, checked before anything runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec.structs

from laminabench.catalog.deployment import Deployment, parse_deployments
from laminabench.cli.flags import changed, parsed
from laminabench.requests.fields import Field
from laminabench.requests.replay import BY_KEY, NOT_OF_MANY, ReplayRequest
from laminabench.systems.registry import prepare
from laminabench.traces.resolve import transforms_of
from laminabench.util.errors import UserError, require_text
from laminabench.util.suggest import nearest

if TYPE_CHECKING:
    from laminabench.systems.base import Prepared
    from laminabench.workflows.sweep.values import Varied

MOST_POINTS = 100_000
# Parts of the deployment, for which replay has no flags of their own.
COUNTS = {"model-workers": "model", "attention-workers": "attention"}
_ALIASES = {"attention": "attention-workers", "num-prompts": "num-requests"}
# Flags that a sweep sets itself, and why.
REFUSED = {
    **NOT_OF_MANY,
    "plot": "it draws one replay; --plot of the sweep draws all points",
    "resume": "a sweep resumes by itself when it is called again",
    "again": "a sweep resumes by itself when it is called again",
    "config": "give its flags to the sweep",
    "print-config": "it prints one replay's flags",
    "ray": "--ray of the sweep has its points replayed in a cluster",
    **dict.fromkeys(("json", "quiet", "verbose"), "it is how one replay is printed"),
}
_SWITCH = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


class TraceKey(NamedTuple):
    """The key of a loaded trace, which points share."""

    name: str
    offline: bool
    requests: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Point:
    """One replay of the grid."""

    varied: dict[str, object]
    request: ReplayRequest
    prepared: Prepared

    @property
    def trace(self) -> TraceKey:
        request, transforms = self.request, transforms_of(self.request)
        assert request.trace is not None
        return TraceKey(request.trace, bool(request.offline), transforms.prefix_needed(), transforms.seed)

    def __str__(self) -> str:
        return named(self.varied)


def named(varied: Mapping[str, Any]) -> str:
    """Return a point's text."""
    return ", ".join(f"{name}={value}" for name, value in varied.items())


class _Value(NamedTuple):
    """One value of a varied flag, with the field that it sets; or a count of workers."""

    column: str
    shown: Any  # in the table
    parameter: str | None
    value: Any


def points(flags: Sequence[str], varied: Sequence[Varied]) -> list[Point]:
    """Return all points, the first --vary slowest; a UserError names the wrong --vary or point."""
    given = _given(flags)
    base = changed(ReplayRequest(), given)
    if base.trace is None and not any(each.name == "trace" for each in varied):
        raise click.UsageError("Missing option '--trace'.")
    size = math.prod(len(each.values) for each in varied)
    if size > MOST_POINTS:
        raise UserError("sweep-too-large", f"the grid has {size:,} points; {MOST_POINTS:,} are the most")
    axes = [list(_axis(each, given)) for each in varied]
    for each, axis in zip(varied, axes, strict=True):
        again = next((value for value, times in Counter(of.shown for of in axis).items() if times > 1), None)
        if again is not None:
            raise UserError("sweep-vary-twice", f"--vary {each.text!r}: {again} is given twice")
    names = [axis[0].parameter or axis[0].column for axis in axes]
    twice = next((varied[i].name for i, name in enumerate(names) if name in names[:i]), None)
    if twice:
        raise UserError("sweep-vary-twice", f"--vary {twice} is given twice: give all its values in one")
    return [_point(base, values) for values in itertools.product(*axes)]


def _axis(varied: Varied, given: Mapping[str, Any]) -> Iterator[_Value]:
    """Yield the values of one --vary, parsed by replay's parser."""
    name = _ALIASES.get(varied.name, varied.name)
    if name in COUNTS:
        yield from (_Value(name, _count(value, varied), None, None) for value in varied.values)
        return
    field = _field(name, varied)
    if field.name in given and not field.repeatable:
        raise UserError(
            "sweep-given-and-varied",
            f"--{varied.name} is given and varied too (--vary {varied.text!r}): leave one of them out",
        )
    if name == "model" and all(value.isdecimal() for value in varied.values):
        raise UserError(
            "sweep-vary-value",
            f"--vary {varied.text!r}: --model is the model's name; its workers are model-workers",
        )
    for value in varied.values:
        try:
            parsed_value = _value(field, value)
        except click.UsageError as error:
            why = error.format_message().rstrip(".")
            raise UserError("sweep-vary-value", f"--vary {varied.text!r}: {why}") from error
        # A varied repeatable flag is added to the given ones.
        chosen = (*given.get(field.name, ()), *parsed_value) if field.repeatable else parsed_value
        shown = parsed_value if isinstance(parsed_value, bool | int | float | str) else value
        yield _Value(varied.name if name in _ALIASES else name, shown, field.name, chosen)


def _field(name: str, varied: Varied) -> Field:
    """Return replay's field of that name."""
    if name in REFUSED:
        raise UserError(
            "sweep-flag-refused", f"--vary {varied.text!r}: --{name} cannot be varied: {REFUSED[name]}"
        )
    if name not in BY_KEY:
        there = [*COUNTS, *(each for each in BY_KEY if each not in REFUSED)]
        raise UserError(
            "flag-unknown", f"--vary {varied.text!r}: replay has no flag --{name}; {nearest(name, there)}"
        )
    return BY_KEY[name]


def _value(field: Field, value: str) -> Any:
    """Parse a value as replay's parser does."""
    if not field.switch:
        return parsed([f"{field.flag}={value}"])[field.name]
    if value.lower() not in _SWITCH:
        raise click.UsageError(f"{field.flag} takes no value; write {field.key}=yes,no")
    return _SWITCH[value.lower()]


def _count(value: str, varied: Varied) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UserError("sweep-vary-value", f"--vary {varied.text!r}: {value!r} is no number of workers")
    return int(value)


def _given(flags: Sequence[str]) -> dict[str, object]:
    """Parse the flags of all points; a UserError for those that do not go with a sweep."""
    for word in flags:
        require_text(word)
        name = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and name in REFUSED and name != "ray":
            raise UserError("sweep-flag-refused", f"--{name} does not go with a sweep: {REFUSED[name]}")
    try:
        return parsed(list(flags))
    except click.NoSuchOption as error:
        here = click.get_current_context().command.params
        known = [*(spelling for each in here for spelling in each.opts), *(f"--{key}" for key in BY_KEY)]
        close = nearest(error.option_name, dict.fromkeys(each for each in known if each.startswith("--")))
        raise UserError(
            "flag-unknown", f"neither sweep nor replay has a flag {error.option_name}; {close}"
        ) from error


def _point(base: ReplayRequest, values: Sequence[_Value]) -> Point:
    chosen = {each.parameter: each.value for each in values if each.parameter is not None}
    counts = {COUNTS[each.column]: each.shown for each in values if each.parameter is None}
    varied = {each.column: each.shown for each in values}
    try:
        return _built(varied, changed(base, {**chosen, "no_out": True}), counts)
    except UserError as error:
        raise error.within(f"point {named(varied)}") from error


def _built(varied: dict[str, object], request: ReplayRequest, counts: Mapping[str, int]) -> Point:
    request.require_valid()
    prepared = prepare(request)
    if not counts:
        return Point(varied, request, prepared)
    # The deployment's name without prefill devices and the number of instances.
    named = prepared.request.deployment
    each = parse_deployments(named, None) if named else ()
    if not each or ("attention" in counts and not all(one.attention for one in each)):
        raise UserError(
            "deployment-no-attention",
            f"{prepared.deployment} has no attention workers to count; vary model-workers",
        )
    request = msgspec.structs.replace(
        request, deployment=",".join(str(_counted(one, counts)) for one in each)
    )
    return Point(varied, request, prepare(request))


def _counted(deployment: Deployment, counts: Mapping[str, int]) -> Deployment:
    parts = {part: replace(getattr(deployment, part), count=count) for part, count in counts.items()}
    return replace(deployment, **parts)
