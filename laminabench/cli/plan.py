"""`laminabench plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.flags import changed, price_options, trace_options
from laminabench.cli.options import COUNT, FILE, POSITIVE, option
from laminabench.cli.output import Output, reporting
from laminabench.errors import UserError
from laminabench.replaying.run import load
from laminabench.request import ReplayRequest
from laminabench.systems.registry import MODULES

if TYPE_CHECKING:
    from laminabench.planning.answer import Answer
    from laminabench.planning.question import PlanMode, PlanPrefill, Question
    from laminabench.planning.request import PlanRequest


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
@trace_options
@reporting
def plan(
    out: Output, workload: ReplayRequest, trace_name: str, top: int | None, plot: Path | None, **flags: Any
) -> None:
    """Find the deployment that serves a trace cheapest within a limit of TBT, all modelled.

    \b
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 100
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 60 --costs vllm-0.14 --costs vidur-2024
    laminabench plan --trace azure-conv --mode open --rate-scale 4 --slo-tbt-p99-ms 60
    laminabench plan --trace azure-conv --slo-ttft-ms 2000 --slo-tbt-p99-ms 100

    Exit code 1: nothing meets the limit; which candidate comes nearest is said.
    """
    from laminabench.cli.plan_text import render
    from laminabench.planning.answer import require_possible, require_winner

    request = asked(out, plot, **flags)
    trace = load(changed(workload, {"trace": trace_name}), out)
    answers = [_answer(request, question, out) for question in request.questions(trace)]
    for answer in answers:
        require_possible(answer)
    if plot:
        from laminabench.figures.planned import draw

        draw(request, trace, answers, plot)
        out.note(f"drew {plot}")
    rows = [answer.row() for answer in answers]
    result = {**request.describe(trace), "answers": rows, "plot": str(plot) if plot else None}
    out.result(result, lambda console: render(console, request, trace, answers, top or 0))
    for answer in answers:
        require_winner(answer)


def asked(
    out: Output,
    plot: Path | None,
    *,
    model_name: str,
    systems: str | None,
    devices: str | None,
    price: tuple[str, ...],
    power: tuple[str, ...],
    price_basis: str | None,
    mode: PlanMode | None,
    slo_queueing_p99_s: float | None,
    slo_ttft_ms: float | None,
    prefill: PlanPrefill | None,
    budget: float | None,
    cost_names: tuple[str, ...],
    **choices: Any,
) -> PlanRequest:
    """The flags as a request, with what has a default that costs something to know."""
    from laminabench.catalog.cost_file import load_costs, usual_costs
    from laminabench.catalog.costs import known_devices
    from laminabench.catalog.deployment import devices_named
    from laminabench.catalog.find_model import modelled
    from laminabench.catalog.hardware import priced_devices
    from laminabench.figures.drawn import check_target
    from laminabench.nearest import nearest
    from laminabench.planning.question import SLO_QUEUEING_P99_S
    from laminabench.planning.request import (
        DEVICES,
        PlanRequest,
        devices_of,
        papers_budget,
        price_note,
        with_prompts,
    )

    mode = mode or ("open" if slo_ttft_ms else "saturate")
    prefill = prefill or ("any" if slo_ttft_ms else "off")
    if slo_ttft_ms and mode != "open":
        raise click.UsageError(
            "--slo-ttft-ms goes with --mode open: in a saturated replay the first token waits for the queue"
        )
    for flag, value in (
        ("--slo-ttft-ms", slo_ttft_ms),
        ("--max-batched-tokens", choices["max_batched_tokens"]),
    ):
        if value and prefill == "off":
            raise click.UsageError(f"{flag} is for plans that compute prompts; add --prefill any")
    if slo_queueing_p99_s and mode != "open":
        raise click.UsageError("--slo-queueing-p99-s goes with --mode open: a saturated queue is never empty")
    names = tuple(dict.fromkeys(name.strip() for name in systems.split(","))) if systems else tuple(MODULES)
    for name in names:
        if name not in MODULES:
            raise UserError(
                "system-unknown", f"--systems: no system named {name!r}; {nearest(name, MODULES)}"
            )
    if prefill != "off":
        names = with_prompts(names, named=systems is not None)
    if plot:
        check_target(plot)
    model = modelled(model_name)
    cost_names = tuple(dict.fromkeys(cost_names or (usual_costs(model, devices_named(devices or DEVICES)),)))
    known = priced_devices(price, price_basis, power, known_devices(map(load_costs, cost_names)))
    chosen = devices_of(DEVICES if devices is None else devices, known)
    if note := price_note(chosen):
        out.note(note)
    return PlanRequest(
        model=model,
        systems=names,
        devices=tuple(chosen),
        cost_names=cost_names,
        mode=mode,
        # Who waits longer than the first token may take has missed that anyway.
        slo_queueing_p99_s=slo_queueing_p99_s or (slo_ttft_ms or 1000 * SLO_QUEUEING_P99_S) / 1000,
        slo_ttft_ms=slo_ttft_ms,
        prefill=prefill,
        budget=budget or papers_budget(model, known),
        **choices,
    )


def _answer(request: PlanRequest, question: Question, out: Output) -> Answer:
    from laminabench.planning.answer import answer

    candidates = request.candidates(question)
    with out.progress(f"searching with {question.costs.name}", unit="candidates") as told:
        return answer(question, candidates, exhaustive=request.exhaustive, jobs=request.jobs, told=told)
