"""The table of `laminabench sensitivity`, for a terminal and as a file of comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from laminabench.render.format import number
from laminabench.render.model import Sheet
from laminabench.util.atomic import replacing
from laminabench.workflows.sensitivity.answer import Bar, Sensitivity

COLUMNS = ("input", ">low", ">here", ">high", ">gain, low", ">gain, high", "flips", "range")


def sheet_of(found: Sensitivity, where: str, held: str) -> Sheet:
    """An input in a line, from the one that moves the answer most."""
    first, second = found.systems
    title = f"{where}: {first} {found.deployments[first]} buys {found.base.gain:+.1%} tokens a dollar over "
    return Sheet(
        f"{title}{second} {found.deployments[second]}",
        COLUMNS,
        [_line(bar) for bar in found.bars],
        (held, *_notes(found)),
    )


def _line(bar: Bar) -> tuple[str, ...]:
    asked = bar.input
    if bar.break_even is None:
        low, high = "", ", ".join(asked.said(end.value) for end in bar.ends) or "-"
        gains = ("", ", ".join(f"{end.gain:+.1%}" for end in bar.ends) or "-")
    else:
        low, high = map(asked.said, asked.values)
        gains = (_gain(bar, asked.values[0]), _gain(bar, asked.values[1]))
    return asked.title, low, asked.said(asked.here), high, *gains, bar.flips, asked.kind


def _gain(bar: Bar, value: object) -> str:
    gain = bar.here if value == bar.input.here else next((e.gain for e in bar.ends if e.value == value), None)
    return "-" if gain is None else f"{gain:+.1%}"


def _notes(found: Sensitivity) -> Iterator[str]:
    tbt = ", ".join(f"{name} {number(ms)} ms" for name, ms in found.base.tbt_ms.items())
    yield f"TBT p50: {tbt}"
    if found.unsteady:
        yield (
            f"too few requests for a steady window of {' and '.join(found.unsteady)}: numbers are over the "
            "whole run, until the last batch is empty"
        )
    yield (
        "one input at a time goes to the ends of its range, and deployments stay, whatever they then cost; "
        "gain: tokens a dollar, less one; x: times the cost set's own speed; outside: of the range"
    )
    said: dict[tuple[str, str], list[str]] = {}
    for bar in found.bars:
        said.setdefault((bar.input.kind, bar.input.source), []).append(bar.input.title)
    for (kind, source), titles in said.items():
        yield f"{'; '.join(titles)} ({kind}): {source}"
    for bar in found.bars:
        for value, why in bar.impossible.items():
            yield f"{bar.input.title}, {bar.input.said(value)}: {why}"
        for end in bar.ends:
            if end.rejected:
                asked = bar.input
                yield f"{asked.title}, {asked.said(end.value)}: {end.rejected:,} requests no longer fit"


def write_csv(found: Sensitivity, path: Path) -> None:
    """An end of an input's range in a row, with what the input's break-even is."""
    first, second = found.systems
    titles = ["input", "unit", "here", "value", "gain_per_dollar", "span"]
    titles += [f"{what}_{name}" for what in ("tokens_per_s", "tbt_ms") for name in (first, second)]
    titles += ["break_even", "searched_from", "searched_to", "kind", "source"]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(titles)
        for bar in found.bars:
            rows.writerows(_rows(bar, found.systems))


def _rows(bar: Bar, systems: tuple[str, str]) -> Iterator[list[str]]:
    asked, even = bar.input, bar.break_even
    flip = ["", "", ""]
    if even is not None:
        flip[0] = "" if even.value is None else f"{even.value:.4g}"
        flip[1:] = map(_short, even.searched or ("", ""))
    for end in bar.ends:
        of = [f"{each[name]:.5g}" for each in (end.tokens_per_s, end.tbt_ms) for name in systems]
        given = [asked.name, asked.unit, _short(asked.here), _short(end.value)]
        yield [*given, f"{end.gain:.5f}", f"{bar.span:.5f}", *of, *flip, asked.kind, asked.source]


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
