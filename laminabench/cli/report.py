"""`laminabench report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.flags import window
from laminabench.cli.options import PATH, NumberRange, option, target_option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal
from laminabench.util.errors import UserError
from laminabench.util.json import Json, to_json

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.render.report import Report


@click.command()
@click.argument("directories", metavar="RUN...", nargs=-1, required=True, type=PATH)
@target_option("The page, such as report.html.")
@click.option("--title", help="Of the page; the names of the Runs by default.")
@option(
    "--slo-tbt-ms",
    NumberRange(min=0, min_open=True, max=1e9),
    "Limit for the time between tokens; that of the first Run by default.",
)
@option(
    "--window window_s",
    None,
    "Which seconds the timeline shows; some iterations from the middle by default.",
    metavar="A:B",
    callback=window,
)
@reporting
def report(
    directories: tuple[Path, ...],
    target: Path,
    title: str | None,
    slo_tbt_ms: float | None,
    window_s: tuple[float, float] | None,
    out: Output,
) -> None:
    """Runs side by side as one HTML page that needs no network; ratios are to the first RUN.

    \b
    laminabench report runs/lamina runs/vllm -o report.html
    """
    from laminabench.render.charts.timeline import closed
    from laminabench.render.report import plotly_script, write_page
    from laminabench.render.report import report as made
    from laminabench.render.shown import shown
    from laminabench.runs.read import read_run
    from laminabench.runs.replace import require_writable

    require_writable(target)
    _require_no_part(target, directories)
    plotly_script()
    with out.progress("reading Runs", unit="Runs") as progress:
        found = []
        for done, directory in enumerate(directories):
            progress(done, len(directories))
            found.append(read_run(directory))
    runs = shown(found, slo_tbt_ms)
    told = made(runs, title, closed(window_s, runs))
    size_bytes = write_page(told, target)
    for sentence in told.caveats:
        out.note(sentence)
    out.result(_result(told, target, size_bytes), lambda console: _render(console, told, target, size_bytes))


def _require_no_part(target: Path, directories: tuple[Path, ...]) -> None:
    """A page in the folder of a Run is welcome there; one in the place of its numbers is not."""
    from laminabench.runs.format import MANIFEST
    from laminabench.runs.schema import TABLES

    parts = {MANIFEST, *(f"{name}.parquet" for name in TABLES)}
    there = target.resolve()
    for directory in directories:
        if there.parent == directory.resolve() and there.name in parts:
            raise UserError(
                "report-target-in-run",
                f"{target} is a part of the Run {directory}; name another file for the page",
            )


def _result(told: Report, target: Path, size_bytes: int) -> dict[str, Json]:
    runs = [
        {
            "name": each.name,
            "run_dir": str(each.run.directory),
            "backend": each.manifest.backend,
            "throughput_tokens_per_s": each.summary.throughput_tokens_per_s,
            "tbt_ms": to_json(each.summary.tbt_ms),
            "slo": to_json(each.slo),
            "cost": to_json(each.summary.cost),
        }
        for each in told.runs
    ]
    return {
        "report": str(target),
        "bytes": size_bytes,
        "title": told.title,
        "window_s": list(told.window_s),
        "runs": runs,
        "caveats": told.caveats,
    }


def _render(console: Console, told: Report, target: Path, size_bytes: int) -> None:
    number = "1 Run" if len(told.runs) == 1 else f"{len(told.runs)} Runs"
    console.print(
        f"{literal(target)}: {number}, {size_bytes / 1e6:.1f} MB; open it in a browser", soft_wrap=True
    )
