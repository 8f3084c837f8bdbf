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
        # In a log, a sentence that is looked for is on one line.
        console.print(literal(sentence), soft_wrap=True)


def _cells(verdict: Verdict, change: Change) -> tuple[str, ...]:
    """Return a row; in full where numbers differ by less than is usually shown."""
    was, is_ = _number(change.golden), _number(change.now)
    if was == is_ and change.golden != change.now:
        was, is_ = repr(change.golden), repr(change.now)
    return verdict.case, change.metric, was, is_, _percent(change), change.direction


def lines(verdict: Verdict) -> list[str]:
    """All that is to be said of a case that did not pass, as plain text."""
    rows = [" ".join(filter(None, _cells(verdict, change)[1:])) for change in verdict.moved]
    return [*rows, *(f"likely cause: {cause}" for cause in verdict.causes), *filter(None, [verdict.note])]


def counted(verdicts: Sequence[Verdict]) -> str:
    """How many cases there are."""
    return f"{len(verdicts)} case{'s' * (len(verdicts) != 1)}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """The outcome in one line: how many cases came to what."""
    words = {
        "same": "as their goldens say",
        "moved": "moved",
        "missing": "without a golden",
        "stale": "with a golden but no case",
        "skipped": "skipped",
    }
    counts = {said: sum(verdict.status == status for verdict in verdicts) for status, said in words.items()}
    return ", ".join(f"{count} {said}" for said, count in counts.items() if count)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _percent(change: Change) -> str:
    if change.share is None:
        return "-"
    percent = change.share * 100
    # What is exact may move by the last bit, and is then not to be shown as nothing.
    text = f"{percent:+.2f} %" if not percent or abs(percent) >= 0.01 else f"{percent:+.1e} %"
    if change.interval is None:
        return text
    low, high = (100 * end for end in change.interval)
    return f"{text} ({low:+.2f} to {high:+.2f})"


def write_markdown(path: Path, verdicts: Sequence[Verdict]) -> None:
    """What moved as a table, what it may come from, and what else is to be said."""
    with replacing(path) as temporary:
        temporary.write_text("\n".join(_paragraphs(verdicts)) + "\n", encoding="utf-8")


def _paragraphs(verdicts: Sequence[Verdict]) -> list[str]:
    out = ["### laminabench check", "", f"{counted(verdicts)}: {headline(verdicts)}."]
    sheet = sheet_of(verdicts, every=False)
    if sheet.rows:
        out += ["", *sheet.to_markdown()]
    told = [(verdict.case, said) for verdict in verdicts for said in (*verdict.causes, verdict.note) if said]
    if told:
        out += ["", *(f"- `{case}`: {markdown.plain(said)}" for case, said in told)]
    return out


def write_junit(path: Path, verdicts: Sequence[Verdict]) -> None:
    """A test case for each verdict; failures have the table's rows and the likely causes."""
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
    """XML has no way to write most control characters, and a trace's name may have any."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
