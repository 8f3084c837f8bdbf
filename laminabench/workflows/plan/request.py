"""A plan's request with its names looked up, and the candidates that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from laminabench.catalog.cost_file import load_costs, usual_costs
from laminabench.catalog.costs import known_devices
from laminabench.catalog.deployment import (
    assumed_amounts,
    devices_named,
    kinds_of_prices,
    parse_deployment,
)
from laminabench.catalog.eras import schedules_ahead_by_default
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import Device, device, priced_devices
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.requests.plan import PlanRequest
from laminabench.systems.registry import DEFAULT, MODULES, system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener
from laminabench.util.suggest import nearest
from laminabench.workflows.plan.answer import Answer, answer, require_replayed
from laminabench.workflows.plan.measure import cluster
from laminabench.workflows.plan.question import (
    MOST_INSTANCES,
    NO_PROMPTS,
    SLO_QUEUEING_P99_S,
    Candidate,
    Limits,
    Prompts,
    Question,
    candidates,
)

# The compute device of docs/today.md, the papers' two devices, and the A100: all with measured kernels.
DEVICES = "h200,h100,h20,a100-80g"
# As many times what the v2 paper's deployment for the model costs an hour.
BUDGET_TIMES = 2
# Most tokens in an iteration that are worth trying with prompts: fewer make shorter gaps between tokens.
PROMPT_BUDGETS = (512, 1024, 2048)
# Devices that only compute prompts: no requests decode on them.
POOL_BUDGETS = (2048,)


def devices_of(names: str, known: Mapping[str, Device]) -> list[Device]:
    """Parse `h100,h20,a100`: names, or names of families, each of which stands for all of its devices."""
    devices: dict[str, Device] = {}
    for name in (each.strip().lower() for each in names.split(",")):
        family = [each for each in known if each.startswith(f"{name}-") and name]
        for each in [name] if name in known or not family else family:
            devices[each] = device(each, known)
    unpriced = [name for name, each in devices.items() if each.price_usd_per_hour is None]
    if unpriced:
        raise UserError(
            "device-no-price", f"--devices: {unpriced[0]} has no price; give one: --price {unpriced[0]}=2.5"
        )
    return list(devices.values())


def price_note(devices: Sequence[Device]) -> str:
    """Return a warning if rents and purchases are compared, else an empty text."""
    kinds = kinds_of_prices(devices)
    return kinds and f"prices of different kinds are compared ({kinds}); see --price and --price-basis"


def _require_used(systems: Sequence[str], devices: Sequence[Device]) -> None:
    """Raise a UserError for a device or a system that could not be used."""
    if not any(system(name).runs_on(device) for name in systems for device in devices):
        raise UserError(
            "plan-system-without-devices",
            f"--devices names none that {' or '.join(systems)} runs on; add one",
        )
    for each in devices:
        if not any(system(name).runs_on(each) for name in systems):
            able = " or ".join(name for name in MODULES if system(name).runs_on(each))
            what = "a board" if each.board else "a device"
            raise UserError(
                "plan-device-unused",
                f"--devices: {each.name} is {what}, which only {able} runs on; add {able} to --systems",
            )


def with_prompts(systems: Sequence[str], named: bool) -> tuple[str, ...]:
    """Return the systems that compute prompts; a UserError for a `named` one that does not."""
    able = tuple(name for name in systems if "prefill" in system(name).TAKES)
    for name in systems:
        if named and name not in able:
            raise UserError(
                "system-no-prompts",
                f"--systems: {name} computes no prompts; leave it out, or plan with --prefill off",
            )
    return able


def papers_budget(model: ModelShape, known: Mapping[str, Device]) -> float:
    """Return the default budget in dollars an hour."""
    usd = parse_deployment(system(DEFAULT).default_deployment(model), known).usd_per_hour
    assert usd is not None
    return BUDGET_TIMES * usd


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """A request whose names are looked up, and whose defaults are filled in."""

    request: PlanRequest
    model: ModelShape
    systems: tuple[str, ...]
    devices: tuple[Device, ...]

    @property
    def budget(self) -> float:
        """The most dollars an hour."""
        assert self.request.budget is not None
        return self.request.budget

    @property
    def limits(self) -> Limits:
        return Limits(self.budget, self.request.power_budget or float("inf"), self.request.most_devices)

    def questions(self, trace: Trace) -> list[Question]:
        """Return a question for every cost set."""
        request = self.request
        assert request.mode
        assert request.prefill
        assert request.slo_queueing_p99_s
        if request.mode == "open" and not trace.meta.has_arrivals:
            raise UserError(
                "trace-no-arrivals",
                f"{trace.meta.name} has no arrival times; an open plan of it needs --request-rate",
            )
        return [
            Question(
                trace,
                self.model,
                costs,
                request.slo_tbt_p99_ms,
                request.mode,
                request.slo_queueing_p99_s,
                None if request.network is None else parse_network(request.network, costs.networks),
                _ahead(request, costs.name),
                request.slo_ttft_ms,
                request.prefill,
            )
            for costs in (load_costs(name, request.replay.attention_kernel) for name in request.costs)
        ]

    def candidates(self, question: Question) -> list[Candidate]:
        """Return every deployment within the limits."""
        budget, prefill = self.request.max_batched_tokens, self.request.prefill
        given = (budget,) if budget else ()
        prompts = Prompts(
            (given or PROMPT_BUDGETS) if prefill in ("colocated", "any") else (),
            (given or POOL_BUDGETS) if prefill in ("pool", "any") else (),
            # Saturated, so many instances make as many times the tokens for as many times the price.
            MOST_INSTANCES if question.mode == "open" else 1,
        )
        return affordable(question, self.systems, self.devices, self.limits, prompts)

    def answer(self, question: Question, listener: Listener, *, at_any_price: bool = False) -> Answer:
        """Search for the answer of one question; a UserError if no candidate fits the longest request."""
        candidates = self.candidates(question)
        with listener.progress(f"searching with {question.costs.name}", unit="candidates") as report:
            result = answer(
                question,
                candidates,
                exhaustive=bool(self.request.exhaustive),
                at_any_price=at_any_price,
                jobs=self.request.jobs,
                report=report,
            )
        require_replayed(question, result.search)
        return result

    def describe(self, trace: Trace) -> dict[str, object]:
        """Return the plan for --json."""
        request = self.request
        named = {name: getattr(trace.meta, name) for name in ("name", "source", "sha256")}
        prompts = {
            "slo_ttft_p99_ms": request.slo_ttft_ms,
            "prefill": request.prefill,
            "max_batched_tokens": request.max_batched_tokens,
        }
        return {
            "backend": "modelled",
            "trace": {**named, "requests": len(trace)},
            "model": self.model.name,
            "weights_and_kv": self.model.dtype,
            "mode": request.mode,
            "slo_tbt_p99_ms": request.slo_tbt_p99_ms,
            "slo_queueing_p99_s": request.slo_queueing_p99_s if request.mode == "open" else None,
            "budget_usd_per_hour": self.budget,
            "power_budget_w": request.power_budget,
            "devices": [device.describe() for device in self.devices],
            "assumed": list(assumed_amounts(self.devices)),
            "most_devices": request.most_devices,
            "systems": list(self.systems),
            "network": request.network,
            "host_async": all(_ahead(request, name) for name in request.costs),
            **(prompts if request.prefill != "off" else {}),
        }


def _ahead(request: PlanRequest, costs: str) -> bool:
    """Return whether hosts prepare an iteration during the previous one."""
    given = request.host_async
    return schedules_ahead_by_default(costs) if given is None else given


def resolve(request: PlanRequest, listener: Listener) -> ResolvedPlan:
    """Look up the names of a request; a UserError for options that contradict each other."""
    mode = request.mode or ("open" if request.slo_ttft_ms else "saturate")
    prefill = request.prefill or ("any" if request.slo_ttft_ms else "off")
    if request.slo_ttft_ms and mode != "open":
        raise UserError(
            "plan-flag-unused",
            "--slo-ttft-ms goes with --mode open: in a saturated replay the first token waits for the queue",
        )
    for flag, value in (
        ("--slo-ttft-ms", request.slo_ttft_ms),
        ("--max-batched-tokens", request.max_batched_tokens),
    ):
        if value and prefill == "off":
            raise UserError(
                "plan-flag-unused", f"{flag} is for plans that compute prompts; add --prefill any"
            )
    if request.slo_queueing_p99_s and mode != "open":
        raise UserError(
            "plan-flag-unused",
            "--slo-queueing-p99-s goes with --mode open: a saturated queue is never empty",
        )
    listed = request.systems.split(",") if request.systems else MODULES
    systems = tuple(dict.fromkeys(name.strip() for name in listed))
    for name in systems:
        if name not in MODULES:
            raise UserError(
                "system-unknown", f"--systems: no system named {name!r}; {nearest(name, MODULES)}"
            )
    if prefill != "off":
        systems = with_prompts(systems, named=request.systems is not None)
    model = modelled(request.model)
    names = DEVICES if request.devices is None else request.devices
    costs = request.costs or (usual_costs(model, devices_named(request.devices or DEVICES)),)
    costs = tuple(dict.fromkeys(costs))
    prices = request.replay
    known = priced_devices(
        prices.price, prices.price_basis, prices.power, known_devices(map(load_costs, costs))
    )
    devices = devices_of(names, known)
    if note := price_note(devices):
        listener.note(note)
    # A request that waits longer than the limit of the first token has missed that anyway.
    queueing_s = request.slo_queueing_p99_s or (request.slo_ttft_ms or 1000 * SLO_QUEUEING_P99_S) / 1000
    settled = structs.replace(
        request,
        mode=mode,
        prefill=prefill,
        costs=costs,
        budget=request.budget or papers_budget(model, known),
        slo_queueing_p99_s=queueing_s,
    )
    return ResolvedPlan(settled, model, systems, tuple(devices))


def affordable(
    question: Question,
    systems: Sequence[str],
    devices: Sequence[Device],
    limits: Limits,
    prompts: Prompts = NO_PROMPTS,
) -> list[Candidate]:
    """Return all candidates within the limits; a UserError if the model fits on none of them."""
    _require_used(systems, devices)
    for each in devices:
        if not each.board:
            question.costs.measured_as(each)  # a cost set that does not know it says so
    options = list(candidates(systems, question.model, devices, limits, prompts))
    if any(cluster(question, each) is not None for each in options):
        return options
    any_price = replace(limits, usd_per_hour=float("inf"))
    dearer = candidates(systems, question.model, devices, any_price, replace(prompts, instances=1))
    fitting = sorted(dearer, key=lambda each: (each.usd_per_hour, str(each)))
    cheapest = next((each for each in fitting if cluster(question, each) is not None), None)
    names = ", ".join(each.name for each in devices)
    most = "" if limits.devices is None else f" with at most {limits.devices} devices"
    advice = "name larger devices"
    if limits.power_w < float("inf"):
        advice += ", or raise --power-budget"
        most += f" and {limits.power_w:g} W" if most else f" of at most {limits.power_w:g} W"
    if cheapest is None:
        raise UserError(
            "plan-no-deployment", f"{question.model.name} fits on no deployment of {names}{most}; {advice}"
        )
    raise UserError(
        "plan-budget-too-small",
        f"--budget {limits.usd_per_hour:g}: the cheapest deployment of {names} that {question.model.name} "
        f"fits on is {cheapest.deployment} ({cheapest.system}) at ${cheapest.usd_per_hour:.2f} an hour",
    )
