"""The table of `laminabench sensitivity`, for terminals and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from laminabench.render.format import number
from laminabench.render.model import Sheet
from laminabench.util.atomic import replacing
from laminabench.workflows.sensitivity.answer import Bar, Sensitivity

SOURCES_HINT = "-v prints where each range is from"
COLUMNS = ("input", ">low", ">here", ">high", ">gain, low", ">gain, high", "flips", "range")


def sheet_of(result: Sensitivity, where: str, *, sources: bool = True) -> Sheet:
    """Return a row for each input, the most influential first, with the sources of ranges in the notes."""
    first, second = result.systems
    title = f"{where}: {first} {result.deployments[first]} buys {result.base.gain:+.1%} tokens a dollar over "
    return Sheet(
        f"{title}{second} {result.deployments[second]}",
        COLUMNS,
        [_line(bar) for bar in result.bars],
        [*_notes(result), *(_sources(result) if sources else (SOURCES_HINT,))],
    )


def _line(bar: Bar) -> tuple[str, ...]:
    varied = bar.input
    if bar.break_even is None:
        low, high = "", ", ".join(varied.text(end.value) for end in bar.ends) or "-"
        gains = ("", ", ".join(f"{end.gain:+.1%}" for end in bar.ends) or "-")
    else:
        low, high = map(varied.text, varied.values)
        gains = (_gain(bar, varied.values[0]), _gain(bar, varied.values[1]))
    return varied.title, low, varied.text(varied.here), high, *gains, bar.flips, varied.kind


def _gain(bar: Bar, value: object) -> str:
    gain = bar.here if value == bar.input.here else next((e.gain for e in bar.ends if e.value == value), None)
    return "-" if gain is None else f"{gain:+.1%}"


def _notes(result: Sensitivity) -> Iterator[str]:
    tbt = ", ".join(f"{name} {number(ms)} ms" for name, ms in result.base.tbt_ms.items())
    yield f"TBT p50: {tbt}"
    if result.unsteady:
        yield (
            f"too few requests for a steady window of {' and '.join(result.unsteady)}: numbers are over the "
            "whole run, until the last batch is empty"
        )
    yield (
        "one input at a time goes to the ends of its range, and deployments stay, whatever they then cost; "
        "gain: tokens a dollar, less one; x: times the cost set's own speed; outside: of the range"
    )
    for bar in result.bars:
        for value, why in bar.impossible.items():
            yield f"{bar.input.title}, {bar.input.text(value)}: {why}"
        for end in bar.ends:
            if end.rejected:
                varied = bar.input
                yield f"{varied.title}, {varied.text(end.value)}: {end.rejected:,} requests no longer fit"


def _sources(result: Sensitivity) -> Iterator[str]:
    """Yield where each range is from."""
    groups: dict[tuple[str, str], list[str]] = {}
    for bar in result.bars:
        groups.setdefault((bar.input.kind, bar.input.source), []).append(bar.input.title)
    for (kind, source), titles in groups.items():
        yield f"{'; '.join(titles)} ({kind}): {source}"


def write_csv(result: Sensitivity, path: Path) -> None:
    """Write a row for each end of an input's range, with the input's break-even."""
    first, second = result.systems
    titles = ["input", "unit", "here", "value", "gain_per_dollar", "span"]
    titles += [f"{what}_{name}" for what in ("tokens_per_s", "tbt_ms") for name in (first, second)]
    titles += ["break_even", "searched_from", "searched_to", "kind", "source"]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(titles)
        for bar in result.bars:
            rows.writerows(_rows(bar, result.systems))


def _rows(bar: Bar, systems: tuple[str, str]) -> Iterator[list[str]]:
    varied, even = bar.input, bar.break_even
    flip = ["", "", ""]
    if even is not None:
        flip[0] = "" if even.value is None else f"{even.value:.4g}"
        flip[1:] = map(_short, even.searched or ("", ""))
    for end in bar.ends:
        of = [f"{each[name]:.5g}" for each in (end.tokens_per_s, end.tbt_ms) for name in systems]
        given = [varied.name, varied.unit, _short(varied.here), _short(end.value)]
        yield [*given, f"{end.gain:.5f}", f"{bar.span:.5f}", *of, *flip, varied.kind, varied.source]


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
