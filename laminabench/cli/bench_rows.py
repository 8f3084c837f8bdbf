"""A table of times, targets beside what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console


def render_times(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of `laminabench.bench.timing.timed`, with the memory of those that say how much they took."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for title in ("median", "min to max", "target", ""):
        table.add_column(title, justify="right")
    for row in rows:
        seconds = row["seconds"]
        peak = (
            f", {row['peak_bytes'] / 1e9:.1f} of {row['target_bytes'] / 1e9:g} GB"
            if "peak_bytes" in row
            else ""
        )
        table.add_row(
            row["what"] + peak,
            _time(seconds["median"]),
            f"{_time(seconds['min'])} to {_time(seconds['max'])}",
            "" if row["target_s"] is None else _time(row["target_s"]),
            verdict(row["met"]),
        )
    console.print(table)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
