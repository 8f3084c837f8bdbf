"""--deployment auto: which layout of this machine's cores decodes a trace fastest, from a moment of each.

Cores are equal, so dividing them between model and attention gains nothing by itself: whatever the two
take, (m + a) / (p + q) is no more than the larger of m / p and a / q. What a process loses with many threads,
and workers with smaller batches and messages, only a measurement decides.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from laminabench.catalog.deployment import AUTO, Deployment, Workers
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.live.lamina import memory, starting
from laminabench.systems.live.lamina.checks import check
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.router import require_several
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import Listener

# Sequences that decode in a trial, at most; the trace may have fewer.
MOST_SEQUENCES = 64
# Of each sequence, those that are not counted first.
WARM_UP, COUNTED = 2, 6
TOKENS = WARM_UP + COUNTED


@dataclass(frozen=True, slots=True)
class Trial:
    """The measured result of a layout."""

    deployment: str
    tokens_per_s: float
    attention_share: float  # of the time that slices and attention took


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a trial: about as much as the trace has at once."""

    sequences: int
    context: int  # tokens of each

    @classmethod
    def of(cls, trace: Trace, request: ReplayRequest, setup: LiveSetup, free_bytes: float) -> Load:
        """Return the load of a trace, as far as memory allows."""
        at_once = (len(trace), setup.max_num_seqs, request.concurrency or MOST_SEQUENCES, MOST_SEQUENCES)
        mean = float(np.mean(trace.prompt_tokens + trace.output_tokens / 2)) if len(trace) else 1.0
        context = max(1, round(mean))
        sequences = max(1, min(at_once))
        room = memory.kv_of_each(setup, sequences * (context + TOKENS), free_bytes)
        sequences = max(1, min(sequences, room // (1 + TOKENS)))
        return cls(sequences, max(1, min(context, room // sequences - TOKENS)))

    @property
    def kv_tokens(self) -> int:
        return self.sequences * (self.context + TOKENS)

    def __str__(self) -> str:
        return f"{self.sequences} sequences of {self.context:,} tokens"


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout that was taken, and why, in a sentence."""

    setup: LiveSetup
    why: str
    trials: tuple[Trial, ...] = ()

    @property
    def deployment(self) -> str:
        return str(self.setup.deployment)

    def describe(self) -> JsonObject:
        """Convert to what a Run stores."""
        return {"why": self.why, "trials": [asdict(each) for each in self.trials]}


Measure = Callable[[LiveSetup, Load], Trial]


def one_process(request: ReplayRequest) -> str:
    """Return all cores, checked before anything is measured; raise a UserError for several instances."""
    require_several(request, 1)
    if (request.instances or 1) > 1:
        raise UserError(
            "deployment-auto-instances",
            f"--deployment {AUTO} measures one engine that has the machine to itself; name what --instances "
            "are of",
        )
    return f"{len(os.sched_getaffinity(0))}xcpu"


def chosen(
    setup: LiveSetup, request: ReplayRequest, trace: Trace, listener: Listener, measure: Measure | None = None
) -> Choice:
    """Choose one process on all cores, or workers on a core each, whichever decodes more tokens a second."""
    cores = setup.workers[0]
    if cores == 1:
        return Choice(setup, "there is one core, which one process has")
    load = Load.of(trace, request, setup, memory.free_bytes(setup))
    listener.note(f"--deployment {AUTO}: {load} decode for a moment in one process, and then by workers")
    trials = [(setup, (measure or measured)(setup, load))]
    for workers in _workers(setup, round(cores * trials[0][1].attention_share)):
        try:
            trials.append((workers, (measure or measured)(workers, load)))
            break
        except UserError as error:
            listener.detail(f"{workers.deployment} is left out: {error}")
    # Of equal ones the first, which has less to go wrong.
    best, _ = max(trials, key=lambda pair: pair[1].tokens_per_s)
    rates = ", ".join(f"{each.deployment} {each.tokens_per_s:,.0f} tokens/s" for _, each in trials)
    why = f"{best.deployment} is the fastest for {load}: {rates}"
    listener.note(f"--deployment {AUTO}: {why}")
    return Choice(best, why, tuple(trial for _, trial in trials))


def _workers(setup: LiveSetup, attending: int) -> Iterator[LiveSetup]:
    """Yield every way to divide the cores, those with about so many for attention first."""
    cores, device = setup.workers[0], setup.deployment.model.device
    for attention in sorted(range(1, cores), key=lambda count: abs(count - attending)):
        divided = Deployment(Workers(device, cores - attention), Workers(device, attention))
        workers = replace(setup, deployment=divided, deployments=())
        try:
            check(workers)
        except UserError:  # heads that do not divide so
            continue
        yield workers


def measured(setup: LiveSetup, load: Load) -> Trial:
    """Decode the load here and now, with made-up KV, and return its times."""
    from lamina.serve import Sampling

    spent: dict[str, float] = {"model": 0.0, "attention": 0.0}
    before_s = last_s = 0.0
    tokens = 0
    with starting.opened(replace(setup, prefill="off"), load.kv_tokens, "fifo", None) as engine:
        for _ in range(load.sequences):
            engine.submit(load.context, Sampling(max_tokens=TOKENS, ignore_eos=True))
        while not engine.idle:
            step = engine.step()
            if step.iteration < WARM_UP or not step.size:
                before_s = step.ended_s or before_s
                continue
            tokens, last_s = tokens + step.size, step.ended_s
            spent["model"] += step.model_s
            spent["attention"] += step.attention_s
    gc.collect()  # an engine of this process is large, and another one follows
    total = sum(spent.values())
    share = spent["attention"] / total if total else 0.0
    return Trial(str(setup.deployment), tokens / (last_s - before_s), share)
