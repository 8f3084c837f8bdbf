"""A plan as it is requested: limits, devices and systems, by name."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from laminabench.requests.fields import Count, Option, Positive, Request, flag_key
from laminabench.requests.replay import CUTS, GROUPS, OUTPUT, SYSTEM, WORKLOAD, ReplayRequest

PlanMode = Literal["saturate", "open"]
PlanPrefill = Literal["off", "colocated", "pool", "any"]


class PlanRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=flag_key):
    """Every option of a plan."""

    SHARED: ClassVar = ("price", "power", "price_basis", *GROUPS[CUTS])

    trace: Annotated[
        str, Option("Catalogue name, imported name or file.", WORKLOAD, required=True, common=True)
    ] = ""
    model: Annotated[str, Option("Name or config.json.", SYSTEM, common=True)] = "llama3-70b"
    slo_tbt_p99_ms: Annotated[
        Positive,
        Option(
            "Limit of the 99th percentile of time between tokens.",
            WORKLOAD,
            required=True,
            common=True,
            unit="ms",
        ),
    ] = 0.0
    slo_ttft_ms: Annotated[
        Positive | None,
        Option(
            "Limit of the 99th percentile of time to the first token. Prompts are computed, --mode open.",
            WORKLOAD,
            common=True,
            unit="ms",
        ),
    ] = None
    budget: Annotated[
        Positive | None,
        Option("Most an hour; twice v2 Table 5's by default.", SYSTEM, common=True, unit="usd"),
    ] = None
    power_budget: Annotated[
        Positive | None, Option("Most rated power; no limit by default.", SYSTEM, unit="watts")
    ] = None
    devices: Annotated[
        str | None,
        Option(
            "Comma-separated names; a100 is all of its kind. h100,h20,a100-80g by default.",
            SYSTEM,
            common=True,
            metavar="A,B,...",
        ),
    ] = None
    systems: Annotated[
        str | None,
        Option("Comma-separated names; all by default.", SYSTEM, common=True, metavar="A,B,..."),
    ] = None
    most_devices: Annotated[
        Count | None,
        Option("Most devices, of all instances and of pools for prompts together.", SYSTEM, common=True),
    ] = None
    costs: Annotated[
        tuple[str, ...],
        Option("Repeatable: a winner for each cost set; as for replay by default.", SYSTEM, common=True),
    ] = ()
    mode: Annotated[
        PlanMode | None,
        Option(
            "Queue never empty, or the trace's arrivals; saturate, with --slo-ttft-ms open, by default.",
            WORKLOAD,
            common=True,
        ),
    ] = None
    prefill: Annotated[
        PlanPrefill | None,
        Option(
            "Prompts are there already, computed with decoding, on separate devices, or whichever is "
            "cheaper; off, with --slo-ttft-ms any, by default.",
            SYSTEM,
            common=True,
        ),
    ] = None
    max_batched_tokens: Annotated[
        Count | None,
        Option(
            "With prompts, tokens of an iteration. By default 512, 1024 and 2048 are tried with decoding, "
            "2048 in pools.",
            SYSTEM,
            unit="tokens",
        ),
    ] = None
    slo_queueing_p99_s: Annotated[
        Positive | None,
        Option(
            "With --mode open, how long 99 of 100 requests may wait; 1 by default.", WORKLOAD, unit="seconds"
        ),
    ] = None
    network: Annotated[str | None, Option("As for replay; each system's own by default.", SYSTEM)] = None
    host_async: Annotated[
        bool | None, Option("Every host prepares an iteration during the previous one.", SYSTEM)
    ] = None
    exhaustive: Annotated[bool | None, Option("Replay every candidate instead of searching.", OUTPUT)] = None
    jobs: Annotated[Count | None, Option("Processes at once; as many as cores by default.", OUTPUT)] = None
    replay: ReplayRequest = ReplayRequest()
