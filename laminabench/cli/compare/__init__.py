"""`laminabench compare`: Runs, systems and live replays side by side."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import click
from click.core import ParameterSource

from laminabench.cli.compare.options import deployed_options
from laminabench.cli.flags import price_options, trace_options, with_flags
from laminabench.cli.options import COUNT, FILE, FOLDER, NumberRange, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.registry import MODULES
from laminabench.util.errors import CheckFailedError, UserError

# What can be said of Runs that are there; everything else is about replaying.
_SAID_OF_RUNS = {
    *("runs", "no_group", "base", "slo_tbt_ms", "slo_ttft_ms", "fail_on", "strict", "markdown", "plot"),
    *("report", "as_json", "quiet", "verbose"),
}
_OF_EQUAL = {"tolerance", "devices"}
_OF_LIVE = {"rounds"}
# What can be said of systems and not of replays that take turns: each of those says it itself.
_NOT_OF_LIVE = {
    *("costs", "eras", "systems", "deployments", "equal_cost", "equal_power", "tolerance"),
    *("devices", "network", "hosts", "host_async", "jobs", "limits"),
}


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=FOLDER)
@click.option("--no-group", is_flag=True, help="Runs of one live thing apart, not as rounds of it.")
@option("--trace traces", None, "Repeatable; the four of v2 Table 4 by default.", multiple=True)
@option("--model models", None, "Repeatable; the three of v2 Table 3 by default.", multiple=True)
@option(
    "--costs",
    None,
    "Repeatable; the eras' by default, or both measured sets where hosts or limits are given.",
    multiple=True,
)
@option(
    "--era eras",
    None,
    "Repeatable: what vllm is taken to be, of `laminabench costs eras`; all where nothing else says.",
    multiple=True,
    metavar="NAME",
)
@option(
    "--systems",
    None,
    f"Of {', '.join(MODULES)}; prices, or watts, are held to the first one's.",
    "lamina,vllm",
    metavar="A,B,...",
)
@deployed_options
@click.option(
    "--equal-cost", is_flag=True, help="Choose deployments within --tolerance of the first one's price."
)
@click.option(
    "--equal-power",
    is_flag=True,
    help="Choose deployments within --tolerance of the first one's rated watts.",
)
@option(
    "--tolerance",
    NumberRange(0, 1),
    "How far apart prices at equal cost may be, or watts at equal power.",
    0.1,
)
@option(
    "--devices",
    None,
    "Kinds to choose from at equal cost or power; the deployments' by default.",
    metavar="A,B,...",
)
@functools.partial(
    with_flags,
    names=(
        *("mode", "concurrency", "admission", "prefill", "max_batched_tokens"),
        *("instances", "router", "queue"),
    ),
)
@price_options
@option("--jobs", COUNT, "Processes that replay; one a core by default.")
@option(
    "--live",
    None,
    "Repeatable: replays that take turns here, as '--system vllm --deployment 2xcpu'.",
    multiple=True,
    metavar="'FLAGS OF REPLAY'",
)
@option("--rounds", click.IntRange(1, 1000), "With --live: how often each has its turn.", 3)
@option(
    "--out directory",
    FOLDER,
    "Keep every replay as a Run in this folder; with --live runs/compare-TRACE-TIME by default.",
)
@option(
    "--base",
    None,
    "What ratios are to: the first Run or --live; vllm, or the first system.",
    metavar="RUN, SYSTEM or N",
)
@option(
    "--slo-tbt-ms",
    NumberRange(0, 1e9, min_open=True),
    "One limit for all; each Run's own, or 100, by default.",
)
@option(
    "--slo-ttft-ms",
    NumberRange(0, 1e9, min_open=True),
    "With prompts: one limit of time to the first token for all; each Run's own by default.",
)
@option(
    "--fail-on",
    None,
    "Repeatable: exit code 1 if a ratio to the base is below (<) or above (>) this.",
    multiple=True,
    metavar="METRIC<RATIO",
)
@click.option("--strict", is_flag=True, help="Gates judge measured ratios without their intervals.")
@option("--markdown", FILE, "Write the tables as Markdown.")
@option("--plot", FILE, "Draw throughput and TBT: .png, .svg or .pdf.")
@option("--report", FILE, "One HTML page that needs no network: the answer, then its Runs side by side.")
@trace_options
@reporting
def compare(out: Output, workload: ReplayRequest, **flags: Any) -> None:
    """Runs side by side, or systems replayed on the same requests: ratios, cost, gates.

    \b
    laminabench compare runs/lamina runs/vllm
    laminabench compare runs/base-* runs/new-* --fail-on 'throughput<0.95' --fail-on 'tbt_p99>1.1'
    laminabench compare --equal-cost --trace azure-conv --model llama3-70b
    laminabench compare --equal-cost --trace mine.csv --model llama3-70b --report answer.html
    laminabench compare --model llama3-70b --deployment lamina=2xh200+4xh20 --equal-cost
    laminabench compare --live '--system vllm --deployment 2xcpu' --live '--system lamina' --trace azure-code

    With RUN: the first is what ratios are to. With --live: replays on this machine in turns, their Runs kept.
    Without: every system is replayed (modelled) on every trace with every model and cost set; requests that
    one of them could never hold are left out for all.
    """
    from laminabench.cli.compare.answers import of_runs, of_systems
    from laminabench.cli.compare.kept import keep, require_new, require_page
    from laminabench.cli.compare.live import of_live
    from laminabench.render.sheets.compare import print_sheets, write_markdown
    from laminabench.render.static.drawn import check_target
    from laminabench.runs.replace import require_writable
    from laminabench.workflows.compare.sides import failures, parse_gate

    plot, markdown, page = flags["plot"], flags["markdown"], flags["report"]
    # Live replays keep theirs as they are made.
    kept = None if flags["live"] else flags["directory"]
    gates = [parse_gate(text) for text in flags["fail_on"]]
    if plot:
        check_target(plot)
    if markdown:
        require_writable(markdown)
    if page:
        require_page(page)
    _require_together(flags)
    if kept:
        require_new(kept)
    if flags["live"]:
        answer = of_live(flags, workload, out)
    else:
        answer = of_runs(flags, out) if flags["runs"] else of_systems(flags, workload, out)
    failed = [
        line
        for where, compared in answer.comparisons
        for line in failures(gates, compared, strict=flags["strict"], where=where)
    ]
    for note in answer.notes:
        out.note(note)
    if markdown:
        write_markdown(markdown, answer.sheets, answer.notes, failed)
    if plot:
        answer.draw(plot)
    if kept or page:
        keep(answer, kept, page, flags["slo_tbt_ms"], out)
    result = {
        **answer.described,
        "report": page and str(page),
        "gates": list(map(str, gates)),
        "failed": failed,
    }
    out.result(result, lambda console: print_sheets(console, answer.sheets, answer.verdicts, failed))
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise CheckFailedError("gate-failed", f"a gate failed: {failed[0]}{more}")


def _require_together(flags: Mapping[str, Any]) -> None:
    """A UserError for a flag that nothing would come of beside the others."""
    context = click.get_current_context()
    unsaid = (None, ParameterSource.DEFAULT)
    given = {name for name in context.params if context.get_parameter_source(name) not in unsaid}
    if flags["runs"]:
        _refuse(given - _SAID_OF_RUNS, "replaying systems, not for Runs that are there")
    else:
        _refuse(given & {"no_group"}, "Runs, and none is given")
    if flags["live"]:
        _refuse(given & _NOT_OF_LIVE, "modelled systems; a side of --live has flags of its own")
    else:
        _refuse(given & _OF_LIVE, "--live, which is not given")
    if flags["equal_cost"] and flags["equal_power"]:
        raise UserError(
            "compare-equal-both",
            "--equal-cost and --equal-power: deployments are chosen by one of them; give either",
        )
    if not flags["equal_cost"] and not flags["equal_power"]:
        _refuse(given & _OF_EQUAL, "--equal-cost or --equal-power, which are not asked for")


def _refuse(wrong: Collection[str], what_for: str) -> None:
    parameters = click.get_current_context().command.params
    flag = next((each.opts[0] for each in parameters if each.name in wrong), None)
    if flag:
        raise UserError("compare-flag-not-applicable", f"{flag} is for {what_for}")
