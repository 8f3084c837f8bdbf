"""`laminabench plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from laminabench.cli.flags import GroupedCommand, request_options
from laminabench.cli.options import COUNT, FILE, FOLDER, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.plan import EMITTED, Emitted, PlanRequest
from laminabench.workflows.replay.run import load

if TYPE_CHECKING:
    from laminabench.workflows.plan.answer import Answer


@click.command(cls=GroupedCommand)
@request_options(PlanRequest)
@option("--top", COUNT, "Also list the N cheapest that meet the limit.")
@option(
    "--emit",
    click.Choice(EMITTED),
    "Print what starts the winner, of vllm, in place of the plan: commands, a graph or a chart's values.",
)
@option("--emit-to", FILE, "File for --emit, and the plan is printed.")
@option("--plot", FILE, "Figure of cost against TBT: .png, .svg or .pdf.")
@option(
    "-o --out directory", FOLDER, "Folder of the plan; default: under plans/, the same for the same plan."
)
@click.option("--no-out", is_flag=True, help="Print the plan without saving it.")
@reporting
def plan(
    out: Output,
    request: PlanRequest,
    top: int | None,
    emit: Emitted | None,
    emit_to: Path | None,
    plot: Path | None,
    directory: Path | None,
    no_out: bool,
) -> None:
    """Find the deployment that serves a trace cheapest within a limit of TBT, all modelled.

    \b
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 100
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 60 --costs vllm-0.14 --costs vidur-2024
    laminabench plan --trace azure-conv --mode open --rate-scale 4 --slo-tbt-p99-ms 60
    laminabench plan --trace azure-conv --slo-ttft-ms 2000 --slo-tbt-p99-ms 100
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 100 --systems vllm --emit vllm

    Exit code 1: nothing meets the limit; the nearest candidate is printed.
    """
    from laminabench.render.sheets.plan import print_plan
    from laminabench.render.static.drawn import check_target, drawn
    from laminabench.runs.replace import require_writable
    from laminabench.workflows.plan.answer import require_winner
    from laminabench.workflows.plan.request import resolve
    from laminabench.workflows.plan.stored import default_directory, plan_of, require_free, write_plan
    from laminabench.workflows.plan.verdict import described as rows_of

    if directory and no_out:
        raise click.UsageError("--out and --no-out contradict each other")
    if emit_to and not emit:
        raise click.UsageError("--emit-to goes with --emit")
    if directory:
        require_free(directory)
    if plot:
        check_target(plot)
    if emit_to:
        require_writable(emit_to)
    resolved = resolve(request, out)
    workload = structs.replace(request.replay, trace=request.trace)
    trace = load(workload, out)
    described = resolved.describe(trace)
    if not no_out:
        name = f"{trace.meta.name}-{resolved.model.name}"
        identity = [described, resolved.request.costs, workload.text()]
        directory = directory or default_directory(name, identity)
        require_free(directory)
    # Prices of a stored plan can be changed by its readers.
    answers = [
        resolved.answer(question, out, at_any_price=not no_out) for question in resolved.questions(trace)
    ]
    result = {**described, **rows_of(answers)}
    if plot:
        from laminabench.render.static.pictures import plan_picture

        drawn(lambda: plan_picture(plan_of(result)), plot)
        out.note(f"drew {plot}")
    if directory:
        write_plan(directory, result)
        out.note(f"saved in {directory}: `laminabench view` shows it")
    result |= {"plot": str(plot) if plot else None, "plan_dir": str(directory) if directory else None}
    emitted = _emitted(emit, emit_to, answers, out) if emit else None
    result |= {"emit": emitted} if emitted else {}
    if emitted and not (emit_to or out.as_csv):
        out.result(result, lambda _: click.echo(emitted, nl=False))
    else:
        out.result(result, lambda console: print_plan(console, resolved, trace, answers, top or 0))
    for answer in answers:
        require_winner(answer)


def _emitted(kind: Emitted, target: Path | None, answers: list[Answer], out: Output) -> str | None:
    """Return what starts the first answer's winner, written to the target if there is one; None without."""
    from laminabench.baselines.flags import check_flags
    from laminabench.util.atomic import replacing
    from laminabench.workflows.plan.emit import VERSION, emit

    if answers[0].winner is None:
        return None  # which is an error later on
    emitted = emit(kind, answers[0])
    for note in emitted.notes:
        out.note(note)
    checked = check_flags(emitted.arguments)
    out.note(f"flags are checked by {checked}" if checked else f"flags are those of vLLM {VERSION}")
    if target:
        with replacing(target) as temporary:
            temporary.write_text(emitted.text, encoding="utf-8")
        out.note(f"wrote {target}")
    return emitted.text
