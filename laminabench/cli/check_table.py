"""What `laminabench check` prints: a line for each case, what moved, and what it is likely to come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from laminabench.present.check import COLUMNS, cells, counted, headline
from laminabench.present.terminal import literal
from laminabench.regress.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = {"better": "green", "worse": "red"}


def render(console: Console, verdicts: Sequence[Verdict], changed: Sequence[str], *, verbose: bool) -> None:
    """The tables; with `verbose` all metrics, not only those that moved."""
    shown = [
        (verdict, change) for verdict in verdicts for change in verdict.changes if verbose or change.moved
    ]
    if shown:
        table = Table(box=None, pad_edge=False)
        for title in COLUMNS:
            table.add_column(title, justify="right" if title in ("golden", "now", "change") else "left")
        for verdict, change in shown:
            *row, way = map(literal, cells(verdict, change))
            colour = _COLOURS.get(way, "dim")
            table.add_row(*row, f"[{colour}]{way}[/{colour}]")
        console.print(table)
    sentences = [
        *(f"{verdict.case}: likely cause: {said}" for verdict in verdicts for said in verdict.causes),
        *(f"{verdict.case}: {verdict.note}" for verdict in verdicts if verdict.note),
        f"{counted(verdicts)}: {headline(verdicts)}",
    ]
    if changed:
        sentences.append(f"goldens changed: {', '.join(changed)}")
    for sentence in sentences:
        # In a log, a sentence that is looked for is on one line.
        console.print(literal(sentence), soft_wrap=True)
