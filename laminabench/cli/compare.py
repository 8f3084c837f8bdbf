"""`laminabench compare`: Runs, systems and live replays side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from laminabench.cli.flags import GroupedCommand, parsed_line, request_options
from laminabench.cli.options import FILE, FOLDER, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.compare import REPLAYS, RUNS, SYSTEMS, CompareRequest
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.redact import line

if TYPE_CHECKING:
    from laminabench.api.comparison import Comparison


@click.command(cls=GroupedCommand)
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=FOLDER)
@request_options(CompareRequest)
@option(
    "--fail-on",
    None,
    "Repeatable: exit code 1 if a ratio to the base is below (<) or above (>) this.",
    multiple=True,
    metavar="METRIC<RATIO",
)
@click.option("--strict", is_flag=True, help="Gates judge measured ratios without their intervals.")
@option("--markdown", FILE, "File for the tables as Markdown.")
@option("--plot", FILE, "Figure of cost against TBT (bars of Runs and grids): .png, .svg or .pdf.")
@option("--report", FILE, "One HTML page that needs no network: the answer, then its Runs side by side.")
@reporting
def compare(
    out: Output,
    request: CompareRequest,
    runs: tuple[Path, ...],
    fail_on: tuple[str, ...],
    strict: bool,
    markdown: Path | None,
    plot: Path | None,
    report: Path | None,
) -> None:
    """Runs side by side, or systems replayed on the same requests: ratios, cost, gates.

    \b
    laminabench compare runs/lamina runs/vllm
    laminabench compare runs/base-* runs/new-* --fail-on 'throughput<0.95' --fail-on 'tbt_p99>1.1'
    laminabench compare --trace mine.csv --model llama3-70b --report answer.html
    laminabench compare --trace mine.csv --model llama3-70b --slo-tbt-ms 60 --slo-ttft-ms 2000 --budget 100
    laminabench compare --equal-cost --trace azure-conv --model llama3-70b
    laminabench compare --model llama3-70b --deployment lamina=2xh200+4xh20 --equal-cost
    laminabench compare --live '--system vllm --deployment 2xcpu' --live '--system lamina' --trace azure-code

    With RUN: the first is the base of ratios. With --live: replays on this machine alternate, their Runs
    are stored. With one --trace and one --model: plan selects each system's cheapest deployment within the
    limits, at the trace's arrivals and saturated. With --systems and no --budget, a --deployment or
    --equal-cost, or with several traces or models: every system is replayed (modelled) on every trace with
    every model and cost set; requests that do not fit into one of them are left out for all.

    Exit code 1: a gate failed, or no system meets the limits; the nearest candidate is printed.
    """
    from laminabench.render.report import plotly_script
    from laminabench.render.sheets.compare import print_sheets, write_markdown
    from laminabench.render.static.drawn import check_target
    from laminabench.runs.replace import require_writable
    from laminabench.workflows.compare.live import require_new
    from laminabench.workflows.compare.sides import parse_gate

    request = structs.replace(request, runs=tuple(map(str, runs)))
    gates = [parse_gate(text) for text in fail_on]
    # Refuse unwritable targets before replaying anything.
    if plot:
        check_target(plot)
    if markdown:
        require_writable(markdown)
    if report:
        require_writable(report)
        plotly_script()
    request.require_applicable()
    # Live replays store their Runs as they end.
    directory = Path(request.directory) if request.directory and request.kind == SYSTEMS else None
    if directory:
        require_new(directory)
    wants_runs = "--out keeps" if directory else "--report shows" if report else ""
    with_curves = bool(plot or report or out.as_json or out.as_csv)
    comparison = _comparison(request, wants_runs, with_curves, out)
    failed = comparison.failures(gates, strict=strict)
    for note in comparison.notes:
        out.note(note)
    if markdown:
        write_markdown(markdown, list(comparison.sheets()), [*comparison.answer, *comparison.notes], failed)
    if plot:
        comparison.plot().save(plot)
    if directory:
        _store(comparison, directory)
    if report:
        title = comparison.title if request.kind == SYSTEMS else None
        comparison.write_report(report, title, request.slo_tbt_ms)
        out.note(f"wrote {report}: open it in a browser")
    if directory:
        out.note(f"Runs are in {directory}")
    result = {
        **comparison.describe(),
        "report": report and str(report),
        "gates": list(map(str, gates)),
        "failed": failed,
    }
    sheets = [*comparison.sheets(), *(comparison.curves() if out.as_csv else ())]
    out.result(result, lambda console: print_sheets(console, sheets, comparison.answer, failed))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise CheckFailedError("gate-failed", f"a gate failed: {failed[0]}{more}")


def _comparison(request: CompareRequest, wants_runs: str, with_curves: bool, out: Output) -> Comparison:
    from laminabench.api.comparing import comparison_of_runs, comparison_of_systems
    from laminabench.runs.read import read_run
    from laminabench.workflows.compare.live import compare_live
    from laminabench.workflows.compare.rounds import compare_runs
    from laminabench.workflows.compare.systems import compare_systems

    if request.kind == SYSTEMS:
        return comparison_of_systems(
            compare_systems(request, out, wants_runs=wants_runs, with_curves=with_curves)
        )
    if request.kind == REPLAYS:
        compared, notes, paths = compare_live(request, _entries(request.live), out)
    else:
        assert request.kind == RUNS
        paths = [Path(each) for each in request.runs]
        if len(paths) < 2:
            raise UserError(
                "compare-too-few",
                "one Run cannot be compared; give at least two, or --trace to replay systems",
            )
        with out.progress("reading", unit="Runs") as progress:
            compared, notes = compare_runs(
                paths,
                base=Path(request.base) if request.base else None,
                slo_tbt_ms=request.slo_tbt_ms,
                slo_ttft_ms=request.slo_ttft_ms,
                group=not request.no_group,
                progress=progress,
            )
        if len(compared.sides) < 2:
            raise UserError(
                "compare-too-few",
                "these Runs are rounds of one deployment, and cannot be compared; --no-group separates them",
            )
    return comparison_of_runs(compared, notes, lambda: [read_run(path) for path in paths])


def _store(comparison: Comparison, directory: Path) -> None:
    """Write the Runs of a comparison into a folder."""
    from laminabench.runs.write import write_run

    for run in comparison.runs():
        write_run(directory / run.directory, run.outcome, run, run.manifest)


def _entries(live: tuple[str, ...]) -> list[tuple[str, dict[str, object]]]:
    """Parse every --live with replay's own parser; each with its text, without secrets."""
    entries = []
    for text in live:
        try:
            entries.append((line(text), parsed_line(text)))
        except ValueError as error:
            raise UserError("compare-live-syntax", f"--live {line(text)!r}: {error}") from error
    return entries
