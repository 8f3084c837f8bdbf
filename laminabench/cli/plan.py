"""`laminabench plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from laminabench.cli.flags import changed, price_options, trace_options
from laminabench.cli.options import COUNT, FILE, FOLDER, POSITIVE, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.registry import MODULES
from laminabench.workflows.replay.run import load


@click.command()
@option("--trace trace_name", None, "Catalogue name, imported name or file.", required=True)
@option("--model model_name", None, "Name or config.json.", "llama3-70b")
@option(
    "--slo-tbt-p99-ms",
    POSITIVE,
    "The 99th percentile of time between tokens that is good enough.",
    required=True,
)
@option(
    "--slo-ttft-ms",
    POSITIVE,
    "The 99th percentile of time to the first token that is good enough; prompts are computed, --mode open.",
)
@option("--budget", POSITIVE, "Most an hour; twice v2 Table 5's by default.", metavar="USD")
@option("--power-budget", POSITIVE, "Most rated watts; no limit by default.", metavar="WATTS")
@option("--devices", None, "Comma-separated names; a100 is all of its kind. h100,h20,a100-80g.")
@option("--systems", None, f"Comma-separated.  [default: {','.join(MODULES)}]")
@option("--most-devices", COUNT, "Most devices, those of all instances and of pools for prompts together.")
@option(
    "--costs cost_names", None, "Repeatable: a winner for each set; as for replay by default.", multiple=True
)
@option(
    "--mode",
    click.Choice(["saturate", "open"]),
    "Queue never empty, or the trace's own arrivals.  [default: saturate; open with --slo-ttft-ms]",
)
@option(
    "--prefill",
    click.Choice(["off", "colocated", "pool", "any"]),
    "Prompts: there already, computed beside decoding, by devices of their own, or whichever is cheaper.  "
    "[default: off; any with --slo-ttft-ms]",
)
@option(
    "--max-batched-tokens",
    COUNT,
    "With prompts: tokens of an iteration; 512, 1024 and 2048 are tried beside decoding, 2048 in pools.",
)
@option("--slo-queueing-p99-s", POSITIVE, "With --mode open: how long 99 of 100 requests may wait; 1 s.")
@option("--network network_name", None, "As for replay; each system's own by default.")
@click.option("--host-async", is_flag=True, help="Every host prepares an iteration while the last one runs.")
@price_options
@click.option("--exhaustive", is_flag=True, help="Replay every candidate instead of searching.")
@option("--jobs", COUNT, "Processes at once; as many as cores by default.")
@option("--top", COUNT, "Also list the N cheapest that meet the limit.")
@option("--plot", FILE, "Draw cost against TBT: .png, .svg or .pdf.")
@option(
    "--out directory", FOLDER, "Where the plan goes; under plans/ by default, the same for the same plan."
)
@click.option("--no-out", is_flag=True, help="Print only, keep no plan.")
@trace_options
@reporting
def plan(
    out: Output,
    workload: ReplayRequest,
    trace_name: str,
    top: int | None,
    plot: Path | None,
    directory: Path | None,
    no_out: bool,
    **flags: Any,
) -> None:
    """Find the deployment that serves a trace cheapest within a limit of TBT, all modelled.

    \b
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 100
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 60 --costs vllm-0.14 --costs vidur-2024
    laminabench plan --trace azure-conv --mode open --rate-scale 4 --slo-tbt-p99-ms 60
    laminabench plan --trace azure-conv --slo-ttft-ms 2000 --slo-tbt-p99-ms 100

    Exit code 1: nothing meets the limit; which candidate comes nearest is said.
    """
    from laminabench.render.sheets.plan import print_plan
    from laminabench.render.static.drawn import check_target, drawn
    from laminabench.workflows.plan.answer import require_possible, require_winner
    from laminabench.workflows.plan.asked import answered, asked
    from laminabench.workflows.plan.kept import default_directory, plan_of, require_free, write_plan

    if directory and no_out:
        raise click.UsageError("--out and --no-out contradict each other")
    if directory:
        require_free(directory)
    if plot:
        check_target(plot)
    request = asked(out, **flags)
    workload = changed(workload, {"trace": trace_name})
    trace = load(workload, out)
    described = request.describe(trace)
    if not no_out:
        name = f"{trace.meta.name}-{request.model.name}"
        directory = directory or default_directory(name, [described, request.cost_names, workload.text()])
        require_free(directory)
    # Whoever opens what is kept may change the prices.
    answers = [
        answered(request, question, out, at_any_price=not no_out) for question in request.questions(trace)
    ]
    for answer in answers:
        require_possible(answer)
    result = {**described, "answers": [answer.row() for answer in answers]}
    if plot:
        from laminabench.render.static.pictures import plan_picture

        drawn(lambda: plan_picture(plan_of(result)), plot)
        out.note(f"drew {plot}")
    if directory:
        write_plan(directory, result)
        out.note(f"kept in {directory}: `laminabench view` shows it")
    result |= {"plot": str(plot) if plot else None, "plan_dir": str(directory) if directory else None}
    out.result(result, lambda console: print_plan(console, request, trace, answers, top or 0))
    for answer in answers:
        require_winner(answer)
