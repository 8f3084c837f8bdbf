"""Requests made of Python keywords: the same fields as the command line's, with values of Python's types."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from laminabench.requests.fields import Field, Request, convert
from laminabench.requests.replay import GROUPS, OUTPUT
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

if TYPE_CHECKING:
    Called = TypeVar("Called", bound=Callable[..., Any])

Made = TypeVar("Made", bound=Request)
Name = str | os.PathLike[str]

# Fields that the API has as arguments, or as methods of the result.
NOT_KEYWORDS = {"trace", "jobs", "directory", "live", "rounds", "no_group", "slo_tbt_p99_ms", *GROUPS[OUTPUT]}


def keywords_of(kind: type[Request]) -> dict[str, Field]:
    """Return the fields of a request that are keywords, those that it shares with a replay included."""
    shared = {name: source.fields()[name] for _, source, names in kind.shared() for name in names}
    own = {name: field for name, field in kind.fields().items() if name not in NOT_KEYWORDS}
    return {**own, **shared}


def request_of(kind: type[Made], keywords: Mapping[str, Any], where: str, **others: object) -> Made:
    """Return the request of these keywords; a UserError names what is wrong in `where`."""
    known = keywords_of(kind)
    for name in keywords:
        if name not in known:
            raise UserError("replay-key-unknown", f"{where}: no choice '{name}'; {nearest(name, known)}")
    given = {name: plain(known[name], value) for name, value in keywords.items() if value is not None}
    for attribute, source, names in kind.shared():
        others[attribute] = convert(source, {name: given.pop(name) for name in names if name in given}, where)
    return convert(kind, {**given, **others}, where)


def plain(field: Field, value: Any) -> Any:
    """Convert a Python value to the request's type."""
    if field.repeatable:
        if isinstance(value, Mapping):
            return tuple(f"{name}={each}" for name, each in value.items())
        return tuple(map(os.fspath, [value] if isinstance(value, str | os.PathLike) else value))
    if isinstance(value, tuple | list):
        if field.option.kind == "window":
            return ":".join("" if end is None else str(end) for end in value)
        return ",".join(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # A numpy number, as in data frames.
    return value.item() if hasattr(value, "item") else value


def with_keywords(kind: type[Request]) -> Callable[[Called], Called]:
    """Give a function that takes `**keywords` a signature that names each: for help(), and for notebooks."""

    def decorated(function: Called) -> Called:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
            for name, field in keywords_of(kind).items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        return function

    return decorated
