"""The query box: words to look for, and conditions on fields such as `tbt_ms.p99<80 system=lamina`."""

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
# What people call fields, beside their names.
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
    """On one field. A Run without it meets none but `!=`."""

    name: str
    sign: str
    value: str

    def met(self, facts: Facts) -> bool:
        """Whether these facts are as it asks."""
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
    """What all shown Runs have."""

    words: tuple[str, ...]
    conditions: tuple[Condition, ...]

    @property
    def whole(self) -> bool:
        """Whether it is about more than what is read at once."""
        return bool(self.words) or any(each.name not in BRIEFLY for each in self.conditions)

    def matching(self, rows: Iterable[Row]) -> list[Row]:
        """The Runs that are asked for. A damaged one has no fields, but is found by its words."""
        return [
            row
            for row in rows
            if all(each.met(row.facts) for each in self.conditions)
            and (not self.words or row.has(self.words))
        ]


def parsed(text: str, index: Index) -> Query:
    """A UserError says which part of it means nothing."""
    if len(text) > MOST_CHARACTERS:
        raise _wrong(f"a query has at most {MOST_CHARACTERS:,} characters")
    words, conditions, at = [], [], 0
    text = text.strip()
    while at < len(text):
        found = _TERM.match(text, at)
        assert found is not None
        at = found.end()
        if word := found["word"]:
            words.append(word.strip('"').lower())
        else:
            conditions.append(_condition(found["name"], found["sign"], found["value"], index))
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
    rows = index.rows(whole=field not in BRIEFLY)
    return any(isinstance(row.facts.get(field), str) for row in rows)


def field_of(name: str, index: Index) -> str:
    """The field that is meant: by its name, by another name for it, or by the end of its name."""
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
    """By a field: numbers before texts; Runs that have none last, whichever way."""
    having = [row for row in rows if field in row.facts]
    having.sort(key=lambda row: _order(row.facts[field]), reverse=down)
    return [*having, *(row for row in rows if field not in row.facts)]


def _order(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _same(there: Value, wanted: str) -> bool:
    """One of several, separated by commas; `*` is anything; numbers are as they are shown."""
    number = None if isinstance(there, str | bool) else float(there)
    text = short(there).lower()
    for each in (wanted, *wanted.split(",")):
        if number is not None and (value := _number(each)) is not None:
            if number == value or short(float(number)) == short(float(value)):
                return True
        elif text == each.lower() or ("*" in each and fnmatch.fnmatchcase(text, each.lower())):
            return True
    return False


def _number(text: str) -> float | None:
    """Also 90%."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text)
    except ValueError:
        return None


def _wrong(sentence: str) -> UserError:
    return UserError("view-query", sentence)
