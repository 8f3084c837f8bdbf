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
@click.option("--title", help="Title of the page; default: the names of the Runs.")
@option(
    "--slo-tbt-ms",
    NumberRange(min=0, min_open=True, max=1e9),
    "Limit of the time between tokens; default: the first Run's.",
)
@option(
    "--window window_s",
    None,
    "Seconds that the timeline shows; default: some iterations in the middle.",
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
        read = []
        for done, directory in enumerate(directories):
            progress(done, len(directories))
            read.append(read_run(directory))
    runs = shown(read, slo_tbt_ms)
    page = made(runs, title, closed(window_s, runs))
    size_bytes = write_page(page, target)
    for sentence in page.caveats:
        out.note(sentence)
    out.result(_result(page, target, size_bytes), lambda console: _render(console, page, target, size_bytes))


def _require_no_part(target: Path, directories: tuple[Path, ...]) -> None:
    """Refuse to overwrite a file of a Run; a page next to them in its folder is fine."""
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


def _result(page: Report, target: Path, size_bytes: int) -> dict[str, Json]:
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
        for each in page.runs
    ]
    return {
        "report": str(target),
        "bytes": size_bytes,
        "title": page.title,
        "window_s": list(page.window_s),
        "runs": runs,
        "caveats": page.caveats,
    }


def _render(console: Console, page: Report, target: Path, size_bytes: int) -> None:
    number = "1 Run" if len(page.runs) == 1 else f"{len(page.runs)} Runs"
    console.print(
        f"{literal(target)}: {number}, {size_bytes / 1e6:.1f} MB; open it in a browser", soft_wrap=True
    )
