"""What `laminabench compare` found: Runs side by side, or systems cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from laminabench.catalog.cost_file import COSTS_OF_TODAY, load_costs, usual_costs
from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import Deployment, devices_named, parse_deployments
from laminabench.catalog.entries import pick
from laminabench.catalog.eras import Era, load_eras
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import Device, device, priced_devices
from laminabench.catalog.host import parse_host
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.cli.flags import changed, given_in
from laminabench.cli.output import Output
from laminabench.comparison.assumptions import left_out
from laminabench.comparison.cells import Cell, Grid, View, grid_cells
from laminabench.comparison.eras import readings_of
from laminabench.comparison.rounds import compare_runs
from laminabench.comparison.sides import SideBySide
from laminabench.comparison.spec import ComparisonSpec, Equal
from laminabench.errors import UserError
from laminabench.json_safe import Json
from laminabench.present.compare import Sheet, sheet_of_cell, sheet_of_runs, sheets_of_grid, verdicts
from laminabench.replaying import Workload
from laminabench.replaying.run import load
from laminabench.request import CHOICES, ReplayRequest
from laminabench.systems.modelled.prepared import QUEUE, ROUTER, prefill_workers, prompt_budget
from laminabench.systems.modelled.system import COMPUTED
from laminabench.systems.registry import MODULES, system
from laminabench.systems.router import require_known, require_prefixes, require_several

# v2 Figure 10.
MODELS = ("llama-33b", "llama-65b", "llama3-70b")
TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")
COSTS = ["vllm-0.14", "vidur-2024"]
# Flags that are a replay's too, and mean the same.
SHARED = (
    *("mode", "concurrency", "slo_tbt_ms", "slo_ttft_ms", "admission", "prefill", "max_batched_tokens"),
    *("instances", "router", "queue", "price", "power", "price_basis"),
)
# Which prices differ by less is at equal cost for all that anybody says of them.
ABOUT_EQUAL = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command prints, writes, draws and judges."""

    title: str | None  # of a page; the Runs' names, if None
    comparisons: list[tuple[str, SideBySide]]  # each with where it is from, for the end of a sentence
    described: dict[str, Json]  # for --json
    notes: list[str]  # what a reader of the numbers has to know
    sheets: list[Sheet]
    draw: Callable[[Path], None]
    runs: Callable[[Path], list[Path]]  # the Runs behind it; those that are not kept go into this folder
    verdicts: Sequence[str] = ()  # what all of it comes to, in a sentence for each system


def of_runs(flags: Mapping[str, Any], out: Output) -> Answer:
    """The Runs of the command line."""
    runs: tuple[Path, ...] = flags["runs"]
    if len(runs) < 2:
        raise UserError(
            "compare-too-few",
            "one Run is nothing to compare; give at least two, or --trace to replay systems",
        )
    base = Path(flags["base"]) if flags["base"] else None
    with out.progress("reading", unit="Runs") as progress:
        compared, doubts = compare_runs(
            runs,
            base=base,
            slo_tbt_ms=flags["slo_tbt_ms"],
            slo_ttft_ms=flags["slo_ttft_ms"],
            group=not flags["no_group"],
            progress=progress,
        )
    if len(compared.sides) < 2:
        raise UserError(
            "compare-too-few",
            "these Runs are rounds of one thing, with nothing to compare; --no-group keeps them apart",
        )
    return answer_of_runs(compared, doubts, runs)


def answer_of_runs(compared: SideBySide, notes: list[str], runs: Sequence[Path]) -> Answer:
    """One comparison, of Runs."""

    def draw(target: Path) -> None:
        from laminabench.figures.compared import draw_sides

        draw_sides(compared, target)

    described = {**compared.describe(), "notes": notes}
    return Answer(
        None, [("", compared)], described, notes, [sheet_of_runs(compared)], draw, lambda _: list(runs)
    )


def shared(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags choose for every replay, by a request's names."""
    return given_in({name: flags[name] for name in SHARED})


def of_systems(flags: Mapping[str, Any], workload: ReplayRequest, out: Output) -> Answer:
    """The systems of the command line, replayed on everything that it names."""
    systems = systems_named(flags["systems"])
    models = [modelled(name) for name in flags["models"] or MODELS]
    named = _devices_in(flags)
    usual = dict.fromkeys(usual_costs(each, named) for each in models)
    # One set for all, so that no era is compared with another.
    # Nor with kernels that there were not: those of 2024 are in 16 bits.
    today = COSTS_OF_TODAY in usual or any(DTYPE_BYTES[each.dtype] != 2 for each in models)
    eras = _eras(flags, systems, today=today)
    names = [era.costs for era in eras] or ([COSTS_OF_TODAY] if today else COSTS)
    cost_sets = [load_costs(name) for name in flags["costs"] or names]
    spec = _terms(flags, systems, cost_sets)
    base = _base(flags["base"], systems)
    traces = [load(changed(workload, {"trace": name}), out) for name in flags["traces"] or TRACES]
    _require_names_apart("--model", [each.name for each in models])
    _require_names_apart("--costs", [each.name for each in cost_sets if flags["costs"]])
    _require_names_apart("--trace", [each.meta.name for each in traces])
    for trace in traces:
        require_prefixes(spec.router, trace)
    grid = Grid(_views(spec, eras, cost_sets, named=bool(flags["costs"])), models, traces)
    if (flags["directory"] or flags["report"]) and len(models) * len(traces) > 1:
        flag = "--out keeps" if flags["directory"] else "--report shows"
        raise UserError(
            "compare-keep-one",
            f"{flag} the Runs of one model on one trace; there are {len(models)} models and {len(traces)} "
            "traces: name one of each",
        )
    with out.progress("replaying", unit="cells") as progress:
        cells = grid_cells(grid, jobs=flags["jobs"], progress=progress)

    def kept(directory: Path) -> list[Path]:
        from laminabench.comparison.kept import keep, sides

        said = {each.name: name for each, name in zip(cost_sets, flags["costs"] or names, strict=True)}
        common = {**shared(flags), "model": (flags["models"] or MODELS)[0], "network": flags["network"]}
        common["trace"] = (flags["traces"] or TRACES)[0]
        asked = [(view, changed(workload, {**common, "costs": said[view.costs.name]})) for view in grid.views]
        found = [
            side
            for view, request in asked
            for side in sides(view.specs, models[0], traces[0], view.costs, request)
        ]
        # The report's ratios are to its first.
        found.sort(key=lambda side: side.request.system != base)
        with out.progress("keeping", unit="Runs") as progress:
            return keep(found, directory, progress)

    return _answer_of_systems(cells, base, spec, eras, kept)


def systems_named(text: str) -> tuple[str, ...]:
    """Those of a comma-separated list; a UserError where they are none to compare."""
    found = tuple(pick("system", name, dict.fromkeys(MODULES)) or name for name in _names(text))
    if len(found) < 2:
        raise UserError("compare-too-few", f"--systems {text} is nothing to compare; name at least two")
    return found


def terms_of_two(
    flags: Mapping[str, Any], systems: tuple[str, ...], model: ModelShape
) -> tuple[ComparisonSpec, CostSet]:
    """What one cell is of, by the flags that a command has of those of `compare`."""
    unsaid = {**dict.fromkeys((*SHARED, "devices", "equal_power")), "tolerance": Equal().tolerance}
    every = {**unsaid, **flags}
    eras = _eras(every, systems, today=False) if flags["eras"] else []
    usual = eras[0].costs if eras else usual_costs(model, _devices_in(every))
    costs = load_costs(flags["costs"] or usual)
    spec = _terms(every, systems, [costs])
    return (readings_of(spec, eras[0])[0] if eras else spec), costs


def _devices_in(flags: Mapping[str, Any]) -> frozenset[str]:
    hardware = (each.rpartition("=")[2] for each in flags["deployments"])
    return devices_named(",".join((flags["devices"] or "", *hardware)))


def _eras(flags: Mapping[str, Any], systems: tuple[str, ...], *, today: bool) -> list[Era]:
    """Those that were asked for; else, where nothing else says what systems are, all that models have."""
    async_ = () if flags["host_async"] == "neither" else (flags["host_async"],)
    said = {"--host": flags["hosts"], "--max-num-seqs": flags["limits"], "--host-async": async_}
    known = load_eras()
    if not flags["eras"]:
        if flags["costs"] or any(said.values()):
            return []
        of_models = [era for era in known.values() if not today or era.costs == COSTS_OF_TODAY]
        return [era for era in of_models if era.system in systems]
    eras = [pick("era", name, known) for name in dict.fromkeys(flags["eras"])]
    for era in eras:
        if era.system not in systems:
            raise UserError(
                "compare-era", f"--era {era.name} is of {era.system}; --systems has {', '.join(systems)}"
            )
        for flag, text in ((flag, text) for flag, texts in said.items() for text in texts):
            if flag == "--host-async" or text.partition("=")[0] == era.system:
                raise UserError(
                    "compare-era-says", f"{flag} {text}: --era {era.name} says that; leave one of the two out"
                )
    return eras


def _views(
    spec: ComparisonSpec, eras: Sequence[Era], cost_sets: Sequence[CostSet], *, named: bool
) -> list[View]:
    """Every era with the kernels of its time, or with those that the user names."""
    if not eras:
        return [View(costs, (spec,)) for costs in cost_sets]
    return [
        View(costs, readings_of(spec, era))
        for era in eras
        for costs in cost_sets
        if named or costs.name == era.costs
    ]


def _answer_of_systems(
    cells: list[Cell],
    base: str,
    spec: ComparisonSpec,
    eras: Sequence[Era],
    runs: Callable[[Path], list[Path]],
) -> Answer:
    notes, equal = list(_notes(cells, spec)), spec.equal
    # Of several there is no one answer.
    one = len({(cell.model, cell.trace) for cell in cells}) == 1
    said = verdicts(cells, base) if one else []
    tolerance = None if equal is None else {"tolerance": equal.tolerance}
    described: dict[str, Json] = {
        "backend": "modelled",
        "base": base,
        "systems": list(spec.systems),
        "equal_cost": tolerance if equal and equal.amount == "cost" else None,
        "equal_power": tolerance if equal and equal.amount == "power" else None,
        "eras": [era.describe() for era in eras],
        "host": msgspec.to_builtins(spec.hosts),
        "host_async": list(spec.host_async),
        "max_num_seqs": dict(spec.max_num_seqs),
        **(_of_prompts(spec) if spec.prompt_budget else {}),
        **({"router": spec.router, "queue": spec.queue} if spec.several else {}),
        "cells": [cell.row(base) for cell in cells],
        "verdicts": list(said),
        "notes": notes,
    }
    if len(cells) == 1:
        sheets = [sheet_of_cell(cells[0], base)]
    else:
        sheets = sheets_of_grid(cells, base, as_published=not spec.given)

    def draw(target: Path) -> None:
        from laminabench.figures.compared import draw_cells

        draw_cells(cells, target)

    comparisons = [(f" ({cell.model} on {cell.trace}, {cell.label})", cell.sides(base)) for cell in cells]
    names = [base, *(name for name in spec.systems if name != base)]
    title = f"{' or '.join(names)}: {cells[0].model} on {cells[0].trace}, modelled"
    return Answer(title, comparisons, described, notes, sheets, draw, runs, said)


def _of_prompts(spec: ComparisonSpec) -> dict[str, Json]:
    how = f"pool:{spec.prefill}" if spec.prefill else "colocated"
    return {"prefill": how, "max_batched_tokens": spec.prompt_budget}


def _require_names_apart(flag: str, names: list[str]) -> None:
    """A UserError where two would have one place in the grid."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            "compare-name-twice",
            f"{flag}: two are called {twice}, and tables tell them apart by name; give one of them",
        )


def _terms(
    flags: Mapping[str, Any], systems: tuple[str, ...], cost_sets: Sequence[CostSet]
) -> ComparisonSpec:
    asked = ReplayRequest(**shared(flags))
    # Prices of two kinds cannot be compared: where one's devices are not for rent, all are bought.
    bases = (asked.price_basis, *(system(name).PRICE_BASIS for name in systems))
    known = known_devices(cost_sets)
    networks: dict[str, Network] = {}
    for each in cost_sets:
        networks |= each.networks
    catalogue = priced_devices(asked.price, next(filter(None, bases), None), asked.power, known)
    kinds = tuple(device(name, catalogue) for name in _names(flags["devices"] or ""))
    equal = None
    if flags["equal_cost"] or flags["equal_power"]:
        equal = Equal(flags["tolerance"], kinds, "cost" if flags["equal_cost"] else "power")
    async_ = {"neither": (), "both": systems}
    if flags["host_async"] not in (*async_, *systems):
        raise UserError(
            "compare-host-async",
            f"--host-async {flags['host_async']} is not replayed; --systems has {', '.join(systems)}",
        )
    _require_prompts(asked, systems)
    given = _given(flags["deployments"], systems, asked.instances, catalogue)
    counts = (sum(map(system(name).instances_of, each)) for name, each in given.items())
    require_several(asked, max(counts, default=1))
    require_known(asked.router or ROUTER)
    return ComparisonSpec(
        systems,
        given=given,
        instances=asked.instances,
        router=asked.router or ROUTER,
        queue=asked.queue or QUEUE,
        catalogue=catalogue,
        network=parse_network(flags["network"], networks) if flags["network"] else None,
        hosts=_hosts(flags["hosts"], systems),
        host_async=async_.get(flags["host_async"], (flags["host_async"],)),
        max_num_seqs=_limits(flags["limits"], systems),
        admission=asked.admission,
        prompt_budget=prompt_budget(asked),
        prefill=prefill_workers(asked, catalogue),
        workload=Workload.of(asked),
        equal=equal,
    )


def _require_prompts(asked: ReplayRequest, systems: tuple[str, ...]) -> None:
    """A UserError for a system that computes no prompts, and for flags that mean nothing without them."""
    if asked.prefill in (None, "off"):
        for name in ("slo_ttft_ms", "max_batched_tokens"):
            if asked.chose(name):
                raise UserError(
                    "replay-flag-unused",
                    f"{CHOICES[name].spelled} is for replays that compute prompts; add --prefill {COMPUTED}",
                )
        return
    for each in systems:
        if "prefill" not in system(each).TAKES:
            raise UserError(
                "system-no-prompts",
                f"--systems: {each} computes no prompts; leave it out, or compare with --prefill off",
            )


def _given(
    texts: Iterable[str],
    systems: tuple[str, ...],
    instances: int | None,
    catalogue: Mapping[str, Device],
) -> dict[str, tuple[Deployment, ...]]:
    found: dict[str, tuple[Deployment, ...]] = {}
    for text in texts:
        name, equals, deployment = text.partition("=")
        if not equals or name not in systems:
            raise UserError(
                "compare-deployment-syntax",
                f"--deployment {text}: expected SYSTEM=DEPLOYMENT of {' or '.join(systems)}, "
                "such as lamina=2xh100+4xh20",
            )
        if name in found:
            raise UserError(
                "compare-deployment-twice",
                f"--deployment {text}: {name} has been given {','.join(map(str, found[name]))} already",
            )
        found[name] = parse_deployments(deployment, instances, catalogue)
    return found


def _limits(texts: Iterable[str], systems: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in systems or not number.isdecimal() or int(number) < 1:
            raise UserError(
                "compare-max-num-seqs",
                f"--max-num-seqs {text}: expected SYSTEM=N of {' or '.join(systems)}, "
                f"such as {systems[0]}=64",
            )
        found[name] = int(number)
    return found


def _hosts(texts: Iterable[str], systems: tuple[str, ...]) -> dict[str, HostCost]:
    found: dict[str, HostCost] = {}
    for text in texts:
        name, equals, times = text.partition("=")
        if not equals or name not in systems:
            raise UserError(
                "compare-host",
                f"--host {text}: expected SYSTEM=TIME of {' or '.join(systems)}, such as "
                f"{systems[0]}=5ms,20us",
            )
        found[name] = parse_host(times, f"--host {name}:")
    return found


def _base(wanted: str | None, systems: tuple[str, ...]) -> str:
    """vLLM is what people run today: that is what others are held against."""
    if wanted is None:
        return "vllm" if "vllm" in systems else systems[0]
    if wanted not in systems:
        raise UserError(
            "compare-base-unknown", f"--base {wanted} is not replayed; --systems has {', '.join(systems)}"
        )
    return wanted


def _names(text: str) -> list[str]:
    """Of a comma-separated list, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


def _notes(cells: list[Cell], spec: ComparisonSpec) -> Iterator[str]:
    """What a reader of the numbers should know of what is behind them."""
    equal = spec.equal
    if equal is None:
        yield from _apart(cells, spec)
    else:
        replaced = {
            f"{cell.deployments[name]} for {cell.amount_of(name, equal)} took the place of {name}'s {asked} "
            f"({cell.model} on {cell.trace})"
            for cell in cells
            for name, asked in cell.asked.items()
            if asked != cell.deployments[name]
        }
        for each in sorted(replaced):
            yield f"at equal {equal.amount} {each}"
    for kinds in filter(None, dict.fromkeys(cell.kinds_of_prices for cell in cells)):
        yield f"prices of different kinds are compared ({kinds}); give comparable ones with --price"
    yield from _without_window(cells)
    yield from left_out(cells)


def _without_window(cells: list[Cell]) -> Iterator[str]:
    """Whose numbers have the end of the run in them, where batches run empty, while the others' have not."""
    short = {
        (cell.trace, tuple(name for name, summary in cell.summaries.items() if summary.window.fell_back))
        for cell in cells
    }
    for trace, names in sorted(short):
        if names:
            yield (
                f"{trace} has too few requests for a steady window of {' and '.join(names)}: numbers there "
                "are over the whole run, until the last batch is empty"
            )


def _apart(cells: list[Cell], spec: ComparisonSpec) -> Iterator[str]:
    """Prices that are not about equal."""
    apart = {
        " and ".join(
            f"{cell.deployments[name]} of {name} for ${cell.usd_per_hour[name]:.2f}" for name in (a, b)
        )
        for cell in cells
        for a, b in zip(spec.systems, spec.systems[1:], strict=False)
        if abs(cell.usd_per_hour[a] / cell.usd_per_hour[b] - 1) > ABOUT_EQUAL
    }
    for each in sorted(apart):
        yield f"prices an hour differ: {each}; --equal-cost holds them together"
