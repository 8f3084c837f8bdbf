"""A plan as it is requested: limits, devices and systems, by name."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from laminabench.requests.fields import Count, Positive, Request, flag_key
from laminabench.requests.replay import (
    CUTS,
    GROUPS,
    ReplayRequest,
    hardware_option,
    output_option,
    workload_option,
)

PlanMode = Literal["saturate", "open"]
PlanPrefill = Literal["off", "colocated", "pool", "any"]
# What a winner can be written as.
Emitted = Literal["vllm", "dynamo", "llm-d"]
EMITTED: tuple[Emitted, ...] = get_args(Emitted)


class PlanRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=flag_key):
    """Every option of a plan."""

    SHARED: ClassVar = {"replay": ("price", "power", "price_basis", "attention_kernel", *GROUPS[CUTS])}

    trace: Annotated[
        str, workload_option("Catalogue name, imported name or file.", required=True, common=True)
    ] = ""
    model: Annotated[str, hardware_option("Name or config.json.", common=True)] = "llama3-70b"
    slo_tbt_p99_ms: Annotated[
        Positive,
        workload_option(
            "Limit of the 99th percentile of time between tokens.", required=True, common=True, unit="ms"
        ),
    ] = 0.0
    slo_ttft_ms: Annotated[
        Positive | None,
        workload_option(
            "Limit of the 99th percentile of time to the first token. Prompts are computed, --mode open.",
            common=True,
            unit="ms",
        ),
    ] = None
    budget: Annotated[
        Positive | None,
        hardware_option("Most an hour; twice v2 Table 5's by default.", common=True, unit="usd"),
    ] = None
    power_budget: Annotated[
        Positive | None, hardware_option("Most rated power; no limit by default.", unit="watts")
    ] = None
    devices: Annotated[
        str | None,
        hardware_option(
            "Comma-separated names; a100 is all of its kind. h200,h100,h20,a100-80g by default.",
            common=True,
            metavar="A,B,...",
        ),
    ] = None
    systems: Annotated[
        str | None, hardware_option("Comma-separated names; all by default.", common=True, metavar="A,B,...")
    ] = None
    most_devices: Annotated[
        Count | None,
        hardware_option("Most devices, of all instances and of pools for prompts together.", common=True),
    ] = None
    costs: Annotated[
        tuple[str, ...],
        hardware_option("Repeatable: a winner for each cost set; as for replay by default.", common=True),
    ] = ()
    mode: Annotated[
        PlanMode | None,
        workload_option(
            "Queue never empty, or the trace's arrivals; saturate, with --slo-ttft-ms open, by default.",
            common=True,
        ),
    ] = None
    prefill: Annotated[
        PlanPrefill | None,
        hardware_option(
            "Prompt KV is there already, or computed with decoding, on separate devices, or whichever is "
            "cheaper; off, with --slo-ttft-ms any, by default.",
            common=True,
        ),
    ] = None
    max_batched_tokens: Annotated[
        Count | None,
        hardware_option(
            "With prompts, tokens of an iteration. By default 512, 1024 and 2048 are tried with decoding, "
            "2048 in pools.",
            unit="tokens",
        ),
    ] = None
    slo_queueing_p99_s: Annotated[
        Positive | None,
        workload_option(
            "With --mode open, how long 99 of 100 requests may wait; 1 by default.", unit="seconds"
        ),
    ] = None
    network: Annotated[str | None, hardware_option("As for replay; each system's own by default.")] = None
    host_async: Annotated[
        bool | None, hardware_option("Every host prepares an iteration during the previous one.")
    ] = None
    exhaustive: Annotated[bool | None, output_option("Replay every candidate instead of searching.")] = None
    jobs: Annotated[Count | None, output_option("Processes at once; as many as cores by default.")] = None
    replay: ReplayRequest = ReplayRequest()
