"""Systems on the same requests, cell by cell as in v2 Figure 10, at equal cost or power if requested."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from msgspec import structs

from laminabench.analysis.binding import binding_of
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import assumed_amounts, kinds_of_prices
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.runs.summary import Summary, number_at
from laminabench.systems.includes import Includes
from laminabench.systems.modelled.includes import accuracy_of, includes_of
from laminabench.systems.modelled.prepared import Routed, require_requests
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.modelled.system import worth_trying
from laminabench.systems.registry import deployments, system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.util.parallel import spread
from laminabench.workflows.compare.curves import Curve, curve_of
from laminabench.workflows.compare.kernels import with_default_kernels
from laminabench.workflows.compare.runs import CellRun, run_of
from laminabench.workflows.compare.sides import Side, SideBySide, modelled_estimates, side_by_side
from laminabench.workflows.compare.spec import (
    ComparisonSpec,
    Deployed,
    Equal,
    Host,
    Reading,
    fitting_everywhere,
    host_of,
    least_room,
    longest_fitting,
    price_of,
    storage_types,
)
from laminabench.workflows.replay import ReplayRequest, replay
from laminabench.workflows.verdict import DefaultKernels, prices_of


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one trace with one cost set, at one end of an era: every system on the same requests."""

    model: str
    trace: str
    costs: str
    reading: Reading | None
    hosts: dict[str, Host]
    limits: dict[str, int]  # most requests at once
    includes: Includes
    errors: dict[str, float | None]  # shares of modelled times, by the accuracy board
    devices: dict[str, dict[str, tuple[int, float]]]  # counts, and the hourly price of one
    other: DefaultKernels
    dropped: int  # requests that one of the systems could never hold, left out for all
    least_room: str  # which one that is, and what it holds
    requested: dict[str, str]  # deployments; at equal cost others may have taken their place
    deployments: dict[str, str]
    usd_per_hour: dict[str, float]
    power_w: dict[str, float | None]  # rated
    boards: dict[str, int]  # of systems on boards, how many
    storage_types: dict[str, str]  # the type of weights and KV
    summaries: dict[str, Summary]
    slo_tbt_ms: float
    slo_ttft_ms: float | None
    kinds_of_prices: str  # where they cannot be compared: which device has which
    assumed: tuple[str, ...]  # unpublished prices and watts, a sentence each
    load: str = ""  # as the spec's
    runs: tuple[CellRun, ...] = field(default=(), repr=False, compare=False)
    curves: tuple[Curve, ...] = field(default=(), repr=False, compare=False)

    @property
    def band(self) -> str:
        """Return the name of the range that it is one end of: the cost set's, or the era's."""
        return self._named(self.reading.era.name if self.reading else "")

    @property
    def label(self) -> str:
        """Return a name that differs from those of the other cells of its model and trace."""
        return self._named(str(self.reading or ""))

    def _named(self, reading: str) -> str:
        """Add the cost set, unless that is the era's, and the load."""
        own = self.reading is not None and self.reading.era.costs == self.costs
        return ", ".join(filter(None, (reading, "" if own else self.costs, self.load)))

    @property
    def same_host(self) -> bool:
        """Return whether all hosts are as slow as the era's, which no source says."""
        return self.reading is not None and self.reading.same_host

    @property
    def throughput_tokens_per_s(self) -> dict[str, float]:
        return {name: summary.throughput_tokens_per_s or 0.0 for name, summary in self.summaries.items()}

    @property
    def mean_batch(self) -> dict[str, float]:
        return {name: summary.mean_batch for name, summary in self.summaries.items()}

    @property
    def tbt_ms(self) -> dict[str, float | None]:
        return {name: summary.tbt_ms.p50 for name, summary in self.summaries.items()}

    def gain_of(self, name: str, base: str) -> float:
        """Return one system's throughput over another's, less one."""
        return self.throughput_tokens_per_s[name] / self.throughput_tokens_per_s[base] - 1

    def gain_per_dollar_of(self, name: str, base: str) -> float:
        """Return the gain at exactly equal cost."""
        return (1 + self.gain_of(name, base)) * self.usd_per_hour[base] / self.usd_per_hour[name] - 1

    def amount_of(self, name: str, equal: Equal) -> str:
        """Return a system's amount of what was equal, with its unit."""
        amount = self.usd_per_hour[name] if equal.amount == "cost" else self.power_w[name]
        assert amount is not None
        return equal.text(amount).removesuffix(" an hour")

    def break_even_usd(self, name: str, other: str) -> float | None:
        """Return the hourly price of a board at which a dollar buys as many tokens as the other system's."""
        rate = self.throughput_tokens_per_s
        if name not in self.boards or not rate[other]:
            return None
        return rate[name] / rate[other] * self.usd_per_hour[other] / self.boards[name]

    def break_evens(self, base: str) -> dict[str, dict[str, float]]:
        """Return the break-even prices of systems on boards with the base, or of the base with all others."""
        others = [name for name in self.summaries if name != base]
        pairs = [(base, each) if base in self.boards else (each, base) for each in others]
        prices: dict[str, dict[str, float]] = {}
        for name, other in pairs:
            usd = self.break_even_usd(name, other)
            if usd is not None:
                prices.setdefault(name, {})[other] = usd
        return prices

    def sides(self, base: str) -> SideBySide:
        entries = [
            Side(name, name, self.deployments[name], self.model, "modelled", modelled_estimates(summary))
            for name, summary in self.summaries.items()
        ]
        place = list(self.summaries).index(base)
        return side_by_side(entries, place, self.slo_tbt_ms, self.slo_ttft_ms)

    def row(self, base: str) -> dict[str, Json]:
        others = [name for name in self.summaries if name != base]
        batch = self.mean_batch
        return {
            "model": self.model,
            "trace": self.trace,
            "costs": self.costs,
            **({"load": self.load} if self.load else {}),
            "era": self.reading.era.name if self.reading else None,
            "hosts_alike": self.same_host,
            "host": {name: host._asdict() for name, host in self.hosts.items()},
            "max_num_seqs": self.limits,
            "includes": self.includes.describe(),
            "dropped": self.dropped,
            "least_room": self.least_room,
            "deployment": self.deployments,
            "usd_per_hour": self.usd_per_hour,
            "power_w": self.power_w,
            "weights_and_kv": self.storage_types,
            "throughput_tokens_per_s": self.throughput_tokens_per_s,
            "mean_batch": batch,
            "tbt_ms": self.tbt_ms,
            "gain": {name: self.gain_of(name, base) for name in others},
            "gain_per_dollar": {name: self.gain_per_dollar_of(name, base) for name in others},
            "binds": {name: binding_of(summary)._asdict() for name, summary in self.summaries.items()},
            "batch_ratio": {name: batch[name] / batch[base] for name in others},
            "break_even_usd_per_board_hour": self.break_evens(base),
            "assumed": list(self.assumed),
            "compared": self.sides(base).describe(),
            **(self._curves() if self.curves else {}),
        }

    def _curves(self) -> dict[str, Json]:
        return {
            "curves": {each.system: [asdict(point) for point in each.points] for each in self.curves},
            "errors": self.errors,
        }


# What was replayed: the system, its setup and instances, and the prompts of the requests.
Done = dict[tuple[str, Setup, Routed, bytes], tuple[Summary, CellRun | None]]


@dataclass(frozen=True, slots=True)
class Placed:
    """The devices of every system, and the requests that fit on all of them."""

    requested: dict[str, Deployed]
    chosen: dict[str, Deployed]  # at equal cost or power others may have taken their place
    fitting: Trace
    dropped: int  # requests that one of the systems could never hold, left out for all

    @property
    def devices(self) -> list[Device]:
        return _devices(self.chosen)


def placed(spec: ComparisonSpec, model: ModelShape, trace: Trace, costs: CostSet) -> Placed:
    """Deploy every system, at equal cost or power if the spec says so; a UserError if nothing fits."""
    requested = spec.deployed(model, costs)
    chosen = made_equal(requested, spec, spec.equal, trace, costs) if spec.equal else requested
    for name, each in chosen.items():
        price_of(name, each.hardware)
    fitting = fitting_everywhere(trace, chosen)
    if not len(fitting):
        raise UserError(
            "compare-no-request-fits",
            f"no request of {trace.meta.name} fits {' and '.join(chosen)} with {model.name}",
        )
    for each in chosen.values():
        require_requests(fitting, len(each.routed.instances))
    return Placed(requested, chosen, fitting, len(trace) - len(fitting))


def cell(
    spec: ComparisonSpec,
    model: ModelShape,
    trace: Trace,
    costs: CostSet,
    done: Done | None = None,
    common: ReplayRequest | None = None,
    *,
    with_curves: bool = False,
    placement: Placed | None = None,
) -> Cell:
    """Replay every system of the spec, except for what is `done`.

    With `common`, the request that all replays have in common, the cell has its Runs. Readings with all
    hosts as slow as the era's have neither these nor curves: they explain a gain, and are no deployments.
    `placement` has the devices where they have been chosen; otherwise the spec chooses them.
    """
    placement = placement or placed(spec, model, trace, costs)
    requested, chosen, fitting = placement.requested, placement.chosen, placement.fitting
    done, requests = {} if done is None else done, fitting.prompt_tokens.tobytes()
    hypothetical = spec.reading is not None and spec.reading.same_host
    stored = None if hypothetical else common
    for name, each in chosen.items():
        key = name, each.setup, each.routed, requests
        if key not in done:
            replayed = replay(fitting, name, each.setup, spec.workload, each.routed)
            run = run_of(name, each, spec, costs, stored, fitting, replayed) if stored else None
            done[key] = replayed.summary, run
    results = {name: done[name, each.setup, each.routed, requests] for name, each in chosen.items()}
    devices = placement.devices
    curves = [
        curve_of(name, each.setup, each.routed, fitting, spec.workload, results[name][0])
        for name, each in chosen.items()
        if with_curves and not hypothetical
    ]
    other = DefaultKernels() if hypothetical else with_default_kernels(chosen, fitting, spec.workload)
    return Cell(
        model=model.name,
        trace=trace.meta.name,
        costs=costs.name,
        reading=spec.reading,
        hosts={name: host_of(each.setup) for name, each in chosen.items()},
        limits={
            name: each.setup.max_num_seqs or system(name).most_requests(each.setup.deployment)
            for name, each in chosen.items()
        },
        errors={name: accuracy_of(name, each.setup).error for name, each in chosen.items()},
        devices={name: prices_of(each.routed.instances) for name, each in chosen.items()},
        other=other,
        includes=includes_of((name, setup) for name, each in chosen.items() for setup in each.kinds),
        dropped=placement.dropped,
        least_room=least_room(chosen),
        requested={name: str(each.hardware) for name, each in requested.items()},
        deployments={name: str(each.hardware) for name, each in chosen.items()},
        usd_per_hour={name: price_of(name, each.hardware) for name, each in chosen.items()},
        power_w={name: each.hardware.power_w for name, each in chosen.items()},
        boards={name: each.boards for name, each in chosen.items() if each.boards},
        storage_types={name: storage_types(each.setup) for name, each in chosen.items()},
        summaries={name: summary for name, (summary, _) in results.items()},
        slo_tbt_ms=spec.workload.slo_tbt_ms,
        slo_ttft_ms=spec.workload.slo_ttft_ms,
        kinds_of_prices=kinds_of_prices(devices),
        assumed=assumed_amounts(devices),
        load=spec.load,
        runs=tuple(run for _, run in results.values() if run and stored),
        curves=tuple(curves),
    )


def _devices(some: Mapping[str, Deployed]) -> list[Device]:
    return [part.device for each in some.values() for setup in each.kinds for part in setup.deployment.parts]


class View(NamedTuple):
    """A cost set with the specs that use it: the user's, or the readings of an era."""

    costs: CostSet
    specs: tuple[ComparisonSpec, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    views: list[View]
    models: list[ModelShape]
    traces: list[Trace]
    common: ReplayRequest | None = None  # of all replays, where their Runs are stored
    costs_as_named: Mapping[str, str] = field(default_factory=dict)  # by the names that the sets have
    with_curves: bool = False


def grid_cells(
    grid: Grid, *, jobs: int | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Cell]:
    """Replay the grid; cells are in the order views, models, traces, readings."""
    places = list(itertools.product(range(len(grid.views)), range(len(grid.models)), range(len(grid.traces))))
    cells: dict[int, list[Cell]] = {}
    for place, each in spread(_work, places, grid, jobs=jobs):
        cells[place] = each
        progress(len(cells), len(places))
    return [each for place in range(len(places)) for each in cells[place]]


def _work(grid: Grid, place: tuple[int, int, int]) -> list[Cell]:
    (costs, specs), model, trace = grid.views[place[0]], grid.models[place[1]], grid.traces[place[2]]
    common = grid.common
    if common is not None:
        common = structs.replace(common, costs=grid.costs_as_named[costs.name])
    done: Done = {}
    return [cell(spec, model, trace, costs, done, common, with_curves=grid.with_curves) for spec in specs]


def made_equal(
    given: dict[str, Deployed], spec: ComparisonSpec, equal: Equal, trace: Trace, costs: CostSet
) -> dict[str, Deployed]:
    """Return deployments within the tolerance of the first one's price, or power.

    A replacement has as many instances, all of one deployment.
    """
    first, *others = given
    reference = given[first]
    amount = equal.of(first, reference.hardware)
    fitting_all = fitting_everywhere(trace, {first: reference})
    if first not in spec.given:
        reference = _best(first, _laid_out(first, reference, spec), spec, fitting_all)
    known = {each.name: each for each in _devices(given)}
    devices = equal.devices or tuple(known.values())
    model = reference.setup.model
    equals = {first: reference}
    for name in others:
        if equal.allows(given[name].hardware, amount):
            equals[name] = given[name]
            continue
        instances = len(given[name].routed.instances)
        possible = [
            spec.on(name, model, costs, (each,) * instances) for each in deployments(name, model, devices)
        ]
        near = _fitting(name, [each for each in possible if equal.allows(each.hardware, amount)])
        if not near:
            fitting = _fitting(name, possible)
            raise UserError(
                "compare-no-equal-deployment", _nothing_near(name, fitting, amount, equal, devices)
            )
        equals[name] = _best(name, near, spec, fitting_all)
    return equals


def _laid_out(name: str, on: Deployed, spec: ComparisonSpec) -> list[Deployed]:
    """Return the same devices in every layout of a mixture of experts, the given one first."""
    model, workers = on.setup.model, on.setup.deployment.model
    if model.experts is None:
        return [on]
    instances, costs = len(on.routed.instances), on.setup.costs
    layouts = [each for each in worth_trying(model) if each.devices == workers.count]
    others = [replace(on.setup.deployment, model=replace(workers, layout=layout)) for layout in layouts]
    return _fitting(name, [on, *(spec.on(name, model, costs, (each,) * instances) for each in others)])


def _best(name: str, some: list[Deployed], spec: ComparisonSpec, fitting: Trace) -> Deployed:
    if len(some) == 1:
        return some[0]
    served = [_served(name, each, spec, fitting) for each in some]
    return some[served.index(max(served))]


def _fitting(name: str, some: Iterable[Deployed]) -> list[Deployed]:
    options = []
    for each in some:
        try:
            longest_fitting(name, each.setup)
        except UserError:  # no memory for it, or no way to split the model so
            continue
        options.append(each)
    return options


def _served(name: str, on: Deployed, spec: ComparisonSpec, trace: Trace) -> tuple[int, float]:
    """Return how many of the reference's requests a deployment serves, and how fast.

    With a limit of TTFT that is how many requests a second are within both limits.
    """
    fitting = fitting_everywhere(trace, {name: on})
    if len(fitting) < len(on.routed.instances):
        return 0, 0.0
    summary = replay(fitting, name, on.setup, spec.workload, on.routed).summary
    key = "slo.goodput_requests_per_s" if spec.workload.slo_ttft_ms else "throughput_tokens_per_s"
    return len(fitting), number_at(summary, key) or 0.0


def _nothing_near(
    name: str, fitting: list[Deployed], amount: float, equal: Equal, devices: tuple[Device, ...]
) -> str:
    # If there is none of a kind that it runs on, that is what to read.
    right = [device for device in devices if system(name).runs_on(device)]
    kinds = ", ".join(device.name for device in right or devices)
    what = f"no deployment of {name} on {kinds} is within {equal.tolerance:.0%} of {equal.text(amount)}"
    known = {str(each.hardware): own for each in fitting if (own := equal.known(each.hardware)) is not None}
    if not known:
        has = "price" if equal.amount == "cost" else "rated power"
        return f"{what}: none has the memory and a {has}; name other kinds with --devices"
    closest = min(known, key=lambda text: abs(known[text] - amount))
    return (
        f"{what}; the nearest is {closest} for {equal.text(known[closest]).removesuffix(' an hour')}: "
        "raise --tolerance, or name other kinds with --devices"
    )
