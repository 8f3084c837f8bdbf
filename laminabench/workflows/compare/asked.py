"""Systems to compare as a person names them, looked up: on which devices, with which costs, at what time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from laminabench.catalog.cost_file import COSTS_OF_TODAY, load_costs, usual_costs
from laminabench.catalog.cost_terms import HostCost
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.deployment import Deployment, devices_named, parse_deployments
from laminabench.catalog.entries import pick
from laminabench.catalog.eras import Era, load_eras
from laminabench.catalog.hardware import Device, device, priced_devices
from laminabench.catalog.host import parse_host
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.requests.replay import CHOICES, ReplayRequest
from laminabench.systems.modelled.prepared import QUEUE, ROUTER, prefill_workers, prompt_budget
from laminabench.systems.modelled.system import COMPUTED
from laminabench.systems.registry import MODULES, system
from laminabench.systems.router import require_known, require_several
from laminabench.util.errors import UserError
from laminabench.workflows.compare.cells import View
from laminabench.workflows.compare.eras import readings_of
from laminabench.workflows.compare.spec import Amount, ComparisonSpec, Equal
from laminabench.workflows.replay import Workload

# v2 Figure 10.
MODELS = ("llama-33b", "llama-65b", "llama3-70b")
TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")
COSTS = ("vllm-0.14", "vidur-2024")
# Choices that are a replay's too, and mean the same.
SHARED = (
    *("mode", "concurrency", "slo_tbt_ms", "slo_ttft_ms", "admission", "prefill", "max_batched_tokens"),
    *("instances", "router", "queue", "price", "power", "price_basis"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is compared on what, by the names that `laminabench compare` takes."""

    systems: tuple[str, ...]
    models: tuple[str, ...] = MODELS
    traces: tuple[str, ...] = TRACES
    costs: tuple[str, ...] = ()  # the eras' or the models' own, where none is named
    eras: tuple[str, ...] = ()
    deployments: tuple[str, ...] = ()  # each as SYSTEM=DEPLOYMENT; the papers', where none is given
    limits: tuple[str, ...] = ()  # each as SYSTEM=N
    hosts: tuple[str, ...] = ()  # each as SYSTEM=TIME
    host_async: str = "neither"
    network: str | None = None
    devices: str | None = None
    equal: Amount | None = None
    tolerance: float = Equal().tolerance
    base: str | None = None
    choices: ReplayRequest = field(default_factory=ReplayRequest)  # SHARED ones, and the cuts of the trace

    @property
    def named_devices(self) -> frozenset[str]:
        hardware = (each.rpartition("=")[2] for each in self.deployments)
        return devices_named(",".join((self.devices or "", *hardware)))


@dataclass(frozen=True, slots=True)
class Terms:
    """The names looked up."""

    base: str
    spec: ComparisonSpec
    eras: list[Era]
    views: list[View]
    costs_as_named: Mapping[str, str]  # by the names that the sets have: one may be a file


def terms(asked: Asked, models: Sequence[ModelShape]) -> Terms:
    """What is compared on each of the models; a UserError for what there is not, or contradicts itself."""
    usual = dict.fromkeys(usual_costs(each, asked.named_devices) for each in models)
    # One set for all, so that no era is compared with another.
    # Nor with kernels that there were not: those of 2024 are in 16 bits.
    today = COSTS_OF_TODAY in usual or any(DTYPE_BYTES[each.dtype] != 2 for each in models)
    eras = _eras(asked, today=today)
    names = asked.costs or [era.costs for era in eras] or ((COSTS_OF_TODAY,) if today else COSTS)
    cost_sets = [load_costs(name) for name in names]
    spec = _spec(asked, cost_sets)
    base = _base(asked.base, asked.systems)
    require_names_apart("--costs", [each.name for each in cost_sets if asked.costs])
    views = _views(spec, eras, cost_sets, named=bool(asked.costs))
    return Terms(
        base, spec, eras, views, {each.name: name for each, name in zip(cost_sets, names, strict=True)}
    )


def systems_named(text: str) -> tuple[str, ...]:
    """Those of a comma-separated list; a UserError where they are none to compare."""
    found = tuple(pick("system", name, dict.fromkeys(MODULES)) or name for name in _names(text))
    if len(found) < 2:
        raise UserError("compare-too-few", f"--systems {text} is nothing to compare; name at least two")
    return found


def terms_of_two(asked: Asked, model: ModelShape) -> tuple[ComparisonSpec, CostSet]:
    """What one cell is of: at the low end of the era's host, if an era is named."""
    eras = _eras(asked, today=False) if asked.eras else []
    usual = eras[0].costs if eras else usual_costs(model, asked.named_devices)
    costs = load_costs(asked.costs[0] if asked.costs else usual)
    spec = _spec(asked, [costs])
    return (readings_of(spec, eras[0])[0] if eras else spec), costs


def _eras(asked: Asked, *, today: bool) -> list[Era]:
    """Those that were asked for; else, where nothing else says what systems are, all that models have."""
    async_ = () if asked.host_async == "neither" else (asked.host_async,)
    said = {"--host": asked.hosts, "--max-num-seqs": asked.limits, "--host-async": async_}
    known = load_eras()
    if not asked.eras:
        if asked.costs or any(said.values()):
            return []
        of_models = [era for era in known.values() if not today or era.costs == COSTS_OF_TODAY]
        return [era for era in of_models if era.system in asked.systems]
    eras = [pick("era", name, known) for name in dict.fromkeys(asked.eras)]
    for era in eras:
        if era.system not in asked.systems:
            raise UserError(
                "compare-era",
                f"--era {era.name} is of {era.system}; --systems has {', '.join(asked.systems)}",
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


def require_names_apart(flag: str, names: list[str]) -> None:
    """A UserError where two would have one place in the grid."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            "compare-name-twice",
            f"{flag}: two are called {twice}, and tables tell them apart by name; give one of them",
        )


def _spec(asked: Asked, cost_sets: Sequence[CostSet]) -> ComparisonSpec:
    systems, choices = asked.systems, asked.choices
    # Prices of two kinds cannot be compared: where one's devices are not for rent, all are bought.
    bases = (choices.price_basis, *(system(name).PRICE_BASIS for name in systems))
    known = known_devices(cost_sets)
    networks: dict[str, Network] = {}
    for each in cost_sets:
        networks |= each.networks
    catalogue = priced_devices(choices.price, next(filter(None, bases), None), choices.power, known)
    kinds = tuple(device(name, catalogue) for name in _names(asked.devices or ""))
    equal = None if asked.equal is None else Equal(asked.tolerance, kinds, asked.equal)
    async_ = {"neither": (), "both": systems}
    if asked.host_async not in (*async_, *systems):
        raise UserError(
            "compare-host-async",
            f"--host-async {asked.host_async} is not replayed; --systems has {', '.join(systems)}",
        )
    _require_prompts(choices, systems)
    given = _given(asked.deployments, systems, choices.instances, catalogue)
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
        network=parse_network(asked.network, networks) if asked.network else None,
        hosts=_hosts(asked.hosts, systems),
        host_async=async_.get(asked.host_async, (asked.host_async,)),
        max_num_seqs=_limits(asked.limits, systems),
        admission=choices.admission,
        prompt_budget=prompt_budget(choices),
        prefill=prefill_workers(choices, catalogue),
        workload=Workload.of(choices),
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
    """Return the system that others are compared with: what people run today, if it is among them."""
    if wanted is None:
        return next((name for name in systems if system(name).BASELINE), systems[0])
    if wanted not in systems:
        raise UserError(
            "compare-base-unknown", f"--base {wanted} is not replayed; --systems has {', '.join(systems)}"
        )
    return wanted


def _names(text: str) -> list[str]:
    """Of a comma-separated list, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
