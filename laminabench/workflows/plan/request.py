"""Every choice of a plan, and the candidates that follow from it; one sentence where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import assumed_amounts, kinds_of_prices, parse_deployment
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.systems.registry import DEFAULT, MODULES, system
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.workflows.plan.measure import cluster
from laminabench.workflows.plan.question import (
    MOST_INSTANCES,
    NO_PROMPTS,
    Candidate,
    Limits,
    PlanMode,
    PlanPrefill,
    Prompts,
    Question,
    candidates,
)

# The papers' two, and the other one that is measured.
DEVICES = "h100,h20,a100-80g"
# As many times what the v2 paper's deployment for the model costs an hour.
BUDGET_TIMES = 2
# Most tokens in an iteration that are worth trying with prompts: fewer make shorter gaps between tokens.
PROMPT_BUDGETS = (512, 1024, 2048)
# Of devices that only compute prompts: nobody decodes beside them.
POOL_BUDGETS = (2048,)


def devices_of(names: str, known: Mapping[str, Device]) -> list[Device]:
    """`h100,h20,a100`: by name, or by the name of a family, which stands for all of it."""
    found: dict[str, Device] = {}
    for name in (each.strip().lower() for each in names.split(",")):
        family = [each for each in known if each.startswith(f"{name}-") and name]
        for each in [name] if name in known or not family else family:
            found[each] = device(each, known)
    unpriced = [name for name, each in found.items() if each.price_usd_per_hour is None]
    if unpriced:
        raise UserError(
            "device-no-price", f"--devices: {unpriced[0]} has no price; give one: --price {unpriced[0]}=2.5"
        )
    return list(found.values())


def price_note(devices: Sequence[Device]) -> str:
    """A warning where rents and purchases are compared; empty where prices are of one kind."""
    kinds = kinds_of_prices(devices)
    return kinds and f"prices of different kinds are compared ({kinds}); see --price and --price-basis"


def _require_used(systems: Sequence[str], devices: Sequence[Device]) -> None:
    """A UserError where a device or a system was asked for that nothing would come of."""
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
    """Those that can compute prompts; a UserError for one that was asked for by name and cannot."""
    able = tuple(name for name in systems if "prefill" in system(name).TAKES)
    for name in systems:
        if named and name not in able:
            raise UserError(
                "system-no-prompts",
                f"--systems: {name} computes no prompts; leave it out, or ask with --prefill off",
            )
    return able


def papers_budget(model: ModelShape, known: Mapping[str, Device]) -> float:
    """What a plan may cost an hour where nobody says."""
    usd = parse_deployment(system(DEFAULT).default_deployment(model), known).usd_per_hour
    assert usd is not None
    return BUDGET_TIMES * usd


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    model: ModelShape
    systems: tuple[str, ...]
    devices: tuple[Device, ...]
    cost_names: tuple[str, ...]
    slo_tbt_p99_ms: float
    mode: PlanMode
    slo_queueing_p99_s: float
    budget: float  # $/hour
    power_budget: float | None = None
    most_devices: int | None = None
    network_name: str | None = None  # each system's own, if None
    host_async: bool = False
    slo_ttft_ms: float | None = None
    prefill: PlanPrefill = "off"
    max_batched_tokens: int | None = None  # PROMPT_BUDGETS, if None
    exhaustive: bool = False
    jobs: int | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.budget, self.power_budget or float("inf"), self.most_devices)

    def questions(self, trace: Trace) -> list[Question]:
        if self.mode == "open" and not trace.meta.has_arrivals:
            raise UserError(
                "trace-no-arrivals",
                f"{trace.meta.name} has no arrival times; an open plan of it needs --request-rate",
            )
        return [
            Question(
                trace,
                self.model,
                costs,
                self.slo_tbt_p99_ms,
                self.mode,
                self.slo_queueing_p99_s,
                None if self.network_name is None else parse_network(self.network_name, costs.networks),
                self.host_async,
                self.slo_ttft_ms,
                self.prefill,
            )
            for costs in map(load_costs, self.cost_names)
        ]

    def candidates(self, question: Question) -> list[Candidate]:
        given = (self.max_batched_tokens,) if self.max_batched_tokens else ()
        prompts = Prompts(
            (given or PROMPT_BUDGETS) if self.prefill in ("colocated", "any") else (),
            (given or POOL_BUDGETS) if self.prefill in ("pool", "any") else (),
            # Saturated, so many instances make as many times the tokens for as many times the price.
            MOST_INSTANCES if question.prompts and question.mode == "open" else 1,
        )
        return affordable(question, self.systems, self.devices, self.limits, prompts)

    def describe(self, trace: Trace) -> dict[str, object]:
        named = {name: getattr(trace.meta, name) for name in ("name", "source", "sha256")}
        return {
            "backend": "modelled",
            "trace": {**named, "requests": len(trace)},
            "model": self.model.name,
            "weights_and_kv": self.model.dtype,
            "mode": self.mode,
            "slo_tbt_p99_ms": self.slo_tbt_p99_ms,
            "slo_queueing_p99_s": self.slo_queueing_p99_s if self.mode == "open" else None,
            "budget_usd_per_hour": self.budget,
            "power_budget_w": self.power_budget,
            "devices": [device.describe() for device in self.devices],
            "assumed": list(assumed_amounts(self.devices)),
            "most_devices": self.most_devices,
            "systems": list(self.systems),
            "network": self.network_name,
            "host_async": self.host_async,
            **(self._of_prompts() if self.prefill != "off" else {}),
        }

    def _of_prompts(self) -> dict[str, object]:
        return {
            "slo_ttft_p99_ms": self.slo_ttft_ms,
            "prefill": self.prefill,
            "max_batched_tokens": self.max_batched_tokens,
        }


def affordable(
    question: Question,
    systems: Sequence[str],
    devices: Sequence[Device],
    limits: Limits,
    prompts: Prompts = NO_PROMPTS,
) -> list[Candidate]:
    """All within the limits; a UserError if the model fits on none of them, with what it would take."""
    _require_used(systems, devices)
    for each in devices:
        if not each.board:
            question.costs.measured_as(each)  # a cost set that does not know it says so
    found = list(candidates(systems, question.model, devices, limits, prompts))
    if any(cluster(question, each) is not None for each in found):
        return found
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
