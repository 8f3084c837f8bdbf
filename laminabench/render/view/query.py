"""The query box: words to search for, and conditions such as `tbt_ms.p99<80 system=lamina`."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from laminabench.analysis.metrics_table import COMPARED
from laminabench.render.format import short
from laminabench.render.view.facts import BRIEFLY, Facts, Value
from laminabench.render.view.index import Index, Row
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

MOST_CHARACTERS = 2_000
# Aliases of fields.
ALIASES = {
    "trace": "trace.name",
    "model": "model.name",
    "deployment": "deployment.name",
    "mode": "workload.mode",
    "commit": "laminabench.commit",
    "version": "laminabench.version",
    "partial": "partial.why",
    **{name: metric.key for name, metric in COMPARED.items() if metric.key},
}
_TERM = re.compile(
    r"""\s*(?:
        (?P<name>[A-Za-z_][\w.-]*?)\s*(?P<sign><=|>=|!=|=|<|>)\s*(?P<value>"[^"]*"|[^\s"]\S*)?
      | (?P<word>"[^"]*"|\S+)
    )""",
    re.VERBOSE,
)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one field; a Run without the field meets only `!=`."""

    name: str
    sign: str
    value: str

    def met(self, facts: Facts) -> bool:
        """Return whether these facts meet the condition."""
        there = facts.get(self.name)
        if self.sign == "=":
            return there is not None and _same(there, self.value)
        if self.sign == "!=":
            return there is None or not _same(there, self.value)
        order = _ORDERS[self.sign]
        if isinstance(there, str):
            return order(there, self.value)
        number = _number(self.value)
        return there is not None and number is not None and order(there, number)


@dataclass(frozen=True, slots=True)
class Query:
    """The words and conditions that all shown Runs meet."""

    words: tuple[str, ...]
    conditions: tuple[Condition, ...]

    @property
    def needs_all(self) -> bool:
        """Whether the query needs fields beyond those of the initial table."""
        return bool(self.words) or any(each.name not in BRIEFLY for each in self.conditions)

    def matching(self, rows: Iterable[Row]) -> list[Row]:
        """Return the matching Runs; a damaged one has no fields, and matches by words only."""
        return [
            row
            for row in rows
            if all(each.met(row.facts) for each in self.conditions)
            and (not self.words or row.has(self.words))
        ]


def parsed(text: str, index: Index) -> Query:
    """Parse a query; the UserError names the part that is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise _wrong(f"a query has at most {MOST_CHARACTERS:,} characters")
    words, conditions, at = [], [], 0
    text = text.strip()
    while at < len(text):
        match = _TERM.match(text, at)
        assert match is not None
        at = match.end()
        if word := match["word"]:
            words.append(word.strip('"').lower())
        else:
            conditions.append(_condition(match["name"], match["sign"], match["value"], index))
    return Query(tuple(filter(None, words)), tuple(conditions))


def _condition(name: str, sign: str, value: str | None, index: Index) -> Condition:
    if value is None:
        raise _wrong(f"{name}{sign} lacks a value, as in {name}{sign}80")
    value = value.strip('"')
    field = field_of(name, index)
    if sign in _ORDERS and _number(value) is None and not _is_text(field, index):
        raise _wrong(f"{name}{sign}{value}: '{value}' is not a number")
    return Condition(field, sign, value)


def _is_text(field: str, index: Index) -> bool:
    rows = index.rows(complete=field not in BRIEFLY)
    return any(isinstance(row.facts.get(field), str) for row in rows)


def field_of(name: str, index: Index) -> str:
    """Resolve a field by its name, its alias or the unambiguous end of its name."""
    meant = ALIASES.get(name, name)
    if meant in BRIEFLY:
        return meant
    columns = index.columns()
    if meant in columns:
        return meant
    ends = [column for column in columns if column.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise _wrong(f"'{name}' may be any of {', '.join(sorted(ends)[:6])}: write one of them")
    raise _wrong(f"no Run here has a field '{name}'; {nearest(name, [*columns, *ALIASES])}")


def in_order(rows: Sequence[Row], field: str, *, down: bool) -> list[Row]:
    """Sort by a field: numbers before texts, and Runs without it last in either direction."""
    having = [row for row in rows if field in row.facts]
    having.sort(key=lambda row: _order(row.facts[field]), reverse=down)
    return [*having, *(row for row in rows if field not in row.facts)]


def _order(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _same(there: Value, expected: str) -> bool:
    """Return whether a value equals one of several, separated by commas; `*` matches anything."""
    number = None if isinstance(there, str | bool) else float(there)
    text = short(there).lower()
    for each in (expected, *expected.split(",")):
        if number is not None and (value := _number(each)) is not None:
            if number == value or short(float(number)) == short(float(value)):
                return True
        elif text == each.lower() or ("*" in each and fnmatch.fnmatchcase(text, each.lower())):
            return True
    return False


def _number(text: str) -> float | None:
    """Parse a number, which may be a percentage; None if it is none."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text)
    except ValueError:
        return None


def _wrong(sentence: str) -> UserError:
    return UserError("view-query", sentence)
