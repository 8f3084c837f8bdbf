"""A plan as a person asks for it, by names: everything looked up, with defaults that take work to know."""

from __future__ import annotations

from typing import Any

from laminabench.catalog.cost_file import load_costs, usual_costs
from laminabench.catalog.costs import known_devices
from laminabench.catalog.deployment import devices_named
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import priced_devices
from laminabench.systems.registry import MODULES
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener
from laminabench.util.suggest import nearest
from laminabench.workflows.plan.answer import Answer, answer
from laminabench.workflows.plan.question import SLO_QUEUEING_P99_S, PlanMode, PlanPrefill, Question
from laminabench.workflows.plan.request import (
    DEVICES,
    PlanRequest,
    devices_of,
    papers_budget,
    price_note,
    with_prompts,
)


def asked(
    listener: Listener,
    *,
    model_name: str,
    systems: str | None = None,
    devices: str | None = None,
    price: tuple[str, ...] = (),
    power: tuple[str, ...] = (),
    price_basis: str | None = None,
    mode: PlanMode | None = None,
    slo_queueing_p99_s: float | None = None,
    slo_ttft_ms: float | None = None,
    prefill: PlanPrefill | None = None,
    budget: float | None = None,
    cost_names: tuple[str, ...] = (),
    max_batched_tokens: int | None = None,
    **choices: Any,
) -> PlanRequest:
    """The names as a request; a UserError for choices that contradict each other."""
    mode = mode or ("open" if slo_ttft_ms else "saturate")
    prefill = prefill or ("any" if slo_ttft_ms else "off")
    if slo_ttft_ms and mode != "open":
        raise UserError(
            "plan-flag-unused",
            "--slo-ttft-ms goes with --mode open: in a saturated replay the first token waits for the queue",
        )
    for flag, value in (("--slo-ttft-ms", slo_ttft_ms), ("--max-batched-tokens", max_batched_tokens)):
        if value and prefill == "off":
            raise UserError(
                "plan-flag-unused", f"{flag} is for plans that compute prompts; add --prefill any"
            )
    if slo_queueing_p99_s and mode != "open":
        raise UserError(
            "plan-flag-unused",
            "--slo-queueing-p99-s goes with --mode open: a saturated queue is never empty",
        )
    names = tuple(dict.fromkeys(name.strip() for name in systems.split(","))) if systems else tuple(MODULES)
    for name in names:
        if name not in MODULES:
            raise UserError(
                "system-unknown", f"--systems: no system named {name!r}; {nearest(name, MODULES)}"
            )
    if prefill != "off":
        names = with_prompts(names, named=systems is not None)
    model = modelled(model_name)
    cost_names = tuple(dict.fromkeys(cost_names or (usual_costs(model, devices_named(devices or DEVICES)),)))
    known = priced_devices(price, price_basis, power, known_devices(map(load_costs, cost_names)))
    chosen = devices_of(DEVICES if devices is None else devices, known)
    if note := price_note(chosen):
        listener.note(note)
    return PlanRequest(
        model=model,
        systems=names,
        devices=tuple(chosen),
        cost_names=cost_names,
        mode=mode,
        # Who waits longer than the first token may take has missed that anyway.
        slo_queueing_p99_s=slo_queueing_p99_s or (slo_ttft_ms or 1000 * SLO_QUEUEING_P99_S) / 1000,
        slo_ttft_ms=slo_ttft_ms,
        prefill=prefill,
        budget=budget or papers_budget(model, known),
        max_batched_tokens=max_batched_tokens,
        **choices,
    )


def answered(
    request: PlanRequest, question: Question, listener: Listener, *, at_any_price: bool = False
) -> Answer:
    """One question of a request, with the search's progress."""
    candidates = request.candidates(question)
    with listener.progress(f"searching with {question.costs.name}", unit="candidates") as told:
        return answer(
            question,
            candidates,
            exhaustive=request.exhaustive,
            at_any_price=at_any_price,
            jobs=request.jobs,
            told=told,
        )
