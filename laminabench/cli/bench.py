"""`laminabench bench ...`: laminabench measured on this machine, targets beside what came out."""

from __future__ import annotations

import click

from laminabench.cli.lazy import Lazy, LazyGroup

COMMANDS = (
    Lazy(
        "attention",
        "laminabench.cli.bench_attention:attention",
        "Decode attention beside memory bandwidth.",
        example="laminabench bench attention",
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
