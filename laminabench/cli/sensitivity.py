"""`laminabench sensitivity`: how far a comparison depends on each input, and where it flips."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from laminabench.cli.flags import GroupedCommand, changed, trace_options, with_fields
from laminabench.cli.options import COUNT, FILE, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.compare import CompareRequest
from laminabench.requests.replay import ReplayRequest
from laminabench.util.errors import UserError

# Fields that this request shares with a comparison of many systems.
_SHARED = (
    "systems",
    "deployments",
    "max_num_seqs",
    "network",
    "hosts",
    "host_async",
    "equal_cost",
    "slo_tbt_ms",
)
_OF_REPLAY = ("price", "power", "price_basis", "attention_kernel")


@click.command(cls=GroupedCommand)
@option("--trace trace_name", None, "Catalogue name, imported name or file.", required=True)
@option("--model model_name", None, "Name or config.json.", "llama3-70b")
@option("--costs", None, "Cost set; default: the era's, or as for replay.")
@option("--era", None, "An era of vllm from `laminabench costs eras`, at the low end of its host.")
@functools.partial(with_fields, names=_SHARED, kind=CompareRequest)
@functools.partial(with_fields, names=_OF_REPLAY)
@option("--jobs", COUNT, "Processes at once; default: one per core.")
@option("--plot", FILE, "Figure of a tornado: .png, .svg or .pdf.")
@option("-o --out target", FILE, "CSV file of both ends of every range.")
@trace_options
@reporting
def sensitivity(
    out: Output,
    workload: ReplayRequest,
    trace_name: str,
    model_name: str,
    plot: Path | None,
    target: Path | None,
    **flags: Any,
) -> None:
    """Show how one system's gain in tokens per dollar over another depends on each input, and where it flips.

    \b
    laminabench sensitivity --trace azure-conv --model llama3-70b
    laminabench sensitivity --trace azure-conv --model llama3-70b --plot tornado.svg
    laminabench sensitivity --trace kimi-conv --costs vidur-2024 --host vllm=9ms,20us --price h20=2

    Prices, hosts, network, speed of devices, limits, memory and policy go to the ends of their ranges, one at
    a time, all modelled. Deployments stay as they are.
    """
    from laminabench.catalog.deployment import kinds_of_prices
    from laminabench.catalog.find_model import modelled
    from laminabench.render.sheets.compare import print_sheets
    from laminabench.render.sheets.sensitivity import sheet_of, write_csv
    from laminabench.render.static.drawn import check_target
    from laminabench.runs.replace import require_writable
    from laminabench.systems.modelled.includes import includes_of
    from laminabench.workflows.compare.cells import placed
    from laminabench.workflows.compare.plan import resolve_pair, systems_named
    from laminabench.workflows.replay.run import load
    from laminabench.workflows.sensitivity.search import sensitivity as analyse
    from laminabench.workflows.sensitivity.verdict import verdict_on

    systems = flags["systems"]
    if systems and len(systems_named(systems)) > 2:
        raise UserError("sensitivity-two", f"--systems {systems}: name two, of which one is the base")
    if plot:
        check_target(plot)
    if target:
        require_writable(target)
    model = modelled(model_name)
    request = CompareRequest(
        costs=(flags["costs"],) if flags["costs"] else (),
        eras=(flags["era"],) if flags["era"] else (),
        replay=ReplayRequest(**{name: flags[name] for name in _OF_REPLAY}),
        **{name: flags[name] for name in _SHARED},
    )
    spec, costs = resolve_pair(request, model)
    trace = load(changed(workload, {"trace": trace_name}), out)
    pair = placed(spec, model, trace, costs)
    if pair.dropped:
        out.note(f"{pair.dropped:,} requests that one of the two cannot hold are left out for both")
    if kinds := kinds_of_prices(pair.devices):
        out.note(f"prices of different kinds are compared ({kinds}); give comparable ones with --price")
    with out.progress("replaying", unit="replays") as progress:
        analysis = analyse(pair, spec.workload, jobs=flags["jobs"], progress=progress)
    judged = verdict_on(analysis, pair, spec.workload.slo_tbt_ms)
    contents = includes_of((name, each.setup) for name, each in pair.chosen.items())
    era = f"{spec.reading}, " if spec.reading else ""
    where = f"{model.name} on {trace.meta.name}, {era}{costs.name}"
    if plot:
        from laminabench.render.static.tornado import draw

        draw(analysis, where, plot)
        out.note(f"drew {plot}")
    if target:
        write_csv(analysis, target)
        out.note(f"wrote {target}")
    result = {
        "backend": "modelled",
        "model": model.name,
        "trace": trace.meta.name,
        "costs": costs.name,
        "era": spec.reading.era.name if spec.reading else None,
        "verdict": judged.describe(),
        "includes": contents.describe(),
        "dropped": pair.dropped,
        **analysis.row(),
        "plot": str(plot) if plot else None,
    }
    answer = [*judged.sentences, *contents.lines]
    sheet = sheet_of(analysis, where, sources=out.verbose)
    out.result(result, lambda console: print_sheets(console, [sheet], answer, ()))
