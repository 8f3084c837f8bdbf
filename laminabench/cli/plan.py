"""`laminabench plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.hardware import price_options, priced_devices
from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import positive
from laminabench.cli.traces.options import COUNT, TraceOptions, trace_options
from laminabench.errors import UserError
from laminabench.systems.registry import MODULES

if TYPE_CHECKING:
    from laminabench.plan.answer import Answer
    from laminabench.plan.question import Question
    from laminabench.traces.table import Trace


@click.command()
@click.option("--trace", "trace_name", required=True, help="Catalogue name, imported name or file.")
@click.option("--model", "model_name", default="llama3-70b", show_default=True, help="Name or config.json.")
@click.option(
    "--slo-tbt-p99-ms",
    required=True,
    metavar="X",
    callback=positive,
    help="The 99th percentile of time between tokens that is good enough.",
)
@click.option(
    "--budget", metavar="USD", callback=positive, help="Most an hour; twice v2 Table 5's by default."
)
@click.option(
    "--power-budget", metavar="WATTS", callback=positive, help="Most rated watts; no limit by default."
)
@click.option("--devices", help="Comma-separated names; a100 is all of its kind. h100,h20,a100-80g.")
@click.option("--systems", default=",".join(MODULES), show_default=True, help="Comma-separated.")
@click.option("--most-devices", type=COUNT, help="Largest deployment, model and attention workers together.")
@click.option(
    "--costs", "cost_names", multiple=True, help="Repeatable: a winner for each set; vllm-0.14 by default."
)
@click.option(
    "--mode",
    type=click.Choice(["saturate", "open"]),
    default="saturate",
    show_default=True,
    help="Queue never empty, or the trace's own arrivals.",
)
@click.option(
    "--slo-queueing-p99-s",
    metavar="X",
    callback=positive,
    help="With --mode open: how long 99 of 100 requests may wait; 1 s.",
)
@click.option("--network", "network_name", help="As for replay; each system's own by default.")
@click.option("--host-async", is_flag=True, help="Every host prepares an iteration while the last one runs.")
@price_options
@click.option("--exhaustive", is_flag=True, help="Replay every candidate instead of searching.")
@click.option("--jobs", type=COUNT, help="Processes at once; as many as cores by default.")
@click.option("--top", type=COUNT, help="Also list the N cheapest that meet the limit.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw cost against TBT: .png, .svg or .pdf.",
)
@trace_options
@reporting
def plan(out: Output, workload: TraceOptions, **flags: Any) -> None:
    """Find the deployment that serves a trace cheapest within a limit of TBT, all modelled.

    \b
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 100
    laminabench plan --trace azure-conv --slo-tbt-p99-ms 60 --costs vllm-0.14 --costs vidur-2024
    laminabench plan --trace azure-conv --mode open --rate-scale 4 --slo-tbt-p99-ms 60

    Exit code 1: nothing meets the limit; which candidate comes nearest is said.
    """
    from laminabench.cli.plan_text import render
    from laminabench.plan.answer import require_possible, require_winner

    check_flags(flags, out)
    trace = workload.load(flags["trace_name"], out)
    if flags["mode"] == "open" and not trace.meta.has_arrivals:
        raise UserError(
            "trace-no-arrivals",
            f"{trace.meta.name} has no arrival times; an open plan of it needs --request-rate",
        )
    found = [_answer(question, flags, out) for question in _questions(trace, flags)]
    for each in found:
        require_possible(each)
    result = {**_head(trace, flags), "answers": [each.row() for each in found], "plot": None}
    if flags["plot"]:
        from laminabench.figures.planned import draw

        draw(result, flags["plot"])
        result["plot"] = str(flags["plot"])
        out.note(f"drew {flags['plot']}")
    out.result(result, lambda console: render(console, result, flags["top"] or 0))
    for each in found:
        require_winner(each)


def check_flags(flags: dict[str, Any], out: Output) -> None:
    """Settle what has a default that costs something to know; refuse what could not be done."""
    from laminabench.catalog.cost_file import DEFAULT_COSTS
    from laminabench.catalog.find_model import modelled
    from laminabench.figures.drawn import check_target
    from laminabench.nearest import nearest
    from laminabench.plan.asked import DEVICES, devices_of, papers_budget, price_note
    from laminabench.plan.question import SLO_QUEUEING_P99_S

    if flags["slo_queueing_p99_s"] and flags["mode"] != "open":
        raise click.UsageError("--slo-queueing-p99-s goes with --mode open: a saturated queue is never empty")
    flags["systems"] = list(dict.fromkeys(name.strip() for name in flags["systems"].split(",")))
    for name in flags["systems"]:
        if name not in MODULES:
            raise UserError(
                "system-unknown", f"--systems: no system named {name!r}; {nearest(name, MODULES)}"
            )
    if flags["plot"]:
        check_target(flags["plot"])
    known = priced_devices(flags["prices"], flags["price_basis"], flags["powers"])
    flags["model"] = modelled(flags["model_name"])
    flags["devices"] = devices_of(DEVICES if flags["devices"] is None else flags["devices"], known)
    if note := price_note(flags["devices"]):
        out.note(note)
    flags["budget"] = flags["budget"] or papers_budget(flags["model"], known)
    flags["slo_queueing_p99_s"] = flags["slo_queueing_p99_s"] or SLO_QUEUEING_P99_S
    flags["cost_names"] = flags["cost_names"] or (DEFAULT_COSTS,)


def _questions(trace: Trace, flags: dict[str, Any]) -> list[Question]:
    """One for each cost set."""
    from laminabench.catalog.cost_file import load_costs
    from laminabench.catalog.network import parse_network
    from laminabench.plan.question import Question

    return [
        Question(
            trace,
            flags["model"],
            load_costs(name),
            flags["slo_tbt_p99_ms"],
            flags["mode"],
            flags["slo_queueing_p99_s"],
            None if flags["network_name"] is None else parse_network(flags["network_name"]),
            flags["host_async"],
        )
        for name in dict.fromkeys(flags["cost_names"])
    ]


def _answer(question: Question, flags: dict[str, Any], out: Output) -> Answer:
    from laminabench.plan.answer import answer
    from laminabench.plan.asked import affordable
    from laminabench.plan.candidate import Limits

    limits = Limits(flags["budget"], flags["power_budget"] or float("inf"), flags["most_devices"])
    found = affordable(question, flags["systems"], flags["devices"], limits)
    with out.progress(f"searching with {question.costs.name}", unit="candidates") as told:
        return answer(question, found, exhaustive=flags["exhaustive"], jobs=flags["jobs"], told=told)


def _head(trace: Trace, flags: dict[str, Any]) -> dict[str, Any]:
    from laminabench.catalog.deployment import assumed_amounts

    meta = trace.meta
    return {
        "backend": "modelled",
        "trace": {"name": meta.name, "source": meta.source, "sha256": meta.sha256, "requests": len(trace)},
        "model": flags["model"].name,
        "weights_and_kv": flags["model"].dtype,
        "mode": flags["mode"],
        "slo_tbt_p99_ms": flags["slo_tbt_p99_ms"],
        "slo_queueing_p99_s": flags["slo_queueing_p99_s"] if flags["mode"] == "open" else None,
        "budget_usd_per_hour": flags["budget"],
        "power_budget_w": flags["power_budget"],
        "devices": [each.describe() for each in flags["devices"]],
        "assumed": list(assumed_amounts(flags["devices"])),
        "most_devices": flags["most_devices"],
        "systems": flags["systems"],
        "network": flags["network_name"],
        "host_async": flags["host_async"],
    }
