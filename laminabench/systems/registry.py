"""The systems by name, modelled and live; which choices each takes; and a request made ready for one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

import msgspec

from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, parse_deployment
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.requests.replay import FIELDS, ReplayRequest
from laminabench.runs.manifest import Backend
from laminabench.systems.base import Live, Prepared
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.modelled.system import COMPUTED, System
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT, Listener
from laminabench.util.suggest import nearest

_MODELLED = "laminabench.systems.modelled"
_LIVE = "laminabench.systems.live"
# By name; a new system is one package and one line here.
MODULES = {
    "lamina": f"{_MODELLED}.lamina",
    "lamina-v1": f"{_MODELLED}.lamina_v1",
    "vllm": f"{_MODELLED}.vllm",
    "h2m2": f"{_MODELLED}.h2m2",
    "afd": f"{_MODELLED}.afd",
}
# What is replayed unless the user says otherwise, and what is compared.
DEFAULT = ReplayRequest().system
COMPARED = ("lamina", "vllm")
# What any OpenAI-compatible server is, which a client alone sees.
SERVER = "openai"
# What paces live workers as devices that are not here.
EMULATED = {"lamina": f"{_LIVE}.emulated"}
LIVE = {"lamina": f"{_LIVE}.lamina", "vllm": f"{_LIVE}.vllm", "openai": f"{_LIVE}.endpoint"}
NAMES = tuple(dict.fromkeys((*MODULES, *LIVE)))

# Fields that every system takes.
_COMMON = frozenset(name for name, field in FIELDS.items() if not field.option.takes)


def system(name: str) -> System:
    """Return the modelled system of that name."""
    modelled: System = importlib.import_module(MODULES[name]).SYSTEM
    return modelled


def live_system(name: str, *, emulated: bool = False) -> Live:
    """Return the live system of that name, or what emulates it if there is such."""
    modules = {**LIVE, **EMULATED} if emulated else LIVE
    live: Live = importlib.import_module(modules[name]).SYSTEM
    return live


def colours(*, page: bool = False) -> dict[str, str]:
    """Return the colour of each modelled system, in a figure or on a page."""
    systems = {name: system(name) for name in MODULES}
    return {name: (page and one.PAGE_COLOUR) or one.COLOUR for name, one in systems.items()}


def marker(name: str) -> str:
    """Return the marker of a system's points; a Run may be of a system that is not known here."""
    return system(name).MARKER if name in MODULES else System.MARKER


def of_server(deployment: Deployment) -> System:
    """Return the system that models a server on these devices: with attention workers this project's own."""
    split = deployment.attention is not None
    return next(one for one in map(system, MODULES) if split == one.SPLIT)


def find_system(name: str | None, backend: str | None) -> System | Live | None:
    """Return the system that a request of this name and backend is prepared by, if there is one."""
    if name in MODULES and backend != "live":
        return system(name)
    return live_system(name) if name in LIVE else None


def takes(kind: System | Live, name: str) -> bool:
    """Return whether a system takes this field of a request."""
    return name in _COMMON or name in kind.TAKES


def deployments(
    system_name: str,
    model: ModelShape,
    devices: Sequence[Device],
    *,
    usd_per_hour: tuple[float, float] = (0.0, float("inf")),
    most_attention: int = 32,
    replicas: int = 1,
) -> Iterator[Deployment]:
    """Return the system's deployments whose price is within these, ends included; memory may not suffice."""
    low, high = usd_per_hour
    options = system(system_name).deployments(
        model, devices, most_attention=most_attention, replicas=replicas
    )
    for each in options:
        price = each.usd_per_hour
        # A device without a price cannot be compared by cost.
        if price is not None and low <= price <= high:
            yield each


def prepare(request: ReplayRequest, listener: Listener = SILENT) -> Prepared:
    """Settle all the request's choices; raise a UserError for what its system does not have."""
    backend = backend_of(request)
    emulated = request.emulate is not None
    chosen = live_system(request.system, emulated=emulated) if backend == "live" else system(request.system)
    _require_taken(request, chosen, backend)
    request = msgspec.structs.replace(request, backend=backend)
    if isinstance(chosen, Live):
        return chosen.prepare(request, listener)
    from laminabench.systems.modelled.prepared import prepare as prepare_modelled

    return prepare_modelled(request, chosen, listener)


def backend_of(request: ReplayRequest) -> Backend:
    """Return what the replay runs on; raise a UserError for a system that cannot run on that."""
    name = request.system
    if name not in MODULES and name not in LIVE:
        raise UserError("system-unknown", f"no system is called '{name}'; {nearest(name, NAMES)}")
    if request.live and name not in LIVE:
        raise UserError(
            "replay-not-live",
            f"{name} is modelled only; --backend live goes with --system {', '.join(LIVE)}",
        )
    if name in MODULES:
        return request.backend or "modelled"
    if request.backend == "modelled":
        raise UserError("replay-not-modelled", f"{name} cannot be modelled: leave --backend out")
    return "live"


def _require_taken(request: ReplayRequest, chosen: System | Live, backend: Backend) -> None:
    """Raise a UserError for a choice without effect: ignoring it would answer another question."""
    for name, field in FIELDS.items():
        value = getattr(request, name)
        if takes(chosen, name) or not request.is_set(name):
            continue
        if name in chosen.ANYWAY and value == chosen.ANYWAY[name]:
            continue
        how = "live" if request.emulate is None else "emulated"
        own = f"{how} {request.system}" if backend == "live" else request.system
        spelled = f"--no-{field.key}" if value is False else field.flag
        why = f": {chosen.WHY_NOT}" if chosen.WHY_NOT else ""
        raise UserError(
            "replay-flag-unused",
            f"{spelled} is for {', '.join(_takers(name) or _emulated_takers(name))}, not for {own}{why}",
        )
    # Modelled prompts can share their beginnings without being computed.
    sharing = ["prefix_sharing"] if backend == "live" else []
    require_prefill(request, sharing, "model" if backend == "live" else COMPUTED)


def require_prefill(request: ReplayRequest, more: Sequence[str] = (), how: str = COMPUTED) -> None:
    """Raise a UserError for a choice about prompts where none are computed."""
    for name in ("max_batched_tokens", "slo_ttft_ms", *more):
        if request.is_set(name) and request.prefill in (None, "off"):
            raise UserError(
                "replay-flag-unused",
                f"{FIELDS[name].flag} is for replays that compute prompts; add --prefill {how}",
            )


def _takers(name: str) -> list[str]:
    """Return the systems that take a choice."""
    return [
        *(each for each in MODULES if name in system(each).TAKES),
        *(f"live {each}" for each in LIVE if name in live_system(each).TAKES),
    ]


def _emulated_takers(name: str) -> list[str]:
    return [f"emulated {each}" for each in EMULATED if name in live_system(each, emulated=True).TAKES]


def papers_setup(name: str, model: ModelShape, costs: CostSet) -> Setup:
    """Return a system as its paper deploys it for this model, on its network."""
    paper_system = system(name)
    deployment = parse_deployment(paper_system.default_deployment(model))
    return Setup(model, deployment, costs, parse_network(paper_system.NETWORK))
