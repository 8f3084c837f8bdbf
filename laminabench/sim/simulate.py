"""Run a trace through the native simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laminabench.sim.outcome import Outcome
from laminabench.sim.spec import TICKS_PER_S, Fleet, Offered, Priority, Spec, ticks
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.parallel import cores

__all__ = ["Offered", "Priority", "simulate"]

# 64-bit ticks of 0.1 ns last for 29 years.
MOST_SECONDS = 25 * 365 * 86400.0


def simulate(
    trace: Trace,
    deployed: Spec | Fleet,
    offered: Offered,
    *,
    record_s: tuple[float, float] = (0.0, 0.0),
    progress: Callable[[int], None] | None = None,
    check: bool = False,
    threads: int | None = None,
) -> Outcome:
    """Replay the trace on a deployment, or several; `record_s` keeps the pieces of work that begin then.

    On as many threads as there are cores, where instances do not depend on each other; what comes out does
    not depend on that.
    """
    if trace.arrival_s[-1] > MOST_SECONDS:
        raise UserError(
            "trace-too-long", f"{trace.meta.name} spans more than 25 years; the simulator's clock ends there"
        )
    fleet = deployed if isinstance(deployed, Fleet) else Fleet((deployed,))
    if offered.mode == "closed" and offered.concurrency < len(fleet.batches):
        raise UserError(
            "deployment-too-few-requests",
            f"--concurrency {offered.concurrency} would leave some of the {len(fleet.batches)} instances "
            f"without requests; give at least {len(fleet.batches)}",
        )
    from laminabench import _sim

    no_ids = np.zeros(0, np.int64)
    # A router may go by what prompts have in common where instances do not.
    shares = fleet.router == "prefix" or any(spec.prefix_sharing for spec in fleet.specs)
    blocks = trace.prefix_blocks if shares else None
    try:
        tables = _sim.run(
            arrival=ticks(trace.arrival_s),
            prompt=trace.prompt_tokens,
            output=trace.output_tokens,
            prefix_offsets=blocks.offsets if blocks else no_ids,
            prefix_ids=blocks.ids if blocks else no_ids,
            prefix_block_tokens=trace.meta.block_tokens,
            mode=offered.mode,
            concurrency=offered.concurrency,
            deployments=[spec.native() for spec in fleet.specs],
            router=fleet.router,
            global_queue=fleet.global_queue,
            threads=threads or cores(),
            keep_iterations=fleet.keep_iterations,
            priority=offered.priority,
            record_from=round(record_s[0] * TICKS_PER_S),
            record_to=round(record_s[1] * TICKS_PER_S),
            progress=progress,
            check=check,
        )
    except OverflowError as error:
        raise UserError(
            "costs-impossible-time",
            f"{error}, and none takes more than an hour; check the board's parameters",
        ) from None
    return Outcome(**tables, instance_batches=fleet.batches)
