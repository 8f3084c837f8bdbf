"""Declarations of request fields: name, type, default, help, group and the systems that take it.

Flags, help pages, the manual, the Python API's keywords and the keys of files are made of these declarations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec
import msgspec.structs
from msgspec import Meta

from laminabench.util.errors import UserError
from laminabench.util.redact import Secret
from laminabench.util.suggest import nearest

Made = TypeVar("Made", bound="Request")

# The largest count of anything: each fits the 32 bits that tables have for it.
MAX_COUNT = 2**31 - 1
MAX_SEED = 2**63 - 1
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
Positive = Annotated[float, Meta(gt=0, le=1e300)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e9)]


# What the text of a field can reach besides the replay's own numbers. "files": it is looked up among known
# names or read as data; "code", "network", "credential" and "writes" act outside of the replay.
Reach = Literal["nothing", "files", "code", "network", "credential", "writes"]
ACTING: tuple[Reach, ...] = ("code", "network", "credential", "writes")


@dataclass(frozen=True, slots=True)
class Option:
    """Properties of a field beyond its name, type and default."""

    help: str
    takes: tuple[str, ...] = ()  # the kinds of systems, or of comparisons, that take it; empty: all
    group: str = "Options"
    common: bool = False  # shown by --help; --help-all shows all
    unit: str = ""  # of a number; the help's placeholder
    metavar: str | None = None  # the help's placeholder of a text
    also: str = ""  # other spellings of the flag, with dashes
    opposite: bool = False  # of a switch: --no-NAME is one too
    required: bool = False
    kind: Literal["", "file", "folder", "window"] = ""  # of a text: a window is written A:B, in seconds
    words: tuple[str, ...] = ()  # allowed in place of a number; one that ends in a colon is continued
    reach: Reach | None = None  # None only where the type has no free text, so that it reaches nothing

    @property
    def brief(self) -> str:
        """The first sentence of the help."""
        return f"{self.help.partition('; ')[0].partition('. ')[0].removesuffix('.')}."


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request, as declared."""

    name: str
    key: str  # in files, and with two dashes on the command line
    type: Any
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return f"--{self.key}"

    @property
    def switch(self) -> bool:
        """Whether it is a flag without a value."""
        return bool in (self.type, *get_args(self.type))

    @property
    def repeatable(self) -> bool:
        """Whether it has several values."""
        return isinstance(self.default, tuple)

    def alternatives(self) -> tuple[Any, ...]:
        """Return the members of a union, each with its limits, without None."""
        if hasattr(self.type, "__metadata__") or get_origin(self.type) is Literal:
            return (self.type,)
        return tuple(each for each in get_args(self.type) if each is not type(None)) or (self.type,)

    def acts(self, value: object) -> bool:
        """Return whether this value runs code, opens a connection, reveals a credential or writes a file."""
        # Policies and routers of laminabench have no colon in their names.
        reach = self.option.reach
        return reach in ACTING and (reach != "code" or ":" in str(value))

    def arguments(self, value: Any) -> Iterator[str]:
        """Yield the words of a command line that set this value."""
        if isinstance(value, bool):
            # A switch without an opposite is left out when it is off.
            yield from [self.flag] if value else [f"--no-{self.key}"] * self.option.opposite
        else:
            for one in value if isinstance(value, list | tuple) else (value,):
                yield from (self.flag, str(one))


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A declarative request: every field is `Annotated[type, Option(...)]`."""

    # Fields of other requests that mean the same here, by the attribute that has such a request.
    SHARED: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod
    def shared(cls) -> Iterator[tuple[str, type[Request], tuple[str, ...]]]:
        """Yield each attribute that has another request, with its type and the fields taken from it."""
        kinds = {each.name: each.type for each in msgspec.structs.fields(cls)}
        for attribute, names in cls.SHARED.items():
            yield attribute, kinds[attribute], names

    @classmethod
    def fields(cls) -> Mapping[str, Field]:
        """Return all declared fields by name."""
        return _fields(cls)

    def is_set(self, name: str) -> bool:
        """Return whether the field differs from its default. A switch that is off is not set."""
        value, field = getattr(self, name), self.fields()[name]
        differs: bool = value != field.default
        return differs and (value is not False or field.option.opposite)

    def set_fields(self) -> list[Field]:
        """Return all fields that are set."""
        return [field for name, field in self.fields().items() if self.is_set(name)]


@cache
def _fields(kind: type[Request]) -> Mapping[str, Field]:
    declared = {}
    for each in msgspec.structs.fields(kind):
        *limits, option = getattr(each.type, "__metadata__", [None])
        if isinstance(option, Option):
            # Limits of the whole type are merged into the same annotation.
            plain = Annotated[each.type.__origin__, *limits] if limits else each.type.__origin__
            declared[each.name] = Field(each.name, each.encode_name, plain, each.default, option)
    return declared


def convert(kind: type[Made], values: Mapping[str, Any], where: str) -> Made:
    """Return a request of these values by name, checked; a UserError names the key, and `where` it is."""
    keys = {name: field.key for name, field in kind.fields().items()}
    table = {keys.get(name, name): value for name, value in values.items()}
    try:
        return msgspec.convert(table, kind, dec_hook=_secret)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$.")
        key = re.split(r"[`\[]", place)[0]
        raise UserError(
            "replay-value", f"{where}: {key} = {table.get(key)!r}: {why.replace('`', '')}"
        ) from error


def _secret(kind: type, value: object) -> Any:
    # A nested request is one already.
    if isinstance(value, kind) and kind is not Secret:
        return value
    if kind is not Secret or not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return Secret(value)


def flag_key(name: str) -> str:
    """Return the key of a field's name, in files and on the command line."""
    return "out" if name == "directory" else name.replace("_", "-")


def require_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise a UserError for a name that no field has."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UserError(
                "replay-key-unknown", f"{where} has '{name}', which is not known; {nearest(name, known)}"
            )


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, str):
        # JSON escapes what TOML does, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
