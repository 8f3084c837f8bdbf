"""Verdicts of `laminabench check`, for a terminal, a pull request and CI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from laminabench.render.model import Cell, Row, Sheet, Tone
from laminabench.render.terminal import literal, print_sheet
from laminabench.util import markdown
from laminabench.util.atomic import replacing
from laminabench.workflows.check.verdict import Change, Verdict

if TYPE_CHECKING:
    from rich.console import Console

SUITE = "laminabench.check"
COLUMNS = ("case", "metric", ">golden", ">now", ">change", "")
_TONES: dict[str, Tone] = {"better": "good", "worse": "bad"}


def sheet_of(verdicts: Sequence[Verdict], *, every: bool) -> Sheet:
    """Return a row for each metric that moved, or for all of them."""
    rows: list[Row] = []
    for verdict in verdicts:
        for change in verdict.changes:
            if every or change.moved:
                *cells, way = _cells(verdict, change)
                rows.append([*cells, Cell(way, tone=_TONES.get(way, "quiet"))])
    return Sheet("", COLUMNS, rows)


def render(console: Console, verdicts: Sequence[Verdict], changed: Sequence[str], *, verbose: bool) -> None:
    """Print what moved, or with `verbose` all metrics; then the likely causes, and the outcome."""
    sheet = sheet_of(verdicts, every=verbose)
    if sheet.rows:
        print_sheet(console, sheet)
    sentences = [
        *(f"{verdict.case}: likely cause: {cause}" for verdict in verdicts for cause in verdict.causes),
        *(f"{verdict.case}: {verdict.note}" for verdict in verdicts if verdict.note),
        f"{counted(verdicts)}: {headline(verdicts)}",
    ]
    if changed:
        sentences.append(f"goldens changed: {', '.join(changed)}")
    for sentence in sentences:
        # Unwrapped, so that a log can be searched for a sentence.
        console.print(literal(sentence), soft_wrap=True)


def _cells(verdict: Verdict, change: Change) -> tuple[str, ...]:
    """Return a row; in full where numbers differ by less than is usually shown."""
    was, is_ = _number(change.golden), _number(change.now)
    if was == is_ and change.golden != change.now:
        was, is_ = repr(change.golden), repr(change.now)
    return verdict.case, change.metric, was, is_, _percent(change), change.direction


def lines(verdict: Verdict) -> list[str]:
    """Return all findings about a case that did not pass, as plain text."""
    rows = [" ".join(filter(None, _cells(verdict, change)[1:])) for change in verdict.moved]
    return [*rows, *(f"likely cause: {cause}" for cause in verdict.causes), *filter(None, [verdict.note])]


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return the number of cases in words."""
    return f"{len(verdicts)} case{'s' * (len(verdicts) != 1)}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return the outcome in one line: how many cases have each status."""
    words = {
        "same": "as their goldens say",
        "moved": "moved",
        "missing": "without a golden",
        "stale": "with a golden but no case",
        "skipped": "skipped",
    }
    counts = {text: sum(verdict.status == status for verdict in verdicts) for status, text in words.items()}
    return ", ".join(f"{count} {text}" for text, count in counts.items() if count)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _percent(change: Change) -> str:
    if change.share is None:
        return "-"
    percent = change.share * 100
    # An exact metric may change in its last bit, which must be visible.
    text = f"{percent:+.2f} %" if not percent or abs(percent) >= 0.01 else f"{percent:+.1e} %"
    if change.interval is None:
        return text
    low, high = (100 * end for end in change.interval)
    return f"{text} ({low:+.2f} to {high:+.2f})"


def write_markdown(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the changed metrics as a table, with likely causes and notes."""
    with replacing(path) as temporary:
        temporary.write_text("\n".join(_paragraphs(verdicts)) + "\n", encoding="utf-8")


def _paragraphs(verdicts: Sequence[Verdict]) -> list[str]:
    out = ["### laminabench check", "", f"{counted(verdicts)}: {headline(verdicts)}."]
    sheet = sheet_of(verdicts, every=False)
    if sheet.rows:
        out += ["", *sheet.to_markdown()]
    paragraphs = [(each.case, text) for each in verdicts for text in (*each.causes, each.note) if text]
    if paragraphs:
        out += ["", *(f"- `{case}`: {markdown.plain(text)}" for case, text in paragraphs)]
    return out


def write_junit(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write a JUnit test case for each verdict; failures have the changes and likely causes."""
    facts = {
        "name": SUITE,
        "tests": str(len(verdicts)),
        "failures": str(sum(verdict.failed for verdict in verdicts)),
        "errors": "0",
        "skipped": str(sum(verdict.status == "skipped" for verdict in verdicts)),
        "time": f"{sum(verdict.wall_s for verdict in verdicts):.3f}",
    }
    suites = Xml.Element("testsuites")
    suite = Xml.SubElement(suites, "testsuite", facts)
    for verdict in verdicts:
        own = {"classname": SUITE, "name": verdict.case, "time": f"{verdict.wall_s:.3f}"}
        case = Xml.SubElement(suite, "testcase", own)
        if verdict.failed:
            failure = Xml.SubElement(
                case, "failure", {"message": headline([verdict]), "type": verdict.status}
            )
            failure.text = _allowed("\n".join(lines(verdict)))
        elif verdict.status == "skipped":
            Xml.SubElement(case, "skipped", {"message": _allowed(verdict.note)})
    Xml.indent(suites)
    with replacing(path) as temporary:
        Xml.ElementTree(suites).write(temporary, encoding="utf-8", xml_declaration=True)


def _allowed(text: str) -> str:
    """Replace control characters, which a trace's name may have and XML cannot contain."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
