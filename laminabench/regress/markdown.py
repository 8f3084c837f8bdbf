"""Verdicts as Markdown, for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laminabench.atomic import replacing
from laminabench.markdown import plain, row
from laminabench.regress.told import COLUMNS, cells, counted, headline
from laminabench.regress.verdict import Verdict


def write_markdown(path: Path, verdicts: Sequence[Verdict]) -> None:
    """What moved as a table, what it may come from, and what else is to be said."""
    with replacing(path) as temporary:
        temporary.write_text("\n".join(_paragraphs(verdicts)) + "\n", encoding="utf-8")


def _paragraphs(verdicts: Sequence[Verdict]) -> list[str]:
    out = ["### laminabench check", "", f"{counted(verdicts)}: {headline(verdicts)}."]
    rows = [cells(verdict, change) for verdict in verdicts for change in verdict.moved]
    if rows:
        out += ["", row(COLUMNS), row(("---", "---", "--:", "--:", "--:", "---"))]
        out += map(row, rows)
    told = [(verdict.case, said) for verdict in verdicts for said in (*verdict.causes, verdict.note) if said]
    if told:
        out += ["", *(f"- `{case}`: {plain(said)}" for case, said in told)]
    return out
