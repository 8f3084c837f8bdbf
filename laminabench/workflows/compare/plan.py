"""A comparison's plan: what a request names, looked up - devices, costs, eras, models and traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs, usual_costs
from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import Deployment, devices_named, parse_deployments
from laminabench.catalog.entries import pick
from laminabench.catalog.eras import Era, load_eras, schedules_ahead_by_default
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import Device, device, priced_devices
from laminabench.catalog.host import parse_host
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.requests.compare import BOTH, MODELS, NEITHER, TOLERANCE, TRACES, CompareRequest
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.modelled.prepared import QUEUE, ROUTER, prefill_workers, prompt_budget
from laminabench.systems.registry import MODULES, require_prefill, system
from laminabench.systems.router import require_known, require_prefixes, require_several
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener
from laminabench.workflows.compare.cells import View
from laminabench.workflows.compare.eras import readings_of
from laminabench.workflows.compare.spec import ComparisonSpec, Equal
from laminabench.workflows.replay import Workload
from laminabench.workflows.replay.run import load

# The first one's price, or power, is the reference.
SYSTEMS = "lamina,vllm"


@dataclass(frozen=True, slots=True)
class Plan:
    """All names of a request, resolved: every cell that is replayed follows from it."""

    request: CompareRequest
    base: str
    spec: ComparisonSpec
    eras: list[Era]
    views: list[View]
    costs_as_named: Mapping[str, str]  # by the names that the sets have: one may be a file
    models: list[ModelShape]
    traces: list[Trace]

    @property
    def is_single(self) -> bool:
        """Whether there is one model on one trace: of several there is no one answer."""
        return len(self.models) * len(self.traces) == 1

    @property
    def replay(self) -> ReplayRequest:
        """Return the request that all replays of a single model on a single trace have in common."""
        request = self.request
        return structs.replace(
            _replay(request),
            trace=(request.trace or TRACES)[0],
            model=(request.model or MODELS)[0],
            network=request.network,
        )


def resolve(request: CompareRequest, listener: Listener, traces: list[Trace] | None = None) -> Plan:
    """Look up what a request names; a UserError for unknown names and contradictions.

    `traces` are the request's, where they have been loaded and cut before.
    """
    models = [modelled(name) for name in request.model or MODELS]
    systems = systems_named(request.systems or SYSTEMS)
    devices = _named_devices(request)
    # One set for all, so that no era is compared with another.
    usual = {usual_costs(each, devices) for each in models}
    default = usual.pop() if len(usual) == 1 else DEFAULT_COSTS
    eras = _eras(request, systems, default)
    names = request.costs or [era.costs for era in eras] or (default,)
    cost_sets = [load_costs(name, request.replay.attention_kernel) for name in names]
    spec = _spec(request, systems, cost_sets)
    base = _base(request.base, systems)
    require_unique("--costs", [each.name for each in cost_sets if request.costs])
    views = _views(spec, eras, cost_sets, named=bool(request.costs))
    if traces is None:
        common = _replay(request)
        names_ = request.trace or TRACES
        traces = [load(structs.replace(common, trace=name), listener) for name in names_]
    require_unique("--model", [each.name for each in models])
    require_unique("--trace", [each.meta.name for each in traces])
    for trace in traces:
        require_prefixes(spec.router, trace)
    costs_as_named = {each.name: name for each, name in zip(cost_sets, names, strict=True)}
    return Plan(request, base, spec, eras, views, costs_as_named, models, traces)


def resolve_pair(request: CompareRequest, model: ModelShape) -> tuple[ComparisonSpec, CostSet]:
    """Return what a single cell compares; of an era that is named, the low end of its host."""
    systems = systems_named(request.systems or SYSTEMS)
    eras = _eras(request, systems, "") if request.eras else []
    usual = eras[0].costs if eras else usual_costs(model, _named_devices(request))
    costs = load_costs(request.costs[0] if request.costs else usual, request.replay.attention_kernel)
    spec = _spec(request, systems, [costs])
    return (readings_of(spec, eras[0])[0] if eras else spec), costs


def _replay(request: CompareRequest) -> ReplayRequest:
    """Return the request's part of every replay."""
    return structs.replace(request.replay, **request.limits())


def _named_devices(request: CompareRequest) -> frozenset[str]:
    hardware = (each.rpartition("=")[2] for each in request.deployments)
    return devices_named(",".join((request.devices or "", *hardware)))


def systems_named(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of systems; a UserError for less than two."""
    systems = tuple(pick("system", name, dict.fromkeys(MODULES)) or name for name in _names(text))
    if len(systems) < 2:
        raise UserError("compare-too-few", f"--systems {text} cannot be compared; name at least two")
    return systems


def _eras(request: CompareRequest, systems: tuple[str, ...], default: str) -> list[Era]:
    """Return the eras that are named; else, unless other options describe the systems, the default set's."""
    async_ = () if request.host_async in (None, NEITHER) else (request.host_async,)
    described = {"--host": request.hosts, "--max-num-seqs": request.max_num_seqs, "--host-async": async_}
    known = load_eras()
    if not request.eras:
        if request.costs or any(described.values()):
            return []
        return [era for era in known.values() if era.costs == default and era.system in systems]
    eras = [pick("era", name, known) for name in dict.fromkeys(request.eras)]
    for era in eras:
        if era.system not in systems:
            raise UserError(
                "compare-era", f"--era {era.name} is of {era.system}; --systems has {', '.join(systems)}"
            )
        for flag, text in ((flag, text) for flag, texts in described.items() for text in texts):
            if flag == "--host-async" or text.partition("=")[0] == era.system:
                raise UserError(
                    "compare-era-says", f"{flag} {text}: --era {era.name} sets that; leave one of the two out"
                )
    return eras


def _views(
    spec: ComparisonSpec, eras: Sequence[Era], cost_sets: Sequence[CostSet], *, named: bool
) -> list[View]:
    """Return every era with the kernels of its time, or with the cost sets that the user names."""
    if not eras:
        return [View(costs, (spec,)) for costs in cost_sets]
    return [
        View(costs, readings_of(spec, era))
        for era in eras
        for costs in cost_sets
        if named or costs.name == era.costs
    ]


def require_unique(flag: str, names: list[str]) -> None:
    """Raise a UserError where two would have one place in the grid."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            "compare-name-twice",
            f"{flag}: two are called {twice}, and tables distinguish them by name; give one of them",
        )


def _spec(request: CompareRequest, systems: tuple[str, ...], cost_sets: Sequence[CostSet]) -> ComparisonSpec:
    choices = _replay(request)
    # Prices of two kinds cannot be compared: where one's devices are not for rent, all are bought.
    bases = (choices.price_basis, *(system(name).PRICE_BASIS for name in systems))
    known = known_devices(cost_sets)
    networks: dict[str, Network] = {}
    for each in cost_sets:
        networks |= each.networks
    catalogue = priced_devices(choices.price, next(filter(None, bases), None), choices.power, known)
    kinds = tuple(device(name, catalogue) for name in _names(request.devices or ""))
    tolerance = TOLERANCE if request.tolerance is None else request.tolerance
    equal = None if request.equal is None else Equal(tolerance, kinds, request.equal)
    ahead = all(schedules_ahead_by_default(each.name) for each in cost_sets)
    host_async = request.host_async or (BOTH if ahead else NEITHER)
    behind = {NEITHER: (), BOTH: systems}
    if host_async not in (*behind, *systems):
        raise UserError(
            "compare-host-async",
            f"--host-async {host_async} is not replayed; --systems has {', '.join(systems)}",
        )
    _require_prompts(choices, systems)
    given = _given(request.deployments, systems, choices.instances, catalogue)
    counts = (sum(map(system(name).instances_of, each)) for name, each in given.items())
    require_several(choices, max(counts, default=1))
    require_known(choices.router or ROUTER)
    return ComparisonSpec(
        systems,
        given=given,
        instances=choices.instances,
        router=choices.router or ROUTER,
        queue=choices.queue or QUEUE,
        catalogue=catalogue,
        network=parse_network(request.network, networks) if request.network else None,
        hosts=_hosts(request.hosts, systems),
        host_async=behind.get(host_async, (host_async,)),
        max_num_seqs=_limits(request.max_num_seqs, systems),
        admission=choices.admission,
        prompt_budget=prompt_budget(choices),
        prefill=prefill_workers(choices, catalogue),
        workload=Workload.of(choices),
        equal=equal,
    )


def _require_prompts(request: ReplayRequest, systems: tuple[str, ...]) -> None:
    """Raise a UserError for a system that computes no prompts, and for options that have no effect then."""
    require_prefill(request)
    for each in systems if request.prefill not in (None, "off") else ():
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
    deployments: dict[str, tuple[Deployment, ...]] = {}
    for text in texts:
        name, equals, deployment = text.partition("=")
        if not equals or name not in systems:
            raise UserError(
                "compare-deployment-syntax",
                f"--deployment {text}: expected SYSTEM=DEPLOYMENT of {' or '.join(systems)}, "
                "such as lamina=2xh100+4xh20",
            )
        if name in deployments:
            raise UserError(
                "compare-deployment-twice",
                f"--deployment {text}: {name} has been given {','.join(map(str, deployments[name]))} already",
            )
        deployments[name] = parse_deployments(deployment, instances, catalogue)
    return deployments


def _limits(texts: Iterable[str], systems: tuple[str, ...]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in systems or not number.isdecimal() or int(number) < 1:
            raise UserError(
                "compare-max-num-seqs",
                f"--max-num-seqs {text}: expected SYSTEM=N of {' or '.join(systems)}, "
                f"such as {systems[0]}=64",
            )
        limits[name] = int(number)
    return limits


def _hosts(texts: Iterable[str], systems: tuple[str, ...]) -> dict[str, HostCost]:
    hosts: dict[str, HostCost] = {}
    for text in texts:
        name, equals, times = text.partition("=")
        if not equals or name not in systems:
            raise UserError(
                "compare-host",
                f"--host {text}: expected SYSTEM=TIME of {' or '.join(systems)}, such as "
                f"{systems[0]}=5ms,20us",
            )
        hosts[name] = parse_host(times, f"--host {name}:")
    return hosts


def _base(requested: str | None, systems: tuple[str, ...]) -> str:
    """Return the system that others are compared with: what people run today, if it is among them."""
    if requested is None:
        return next((name for name in systems if system(name).BASELINE), systems[0])
    if requested not in systems:
        raise UserError(
            "compare-base-unknown", f"--base {requested} is not replayed; --systems has {', '.join(systems)}"
        )
    return requested


def _names(text: str) -> list[str]:
    """Parse a comma-separated list, each name once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
