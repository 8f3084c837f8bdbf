"""`laminabench sweep`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.cli.flags import request_options
from laminabench.cli.options import FILE, option
from laminabench.cli.output import Output, reporting
from laminabench.cli.sweep_run import Row
from laminabench.render.format import short
from laminabench.render.sheets.sweep import points_sheet
from laminabench.render.terminal import literal, print_sheet
from laminabench.requests.sweep import SweepRequest
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


# More would fill pages; the table on disk has all.
MOST_ERRORS = 8


@click.command(context_settings={"ignore_unknown_options": True})
@request_options(SweepRequest)
@option("--plot", FILE, "Figure over the first flag with numbers: .png, .svg or .pdf.")
@reporting
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="--trace T [FLAGS OF REPLAY]")
def sweep(request: SweepRequest, flags: tuple[str, ...], plot: Path | None, out: Output) -> None:
    """Replay a trace once for each combination of values of some flags, and make one table of all.

    Flags are those of `laminabench replay`. Finished points are stored: the same call continues after an
    interruption.

    \b
    laminabench sweep --trace azure-code --vary attention-workers=2..8 --vary batches=1,2
    laminabench sweep --trace azure-conv --vary system=lamina,vllm --vary slo-tbt-ms=50,100 --sort cost
    """
    from laminabench.cli.sweep_points import points
    from laminabench.cli.sweep_run import Sweep
    from laminabench.render.static.drawn import check_target, drawn
    from laminabench.workflows.sweep.rows import TABLE
    from laminabench.workflows.sweep.values import parse_vary

    started = time.perf_counter()
    if request.ray is not None and request.jobs is not None:
        raise click.UsageError("--jobs is for this machine; with --ray the cluster's cores decide")
    if plot:
        check_target(plot)
    axes = [parse_vary(text) for text in request.vary]
    grid = Sweep(flags, axes, points(flags, axes), out)
    directory = Path(request.directory) if request.directory else grid.default_directory()
    rows, stored = grid.run(directory, request)
    columns = list(grid.points[0].varied)
    failed = [row for row in rows if row["error"]]
    result: dict[str, object] = {
        "sweep_dir": str(directory),
        "parquet": str(directory / TABLE),
        "vary": columns,
        "points": len(rows),
        "kept": stored,
        "failed": len(failed),
        "best": _best(rows),
        "rows": _ordered(rows, request.sort),
        "plot": None,
    }
    if plot and len(failed) < len(rows):
        from laminabench.render.static.pictures import sweep_picture

        drawn(lambda: sweep_picture(rows, columns), plot)
        result["plot"] = str(plot)
        out.note(f"drew {plot}")
    result["wall_s"] = time.perf_counter() - started
    out.result(result, lambda console: _render(console, result))
    if len(failed) == len(rows):
        raise UserError("sweep-all-failed", f"no point could be replayed; the first: {failed[0]['error']}")


def _ordered(rows: Sequence[Row], metric: str | None) -> list[Row]:
    """Sort by a metric, best first and unknown last; without a metric keep the grid's order."""
    if metric is None:
        return list(rows)
    key, more = COLUMNS[metric].key, COLUMNS[metric].better == "more"
    known = [row for row in rows if row.get(key) is not None]
    return [
        *sorted(known, key=lambda row: float(row[key]), reverse=more),
        *(row for row in rows if row.get(key) is None),
    ]


def _best(rows: Sequence[Row]) -> dict[str, float]:
    """Return the best value of each metric that any point has."""
    best = {}
    for name, metric in COLUMNS.items():
        values = [row[metric.key] for row in rows if row.get(metric.key) is not None]
        if values:
            best[name] = max(values) if metric.better == "more" else min(values)
    return best


def _render(console: Console, result: Row) -> None:
    """Print the table, then the failures, then the folder."""
    rows, columns = result["rows"], list(result["vary"])
    console.print(_headline(result), soft_wrap=True)
    print_sheet(console, points_sheet(rows, columns, result["best"]))
    failed = _by_error(rows, columns)
    for error, points in list(failed.items())[:MOST_ERRORS]:
        others = f" and {len(points) - 1:,} more" if len(points) > 1 else ""
        console.print(f"{literal(points[0])}{others}: {literal(error)}", soft_wrap=True)
    if len(failed) > MOST_ERRORS:
        console.print(f"and {len(failed) - MOST_ERRORS:,} other reasons")
    console.print(
        f"[dim]* the best of its column; all columns in {literal(result['parquet'])}[/dim]", soft_wrap=True
    )


def _headline(result: Row) -> str:
    how = " and ".join(sorted({row["backend"] for row in result["rows"]}))
    stored = f", {result['kept']:,} kept from before" if result["kept"] else ""
    failed = f", {result['failed']:,} failed" if result["failed"] else ""
    points = "1 point" if result["points"] == 1 else f"{result['points']:,} points"
    return f"{points}, [bold]{how}[/bold]{stored}{failed}"


def _by_error(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[str]]:
    """Group the failed points by reason, which many share."""
    failures: dict[str, list[str]] = {}
    for row in rows:
        if row["error"]:
            point = ", ".join(f"{name}={short(row[name])}" for name in columns)
            failures.setdefault(row["error"], []).append(point)
    return failures
