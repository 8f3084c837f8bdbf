"""A profile: what is known of a trace, as a TOML file small enough to commit, enough to make its like."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from laminabench.traces import catalogue
from laminabench.traces.describe import Comparison
from laminabench.traces.table import MAX_REQUESTS, MAX_SPAN_S, MAX_TOKENS
from laminabench.util import safe_parse
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from laminabench.traces.table import Float64

# fitted: from the rows of the real file. moment-matched: another profile's shape with published means.
# digitised: from published plots. parametric: from published statements.
Method = Literal["fitted", "moment-matched", "digitised", "parametric"]


class Quantiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution as a table: `values[i]` at rank `ranks[i]`, straight lines in between."""

    ranks: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, ranks: Float64) -> Float64:
        """Return the values at these ranks in [0, 1).

        Not np.interp: a compiler may fuse its multiplication and addition on one machine and not on another.
        """
        knots, values = np.array(self.ranks), np.array(self.values)
        slopes = np.diff(values) / np.diff(knots)
        below = np.minimum(np.searchsorted(knots, ranks, side="right") - 1, len(slopes) - 1)
        above_knot: Float64 = ranks - knots[below]
        above_knot *= slopes[below]
        above_knot += values[below]
        return above_knot

    def mean(self) -> float:
        values = np.array(self.values)
        return float((np.diff(self.ranks) * (values[1:] + values[:-1])).sum() / 2)

    def scaled(self, factor: float) -> Quantiles:
        return Quantiles(self.ranks, tuple(value * factor for value in self.values))


class FittedTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    sha256: str
    rows: int


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests in each of equal bins of time, and how uneven they are inside a bin."""

    bin_s: float
    # The last bin ends here, with the trace.
    duration_s: float
    counts: tuple[int, ...]
    # Gaps between arrivals over the mean gap of their bin.
    gaps: Quantiles


class Reuse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reuse of the beginnings of earlier prompts, by size of the prompt.

    A request starts afresh (it shares `root_blocks` with all), continues an earlier request (all full
    blocks of its prompt, and each request is continued once: the next turn of a conversation), or branches
    off the middle of one. Class c of C holds the prompts between ranks c/C and (c+1)/C.
    """

    root_blocks: int
    continues: tuple[float, ...]
    branches: tuple[float, ...]
    # Per class, the share of a request's blocks that are new, at equally spaced ranks from 0 to 1.
    continue_fresh: tuple[tuple[float, ...], ...]
    branch_fresh: tuple[tuple[float, ...], ...]
    # Seconds since the request that is continued or branched from.
    continue_lag_s: Quantiles
    branch_lag_s: Quantiles
    # Share of branches that leave where others left before.
    rejoins: float


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the generator needs, and how well it did when it was fitted."""

    name: str
    method: Method
    note: str
    requests: int
    fitted_to: FittedTo
    prompt: Quantiles
    output: Quantiles
    # copula[i][j]: requests whose prompt rank is in the i-th and output rank in the j-th of equal parts.
    copula: tuple[tuple[int, ...], ...]
    arrivals: Arrivals | None = None
    reuse: Reuse | None = None
    block_tokens: int = 512
    errors: Comparison | None = None


# A profile is committed and carried in the wheel.
MAX_BYTES = 20_000
_LINE = 110
# No bin of time is that uneven, and the generator adds this many millionths of a gap up in 64 bits.
_MAX_GAP = 1e7


def read_profile(path: Path) -> Profile:
    try:
        text = safe_parse.text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("profile-unreadable", f"cannot read profile {path}: {error}") from error
    return parse_profile(text, str(path))


def named_profile(name: str) -> Profile:
    return read_profile(catalogue.find(name).profile_path)


def write_profile(profile: Profile, path: Path) -> None:
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
    """Return the sum of the file that `write_profile` writes, which names the profile in a manifest."""
    return hashlib.sha256(profile_text(profile).encode()).hexdigest()


def profile_text(profile: Profile) -> str:
    """Return the profile as TOML; the same profile gives the same text."""
    top = msgspec.to_builtins(profile)
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
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
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
    """Return the profile in this text; `origin` names it in errors."""
    try:
        table = safe_parse.toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError("profile-not-toml", f"{origin}: not a TOML file ({error})") from error
    try:
        profile = msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise UserError("profile-bad-key", f"{origin}: key {_named(str(error))}") from error
    for key, problem in _problems(profile):
        raise UserError("profile-bad-key", f"{origin}: key '{key}' {problem}")
    return profile


# How msgspec ends its messages: the place of the value, or of the table that lacks a key.
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*?)`")


def _named(message: str) -> str:
    """Return msgspec's message with the key before the problem."""
    place = _PLACE.search(message)
    path = re.sub(r"\[.*?\]", "", place[1]) if place else ""
    problem = f"has no such value: {_PLACE.sub('', message)}"
    if field := _FIELD.match(message):
        path = f"{path}.{field[2]}".removeprefix(".")
        problem = "is missing" if field[1].startswith("missing") else "is not known; is it misspelt?"
    return f"'{path}' {problem}"


def _problems(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield each key whose value breaks a rule that types cannot express, and why."""
    yield from _outside("requests", [profile.requests], 1, MAX_REQUESTS)
    yield from _outside("block_tokens", [profile.block_tokens], 1, MAX_TOKENS)
    yield from _outside("fitted_to.rows", [profile.fitted_to.rows], 1)
    yield from _quantile_problems("prompt", profile.prompt, 1, MAX_TOKENS)
    yield from _quantile_problems("output", profile.output, 1, MAX_TOKENS)
    if any(len(row) != len(profile.copula) for row in profile.copula) or not profile.copula:
        yield "copula", "must have as many columns as rows"
    if any(min(row) < 0 or sum(row) == 0 for row in profile.copula):
        yield "copula", "must hold whole numbers, and a request in every row"
    if profile.arrivals:
        yield from _arrival_problems(profile.arrivals)
    if profile.reuse:
        yield from _reuse_problems(profile.reuse)


def _arrival_problems(arrivals: Arrivals) -> Iterator[tuple[str, str]]:
    yield from _outside("arrivals.counts", arrivals.counts, 0, MAX_REQUESTS)
    if sum(arrivals.counts) < 1:
        yield "arrivals.counts", "must hold one request at least"
    yield from _outside("arrivals.bin_s", [arrivals.bin_s], 1e-6, MAX_SPAN_S)
    yield from _outside("arrivals.duration_s", [arrivals.duration_s], 0, MAX_SPAN_S)
    yield from _quantile_problems("arrivals.gaps", arrivals.gaps, 0, _MAX_GAP)
    last_starts_s = arrivals.bin_s * (len(arrivals.counts) - 1)
    if not last_starts_s <= arrivals.duration_s <= last_starts_s + arrivals.bin_s:
        yield "arrivals.duration_s", f"must lie in the last of the {len(arrivals.counts)} bins"


def _reuse_problems(reuse: Reuse) -> Iterator[tuple[str, str]]:
    yield from _outside("reuse.root_blocks", [reuse.root_blocks], 0)
    yield from _outside("reuse.rejoins", [reuse.rejoins], 0, 1)
    for name in ("continues", "branches"):
        yield from _outside(f"reuse.{name}", getattr(reuse, name), 0, 1)
    for name in ("continue_fresh", "branch_fresh"):
        yield from _outside(f"reuse.{name}", chain(*getattr(reuse, name)))
        if not all(getattr(reuse, name)):
            yield f"reuse.{name}", "must hold lists of numbers"
    for name in ("continue_lag_s", "branch_lag_s"):
        yield from _quantile_problems(f"reuse.{name}", getattr(reuse, name), 0, MAX_SPAN_S)
    for name in ("branches", "continue_fresh", "branch_fresh"):
        if len(getattr(reuse, name)) != len(reuse.continues):
            yield (
                f"reuse.{name}",
                f"must have {len(reuse.continues)} entries, one a class, as continues has",
            )


def _quantile_problems(
    key: str, table: Quantiles, lowest: float, highest: float
) -> Iterator[tuple[str, str]]:
    ranks, values = table.ranks, table.values
    yield from _outside(f"{key}.values", values, lowest, highest)
    if len(ranks) != len(values) or len(ranks) < 2:
        yield f"{key}.values", f"must be as many as the ranks ({len(ranks)}), and two at least"
    elif ranks[0] != 0 or ranks[-1] != 1 or not all(a < b for a, b in pairwise(ranks)):
        yield f"{key}.ranks", "must rise from 0 to 1"
    elif any(a > b for a, b in pairwise(values)):
        yield f"{key}.values", "must not fall"


def _outside(
    key: str, values: Iterable[float], lowest: float = 0, highest: float = math.inf
) -> Iterator[tuple[str, str]]:
    if not all(lowest <= value <= highest and math.isfinite(value) for value in values):
        yield key, f"must be between {lowest:g} and {highest:g}"
