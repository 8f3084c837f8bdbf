"""`laminabench sweep`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from laminabench.analysis.metrics_table import COLUMNS
from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import COUNT
from laminabench.cli.sweep_table import best, ordered, render
from laminabench.errors import UserError


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--vary",
    "varied",
    multiple=True,
    required=True,
    metavar="FLAG=VALUES",
    help="Repeatable: a flag of replay, model-workers or attention-workers; 1,2,3 or 2..8 or 2..16:2.",
)
@click.option("--jobs", type=COUNT, help="Replays at once; as many as there are cores by default.")
@click.option("--ray", metavar="ADDRESS", help="Replay on this Ray cluster, auto or host:port.")
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where points and table go; under sweeps/ by default, the same for the same sweep.",
)
@click.option("--retry-failed", is_flag=True, help="Try points that failed once more.")
@click.option("--sort", type=click.Choice(list(COLUMNS)), help="Best first; as the grid by default.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw throughput, TBT and cost over the first flag with numbers: .png, .svg or .pdf.",
)
@reporting
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="--trace T [FLAGS OF REPLAY]")
def sweep(
    flags: tuple[str, ...],
    varied: tuple[str, ...],
    jobs: int | None,
    ray: str | None,
    directory: Path | None,
    retry_failed: bool,
    sort: str | None,
    plot: Path | None,
    out: Output,
) -> None:
    """Replay a trace once for each combination of values of some flags, and make one table of all.

    Flags are those of `laminabench replay`. Finished points are kept: the same call goes on after an
    interruption.

    \b
    laminabench sweep --trace azure-code --vary attention-workers=2..8 --vary batches=1,2
    laminabench sweep --trace azure-conv --vary system=lamina,vllm --vary slo-tbt-ms=50,100 --sort cost
    """
    from laminabench.cli.sweep_points import points
    from laminabench.cli.sweep_run import Sweep
    from laminabench.figures.drawn import check_target
    from laminabench.sweeps.rows import TABLE
    from laminabench.sweeps.values import parse_vary

    started = time.perf_counter()
    if ray is not None and jobs is not None:
        raise click.UsageError("--jobs is for this machine; with --ray the cluster's cores decide")
    if plot:
        check_target(plot)
    axes = [parse_vary(text) for text in varied]
    found = Sweep(flags, axes, points(flags, axes), out)
    directory = directory or found.default_directory()
    swept = found.run(directory, jobs=jobs, ray=ray, retry_failed=retry_failed)
    rows, columns = swept.rows, list(found.points[0].varied)
    failed = [row for row in rows if row["error"]]
    result: dict[str, object] = {
        "sweep_dir": str(directory),
        "parquet": str(directory / TABLE),
        "vary": columns,
        "points": len(rows),
        "kept": swept.kept,
        "failed": len(failed),
        "best": best(rows),
        "rows": ordered(rows, sort),
        "plot": None,
    }
    if plot and len(failed) < len(rows):
        from laminabench.figures.swept import draw

        draw(rows, columns, plot)
        result["plot"] = str(plot)
        out.note(f"drew {plot}")
    result["wall_s"] = time.perf_counter() - started
    out.result(result, lambda console: render(console, result))
    if len(failed) == len(rows):
        raise UserError("sweep-all-failed", f"no point could be replayed; the first: {failed[0]['error']}")
