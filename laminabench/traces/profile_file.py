"""Profiles as TOML files: written by these few lines, read by tomllib, checked key by key."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from dataclasses import asdict, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from laminabench.atomic import replacing
from laminabench.errors import UserError
from laminabench.traces import catalogue
from laminabench.traces.compare import Comparison
from laminabench.traces.profile import (
    METHODS,
    Arrivals,
    FittedTo,
    Profile,
    Quantiles,
    Reuse,
)
from laminabench.traces.table import MAX_REQUESTS, MAX_SPAN_S, MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A profile is committed and carried in the wheel.
MAX_BYTES = 20_000
_LINE = 110
# No bin of time is that uneven, and the generator adds this many millionths of a gap up in 64 bits.
_MAX_GAP = 1e7


def read_profile(path: Path) -> Profile:
    """The profile in this file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("profile-unreadable", f"cannot read profile {path}: {error}") from error
    return parse_profile(text, str(path))


def named_profile(name: str) -> Profile:
    """The committed profile of a trace of the catalogue."""
    return read_profile(catalogue.find(name).profile_path)


def write_profile(profile: Profile, path: Path) -> None:
    """Write the file whole or not at all."""
    data = profile_text(profile).encode()
    if len(data) >= MAX_BYTES:
        raise UserError(
            "profile-too-large",
            f"cannot write {path}: the profile has {len(data):,} bytes and must stay under {MAX_BYTES:,}; "
            "shorten its note",
        )
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def profile_sha256(profile: Profile) -> str:
    """The sum of the file that `write_profile` writes: it names the profile in the manifest of a run."""
    return hashlib.sha256(profile_text(profile).encode()).hexdigest()


def profile_text(profile: Profile) -> str:
    """The profile as TOML; the same profile gives the same text."""
    top = asdict(profile)
    sections = {key: top.pop(key) for key in list(top) if isinstance(top[key], dict)}
    out = [_pair(key, value) for key, value in top.items() if value is not None]
    for name, section in sections.items():
        nested = {key: section.pop(key) for key in list(section) if isinstance(section[key], dict)}
        out += ["", f"[{name}]", *(_pair(key, value) for key, value in section.items() if value is not None)]
        for key, table in nested.items():
            out += ["", f"[{name}.{key}]", *(_pair(inner, value) for inner, value in table.items())]
    return "\n".join(out) + "\n"


def _pair(key: str, value: object) -> str:
    if isinstance(value, str):
        # TOML's strings are JSON's, but for DEL and lone surrogates (bytes of a file name that is not UTF-8).
        encodable = value.encode("utf-8", "backslashreplace").decode()
        return f"{key} = {json.dumps(encodable, ensure_ascii=False)}".replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        if value and isinstance(value[0], tuple):
            return "\n".join([f"{key} = [", *(f"  [{', '.join(map(_number, row))}]," for row in value), "]"])
        return _wrapped(key, [_number(item) for item in value])
    return f"{key} = {_number(value)}"


def _wrapped(key: str, items: Sequence[str]) -> str:
    lines = [f"{key} = ["]
    for item in items:
        if len(lines[-1]) + len(item) + 2 > _LINE:
            lines.append(" ")
        lines[-1] += ("" if lines[-1].endswith("[") else " ") + item + ","
    return "\n".join(lines).removesuffix(",") + "]"


def _number(value: object) -> str:
    # Seven digits are more than any of the tables knows, and shorter than repr.
    if isinstance(value, float):
        short = f"{value:.7g}"
        return short if any(mark in short for mark in ".e") else short + ".0"
    return str(value)


def parse_profile(text: str, origin: str) -> Profile:
    """The profile in this text; `origin` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError("profile-not-toml", f"{origin}: not a TOML file ({error})") from error
    top = _Section(origin, "", table)
    method = next((each for each in METHODS if each == top.text("method")), None)
    if method is None:
        top.fail("method", f"must be one of {', '.join(METHODS)}")
    fitted_to = top.section("fitted_to")
    profile = Profile(
        name=top.text("name"),
        method=method,
        note=top.text("note"),
        requests=top.count("requests", highest=MAX_REQUESTS),
        fitted_to=FittedTo(fitted_to.text("source"), fitted_to.text("sha256"), fitted_to.count("rows")),
        prompt=top.section("prompt").quantiles(1, MAX_TOKENS),
        output=top.section("output").quantiles(1, MAX_TOKENS),
        copula=_copula(top),
        arrivals=_arrivals(top.section("arrivals")) if "arrivals" in top else None,
        reuse=_reuse(top.section("reuse")) if "reuse" in top else None,
        block_tokens=top.count("block_tokens", highest=MAX_TOKENS),
        errors=_errors(top.section("errors")) if "errors" in top else None,
    )
    fitted_to.done()
    top.done()
    return profile


class _Section:
    """A TOML table that knows its place, hands out checked values and notices keys nobody asked for."""

    def __init__(self, origin: str, place: str, table: dict[Any, Any]) -> None:
        self._origin, self._place, self._table = origin, place, table
        self._used: set[object] = set()

    def fail(self, key: object, problem: str) -> NoReturn:
        raise UserError("profile-bad-key", f"{self._origin}: key '{self._place}{key}' {problem}")

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def _take(self, key: object) -> object:
        self._used.add(key)
        if key not in self._table:
            self.fail(key, "is missing")
        return self._table[key]

    def text(self, key: str) -> str:
        value = self._take(key)
        return value if isinstance(value, str) else self.fail(key, "must be a string")

    def number(self, key: str, lowest: float = 0, highest: float = math.inf) -> float:
        value = self._take(key)
        if not _is_number(value) or not lowest <= value <= highest:
            self.fail(key, f"must be a number between {lowest:g} and {highest:g}")
        return float(value)

    def count(self, key: str, lowest: int = 1, highest: int = 2**63) -> int:
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            self.fail(key, f"must be a whole number from {lowest} to {highest:,}")
        return value

    def numbers(self, key: object, lowest: float = 0, highest: float = math.inf) -> tuple[float, ...]:
        values = self._take(key)
        if not isinstance(values, list) or len(values) < 1:
            self.fail(key, "must be a list of numbers")
        if not all(_is_number(value) and lowest <= value <= highest for value in values):
            self.fail(key, f"must hold only numbers between {lowest:g} and {highest:g}")
        return tuple(map(float, values))

    def rows(self, key: str) -> tuple[tuple[float, ...], ...]:
        rows = self._take(key)
        if not isinstance(rows, list) or not rows:
            self.fail(key, "must be a list of lists of numbers")
        inner = _Section(self._origin, f"{self._place}{key}.", dict(enumerate(rows)))
        return tuple(inner.numbers(row) for row in range(len(rows)))

    def quantiles(self, lowest: float, highest: float) -> Quantiles:
        ranks, values = self.numbers("ranks", highest=1), self.numbers("values", lowest, highest)
        if len(ranks) != len(values) or len(ranks) < 2:
            self.fail("values", f"must be as many as the ranks ({len(ranks)}), and two at least")
        if ranks[0] != 0 or ranks[-1] != 1 or any(a >= b for a, b in pairwise(ranks)):
            self.fail("ranks", "must rise from 0 to 1")
        if any(a > b for a, b in pairwise(values)):
            self.fail("values", "must not fall")
        self.done()
        return Quantiles(ranks, values)

    def section(self, key: str) -> _Section:
        value = self._take(key)
        if not isinstance(value, dict):
            self.fail(key, "must be a table")
        return _Section(self._origin, f"{self._place}{key}.", value)

    def done(self) -> None:
        for key in self._table:
            if key not in self._used:
                self.fail(str(key), "is not known; is it misspelt?")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _copula(top: _Section) -> tuple[tuple[int, ...], ...]:
    rows = top.rows("copula")
    if any(len(row) != len(rows) for row in rows):
        top.fail("copula", "must have as many columns as rows")
    if any(value != int(value) for row in rows for value in row) or any(sum(row) == 0 for row in rows):
        top.fail("copula", "must hold whole numbers, and a request in every row")
    return tuple(tuple(map(int, row)) for row in rows)


def _arrivals(section: _Section) -> Arrivals:
    counts = section.numbers("counts", highest=MAX_REQUESTS)
    if any(value != int(value) for value in counts) or sum(counts) < 1:
        section.fail("counts", "must hold whole numbers, and one request at least")
    arrivals = Arrivals(
        bin_s=section.number("bin_s", 1e-6, MAX_SPAN_S),
        duration_s=section.number("duration_s", highest=MAX_SPAN_S),
        counts=tuple(map(int, counts)),
        gaps=section.section("gaps").quantiles(0, _MAX_GAP),
    )
    last_starts_s = arrivals.bin_s * (len(counts) - 1)
    if not last_starts_s <= arrivals.duration_s <= last_starts_s + arrivals.bin_s:
        section.fail("duration_s", f"must lie in the last of the {len(counts)} bins")
    section.done()
    return arrivals


def _reuse(section: _Section) -> Reuse:
    reuse = Reuse(
        root_blocks=section.count("root_blocks", lowest=0),
        continues=section.numbers("continues", highest=1),
        branches=section.numbers("branches", highest=1),
        continue_fresh=section.rows("continue_fresh"),
        branch_fresh=section.rows("branch_fresh"),
        continue_lag_s=section.section("continue_lag_s").quantiles(0, MAX_SPAN_S),
        branch_lag_s=section.section("branch_lag_s").quantiles(0, MAX_SPAN_S),
        rejoins=section.number("rejoins", highest=1),
    )
    classes = len(reuse.continues)
    for key in ("branches", "continue_fresh", "branch_fresh"):
        if len(getattr(reuse, key)) != classes:
            section.fail(key, f"must have {classes} entries, one a class, as 'continues' has")
    section.done()
    return reuse


def _errors(section: _Section) -> Comparison:
    whole = {"distinct_blocks_real", "distinct_blocks_synthetic"}
    values: dict[str, Any] = {}
    for field in fields(Comparison):
        if field.name in section:
            values[field.name] = (
                section.count(field.name) if field.name in whole else section.number(field.name, -math.inf)
            )
    section.done()
    try:
        return Comparison(**values)
    except TypeError as error:
        section.fail("", f"is incomplete ({error})")
