"""A comparison as it is requested: of Runs, of modelled systems, or of live replays that alternate."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, structs

from laminabench.requests.fields import Count, Milliseconds, Request, flag_key
from laminabench.requests.plan import PlanRequest
from laminabench.requests.replay import (
    CUTS,
    GROUPS,
    ReplayRequest,
    hardware_option,
    output_option,
    workload_option,
)
from laminabench.util.errors import UserError

# What is compared, for `takes`.
Kind = Literal["runs", "systems", "live"]
RUNS: Kind = "runs"
SYSTEMS: Kind = "systems"
REPLAYS: Kind = "live"
_BOTH = (SYSTEMS, REPLAYS)
_WHY_NOT = {
    RUNS: "replaying systems, not for Runs that are there",
    SYSTEMS: "--live, which is not given",
    REPLAYS: "modelled systems; a side of --live has flags of its own",
}
# v2 Figure 10.
MODELS = ("llama-33b", "llama-65b", "llama3-70b")
TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")
TOLERANCE, ROUNDS = 0.1, 3
NEITHER, BOTH = "neither", "both"

# Options that set what is compared: with any of them no deployment is chosen.
_SIDES = {
    *("deployments", "equal_cost", "equal_power", "eras", "hosts", "host_async", "max_num_seqs"),
    *("concurrency", "admission", "instances", "router", "queue"),
}
_PREFILL = (None, "off", "colocated")

_NAMES = {"deployments": "deployment", "eras": "era", "hosts": "host"}


class CompareRequest(
    Request,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda name: _NAMES.get(name) or flag_key(name),
):
    """Every option of a comparison."""

    SHARED: ClassVar = {
        # Options of all replays, which mean the same as for one.
        "replay": (
            "concurrency",
            "admission",
            "prefill",
            "max_batched_tokens",
            "instances",
            "router",
            "queue",
            "attention_kernel",
            *("price", "power", "price_basis", *GROUPS[CUTS]),
        ),
        # Options of a plan, which chooses the deployments.
        "plan": ("budget", "power_budget", "most_devices", "slo_queueing_p99_s"),
    }

    trace: Annotated[
        tuple[str, ...],
        workload_option("Trace, repeatable; the four of v2 Table 4 by default.", _BOTH, common=True),
    ] = ()
    model: Annotated[
        tuple[str, ...],
        hardware_option("Model, repeatable; the three of v2 Table 3 by default.", _BOTH, common=True),
    ] = ()
    mode: Annotated[
        Literal["saturate", "open", "closed"] | None,
        workload_option(
            "Queue never empty, the trace's arrivals, or fixed concurrency; by default both loads for one "
            "trace and one model, else saturate.",
            _BOTH,
            common=True,
        ),
    ] = None
    costs: Annotated[
        tuple[str, ...],
        hardware_option(
            "Cost set, repeatable; by default the era's, which is replay's.",
            (SYSTEMS,),
        ),
    ] = ()
    eras: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: an era of vllm from `laminabench costs eras`; today's by default.",
            (SYSTEMS,),
            metavar="NAME",
        ),
    ] = ()
    systems: Annotated[
        str | None,
        hardware_option(
            "Systems; the first one's price, or power, is the reference. lamina,vllm by default; all where "
            "deployments are chosen.",
            (SYSTEMS,),
            common=True,
            metavar="A,B,...",
        ),
    ] = None
    deployments: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable, as lamina=2xh100+4xh20, of several instances A,B; the papers' by default, of one "
            "model on one trace the cheapest that plan finds.",
            (SYSTEMS,),
            common=True,
            metavar="SYSTEM=DEPLOYMENT",
        ),
    ] = ()
    max_num_seqs: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: most requests at once, on each board of h2m2; each system's limit by default.",
            (SYSTEMS,),
            metavar="SYSTEM=N",
        ),
    ] = ()
    network: Annotated[
        str | None, hardware_option("As for replay; each paper's own by default.", (SYSTEMS,))
    ] = None
    hosts: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: host time of an iteration and of each request, as vllm=5ms,20us; the cost set's by "
            "default.",
            (SYSTEMS,),
            metavar="SYSTEM=TIME[,TIME]",
        ),
    ] = ()
    host_async: Annotated[
        str | None,
        hardware_option(
            "The system whose host prepares an iteration during the previous one; neither by default.",
            (SYSTEMS,),
        ),
    ] = None
    equal_cost: Annotated[
        bool | None,
        hardware_option(
            "Choose deployments within --tolerance of the first one's price.", (SYSTEMS,), common=True
        ),
    ] = None
    equal_power: Annotated[
        bool | None,
        hardware_option(
            "Choose deployments within --tolerance of the first one's rated power.", (SYSTEMS,), common=True
        ),
    ] = None
    tolerance: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        hardware_option("How far prices, or powers, may differ; 0.1 by default.", (SYSTEMS,), unit="share"),
    ] = None
    devices: Annotated[
        str | None,
        hardware_option(
            "Devices to choose from; at equal cost or power the deployments', else plan's by default.",
            (SYSTEMS,),
            common=True,
            metavar="A,B,...",
        ),
    ] = None
    slo_tbt_ms: Annotated[
        Milliseconds | None,
        workload_option(
            "One limit of TBT for all; each Run's own, or 100, by default. Of the 99th percentile, where "
            "deployments are chosen.",
            common=True,
            unit="ms",
        ),
    ] = None
    slo_ttft_ms: Annotated[
        Milliseconds | None,
        workload_option(
            "One limit of TTFT for all, with prompts; each Run's own by default.", common=True, unit="ms"
        ),
    ] = None
    base: Annotated[
        str | None,
        output_option(
            "The base of ratios; the first Run or --live, or vllm, or the first system.",
            common=True,
            metavar="RUN, SYSTEM or N",
        ),
    ] = None
    no_group: Annotated[
        bool | None, output_option("Do not group Runs of one live deployment as rounds.", (RUNS,))
    ] = None
    live: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: a live replay that alternates with others: '--system vllm --deployment 2xcpu'.",
            (REPLAYS,),
            common=True,
            metavar="'FLAGS OF REPLAY'",
        ),
    ] = ()
    rounds: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        hardware_option("How often each --live is replayed; 3 by default.", (REPLAYS,)),
    ] = None
    jobs: Annotated[
        Count | None, output_option("Processes that replay; one a core by default.", (SYSTEMS,))
    ] = None
    directory: Annotated[
        str | None,
        output_option(
            "Keep every replay as a Run in this folder; with --live runs/compare-TRACE-TIME by default.",
            _BOTH,
            common=True,
            kind="folder",
            also="-o",
        ),
    ] = None
    runs: tuple[str, ...] = ()
    replay: ReplayRequest = ReplayRequest()
    plan: PlanRequest = PlanRequest()

    def __post_init__(self) -> None:
        """Give replays the mode; only here is it known that their default was set."""
        if self.mode is not None and self.mode != self.replay.mode:
            structs.force_setattr(self, "replay", structs.replace(self.replay, mode=self.mode))

    @property
    def kind(self) -> Kind:
        """The kind of things compared."""
        return RUNS if self.runs else REPLAYS if self.live else SYSTEMS

    @property
    def planned(self) -> bool:
        """Whether deployments are chosen as a plan does: for one model on one trace, if nothing sets them."""
        if self.kind != SYSTEMS or len(self.trace) != 1 or len(self.model) != 1 or self._sets_sides():
            return False
        return self.systems is None or bool(self.plan.set_fields())

    def _sets_sides(self) -> str:
        """Return the first option that describes systems or deployments, or an empty text."""
        replay = self.replay
        set_fields = (*self.set_fields(), *replay.set_fields())
        flags = [field.flag for field in set_fields if field.name in _SIDES]
        # Values that no plan has.
        flags += ["--mode"] * (replay.mode == "closed") + ["--prefill"] * (replay.prefill not in _PREFILL)
        return flags[0] if flags else ""

    @property
    def equal(self) -> Literal["cost", "power"] | None:
        """The quantity of which deployments get about equal amounts."""
        return "cost" if self.equal_cost else "power" if self.equal_power else None

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by the names that a replay has for them."""
        limits = {"slo_tbt_ms": self.slo_tbt_ms, "slo_ttft_ms": self.slo_ttft_ms}
        return {name: value for name, value in limits.items() if value is not None}

    def require_applicable(self) -> None:
        """Raise a UserError for an option that has no effect together with the others."""
        kind = self.kind
        for field in self.set_fields():
            takes = field.option.takes
            if takes and kind not in takes:
                why = "Runs, and none is given" if takes == (RUNS,) else _WHY_NOT[kind]
                raise _not_applicable(field.flag, why)
        chosen = self.plan.set_fields()
        if kind == RUNS and (shared := [*self.replay.set_fields(), *chosen]):
            raise _not_applicable(shared[0].flag, _WHY_NOT[kind])
        if chosen and not self.planned:
            other = "--live" if kind == REPLAYS else self._sets_sides()
            why = f"not with {other}" if other else "for one --model on one --trace"
            raise _not_applicable(chosen[0].flag, f"deployments that plan chooses: {why}")
        if self.equal_cost and self.equal_power:
            raise UserError(
                "compare-equal-both",
                "--equal-cost and --equal-power: deployments are chosen by one of them; give either",
            )
        devices = self.devices is not None and not self.planned
        if self.equal is None and (self.tolerance is not None or devices):
            flag = "--devices" if self.tolerance is None else "--tolerance"
            why = "deployments that are chosen: add --equal-cost or --equal-power"
            raise _not_applicable(flag, why + (", or --budget" if self.tolerance is None else ""))


def _not_applicable(flag: str, why: str) -> UserError:
    return UserError("compare-flag-not-applicable", f"{flag} is for {why}")
