"""From what a person asked of a plan to candidates; one sentence where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.models import ModelShape
from laminabench.errors import UserError
from laminabench.plan.candidate import Candidate, candidates
from laminabench.plan.measure import cluster
from laminabench.plan.question import Question
from laminabench.systems.registry import system

# The papers' two, and the other one that is measured.
DEVICES = "h100,h20,a100-80g"
# As many times what the v2 paper's deployment for the model costs an hour.
BUDGET_TIMES = 2


def devices_of(names: str, known: Mapping[str, Device]) -> list[Device]:
    """`h100,h20,a100`: by name, or by the name of a family, which stands for all of it."""
    found: dict[str, Device] = {}
    for name in (each.strip().lower() for each in names.split(",")):
        family = [each for each in known if each.startswith(f"{name}-") and name]
        for each in [name] if name in known or not family else family:
            found[each] = device(each, known)
    unpriced = [name for name, each in found.items() if each.price_usd_per_hour is None]
    if unpriced:
        raise UserError(f"--devices: {unpriced[0]} has no price; give one: --price {unpriced[0]}=2.5")
    return list(found.values())


def price_note(devices: Sequence[Device]) -> str:
    """A warning where rents and purchases are compared; empty where prices are of one kind."""
    bases = {each.name: each.price.basis for each in devices if each.price}
    if len(set(bases.values()) - {"override"}) < 2:
        return ""
    listed = ", ".join(f"{name} by {basis}" for name, basis in bases.items())
    return f"prices of different kinds are compared ({listed}); see --price and --price-basis"


def papers_budget(model: ModelShape, known: Mapping[str, Device]) -> float:
    """What a plan may cost an hour where nobody says."""
    usd = parse_deployment(system("lamina").default_deployment(model), known).usd_per_hour
    assert usd is not None
    return BUDGET_TIMES * usd


def affordable(
    question: Question,
    systems: Sequence[str],
    devices: Sequence[Device],
    budget_usd_per_hour: float,
    most_devices: int | None,
) -> list[Candidate]:
    """All within the budget; a UserError if the model fits on none of them, with what it would take."""
    for each in devices:
        question.costs.measured_as(each)  # a cost set that does not know it says so
    found = list(
        candidates(
            systems,
            question.model,
            devices,
            budget_usd_per_hour=budget_usd_per_hour,
            most_devices=most_devices,
        )
    )
    if any(cluster(question, each) is not None for each in found):
        return found
    dearer = candidates(systems, question.model, devices, most_devices=most_devices)
    fitting = sorted(dearer, key=lambda each: (each.usd_per_hour, str(each)))
    cheapest = next((each for each in fitting if cluster(question, each) is not None), None)
    names = ", ".join(each.name for each in devices)
    most = "" if most_devices is None else f" with at most {most_devices} devices"
    if cheapest is None:
        raise UserError(f"{question.model.name} fits on no deployment of {names}{most}; name larger devices")
    raise UserError(
        f"--budget {budget_usd_per_hour:g}: the cheapest deployment of {names} that {question.model.name} "
        f"fits on is {cheapest.deployment} ({cheapest.system}) at ${cheapest.usd_per_hour:.2f} an hour"
    )
