"""`laminabench bench ...`: laminabench measured on this machine, targets beside what came out."""

from __future__ import annotations

import click

from laminabench.cli.lazy import Lazy, LazyGroup

COMMANDS = (
    Lazy(
        "attention",
        "laminabench.cli.bench_attention:attention",
        "Decode attention against the memory's bandwidth.",
        example="laminabench bench attention",
    ),
    Lazy(
        "endpoint",
        "laminabench.cli.bench_endpoint:endpoint",
        "Requests and streamed tokens a second of the client for servers.",
        example="laminabench bench endpoint",
    ),
    Lazy(
        "engine",
        "laminabench.cli.bench_engine:engine",
        "An iteration of the engine against its GEMMs and its KV reads.",
        example="laminabench bench engine",
    ),
    Lazy(
        "fhbn",
        "laminabench.cli.bench_fhbn:fhbn",
        "Ping-pong over each network engine against a copy.",
        example="laminabench bench fhbn --plot fig13.svg",
    ),
    Lazy(
        "h2m2",
        "laminabench.cli.bench_h2m2:h2m2",
        "Decisions and replays a second of boards with two memories.",
        example="laminabench bench h2m2",
    ),
    Lazy(
        "plan",
        "laminabench.cli.bench_plan:plan",
        "Candidates per second of the search for a plan, against the grid.",
        example="laminabench bench plan",
    ),
    Lazy(
        "prefill",
        "laminabench.cli.bench_prefill:prefill",
        "Time between tokens while prompts come.",
        example="laminabench bench prefill",
    ),
    Lazy(
        "sim",
        "laminabench.cli.bench_sim:sim",
        "Replays per second of the virtual cluster.",
        example="laminabench bench sim --week",
    ),
    Lazy(
        "slab",
        "laminabench.cli.bench_slab:slab",
        "Token allocations per second of the KV slab allocator.",
        example="laminabench bench slab --json",
    ),
    Lazy(
        "traces",
        "laminabench.cli.bench_traces:traces",
        "Loading a large CSV and a huge parquet trace.",
        example="laminabench bench traces",
    ),
)


@click.group(cls=LazyGroup, table=COMMANDS)
def bench() -> None:
    """Measure laminabench itself on this machine."""
