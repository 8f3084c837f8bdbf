"""Verdicts as JUnit XML, which CI systems show beside their own tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

from laminabench.atomic import replacing
from laminabench.regress.told import headline, lines
from laminabench.regress.verdict import Verdict

SUITE = "laminabench.check"


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
