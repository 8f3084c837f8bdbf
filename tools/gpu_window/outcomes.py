"""Results of each step as files and for people: gpu.json and report.md, rewritten after every step."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_window.steps import STEPS
from laminabench.bench.frame import Report, Table, Text
from laminabench.util.atomic import replacing
from laminabench.util.json import json_safe
from laminabench.util.markdown import table
from laminabench.util.version import describe


@dataclass
class Outcome:
    """Result of a step: what it measured, or why it did not."""

    name: str
    took_s: float
    results: Mapping[str, Any] | None = None
    why: str = ""

    @property
    def word(self) -> str:
        """Result in one word: met and missed are of its target, if it has one."""
        if self.results is None:
            return "failed"
        return {True: "met", False: "missed", None: STEPS[self.name].done}[self.results.get("met")]


def facts_of(called: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "benchmark": "gpu",
        "device": called,
        "laminabench": describe(),
        "command": shlex.join(["laminabench", *sys.argv[1:]]),
        "steps": [
            {"name": one.name, "outcome": one.word, "took_s": one.took_s, "why": one.why} for one in outcomes
        ],
    }


def write_summary(place: Path, called: str, outcomes: Sequence[Outcome]) -> None:
    """Write the results after every step, so that they stay if the machine is lost."""
    write(place / "gpu.json", as_json(facts_of(called, outcomes)))
    lines = [f"# {called}", "", f"laminabench {describe()}.", ""]
    lines += table(("step", "what it tells", ">took", "outcome"), map(_cells, outcomes))
    for one in outcomes:
        if one.results is not None and one.results.get("rows"):
            lines += ["", f"## {one.name}", "", *_rows(one.results["rows"])]
    write(place / "report.md", "\n".join(lines))


def _rows(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the facts as a table: of a spread its median; what is nested deeper is in the JSON."""
    flat = [
        {
            key: value["median"] if isinstance(value, Mapping) and "median" in value else value
            for key, value in row.items()
        }
        for row in rows
    ]
    plain = (bool, int, float, str, type(None))
    titles = list(
        dict.fromkeys(key for row in flat for key, value in row.items() if isinstance(value, plain))
    )
    shown = ([_number(row.get(title)) for title in titles] for row in flat)
    return list(table(titles, shown))


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else str(value)


def _cells(one: Outcome) -> tuple[str, ...]:
    outcome = f"{one.word}: {one.why}" if one.why else one.word
    return one.name, STEPS[one.name].purpose, f"{one.took_s:.0f} s", outcome


def as_json(results: Mapping[str, Any]) -> str:
    return json.dumps(json_safe(results), indent=2, ensure_ascii=False, allow_nan=False)


def write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def report(place: Path, called: str, outcomes: Sequence[Outcome]) -> Report:
    failed = [one.name for one in outcomes if one.results is None]
    facts = facts_of(called, outcomes) | {"folder": str(place), "failed": failed}
    titles = ("<step", "<what it tells", "took", "<outcome")
    shown = Table(titles, [_cells(one) for one in outcomes])
    text: list[Text] = [called, shown, f"{place / 'report.md'} has all of it"]
    return Report(facts, text, failed=bool(failed))
