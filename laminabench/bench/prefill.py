"""Benchmark of the cost of prompts for requests that decode meanwhile: TBT with and without prompts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lamina.cluster import Layout, Machine
from lamina.serve import Engine, Sampling
from laminabench.bench.frame import QUIET, Report, Row, Table, Text, Watcher, ratios, spread
from laminabench.bench.prefill_together import Together
from laminabench.bench.prefill_together import run as together
from laminabench.calibrate.models import MODEL, mini_config, users_load
from laminabench.util.errors import UserError

Source = Literal["traffic", "computed"]
TARGET = 1.10  # p99 TBT with prompts over that without must be below this
OWN_CORES = 3  # model worker, attention worker, prefill worker
# Prompts that wait or are under way, so that prefill workers always have something to do.
AHEAD = 2
# Reading the model's weights takes longer than this: decoding requests have tokens to make until the end.
LEAST_TBT_S = 15e-3
# Steps that are not counted, as the previous phase affects them.
_SETTLE_STEPS = 5


@dataclass(frozen=True)
class Offer:
    """The offered load: requests that decode, and prompts that arrive meanwhile."""

    source: Source
    tokens_per_s: float  # of made-up prompts
    batch: int
    context: int
    prompt_tokens: int
    seconds: float  # of each phase


@dataclass
class Phase:
    tbt_s: list[float]
    alone_s: list[float]  # of iterations in which no new request decoded too and made the batch larger
    seconds: float
    prompts: int  # that were computed completely


Phases = dict[bool, list[Phase]]  # without and with prompts


def default_source() -> Source:
    """Return "computed" if the prefill worker can have a core of its own for it."""
    return "computed" if len(os.sched_getaffinity(0)) >= OWN_CORES else "traffic"


def _machine(offer: Offer) -> Machine:
    machine = Machine()
    if offer.source == "traffic":
        machine.program = ("-m", "laminabench.bench.prefill_traffic", str(offer.tokens_per_s))
    return machine


class Decoding:
    """Requests that decode for the whole benchmark."""

    def __init__(self, offer: Offer, layout: Layout, machine: Machine, longest: int) -> None:
        self._offer = offer
        self.engine = Engine(
            mini_config(),
            layout=layout,
            machine=machine,
            max_sequences=offer.batch + AHEAD,
            dtype=torch.bfloat16,
            load_format="dummy",
            kv_tokens=offer.batch * (offer.context + longest) + AHEAD * (offer.prompt_tokens + 1),
        )
        sampling = Sampling(max_tokens=longest, ignore_eos=True)
        for _ in range(offer.batch):
            self.engine.submit([1] * offer.context, sampling)
        while self.engine.step().size < offer.batch:
            pass

    def phase(self, *, prompts: bool) -> Phase:
        """Decode for the offer's time, with prompts that come meanwhile or without."""
        offer, engine = self._offer, self.engine
        for _ in range(_SETTLE_STEPS):
            last = engine.step().ended_s
        phase, began, under_way = Phase([], [], 0.0, 0), last, set[int]()
        while last - began < offer.seconds:
            while prompts and len(under_way) < AHEAD:
                under_way.add(engine.submit([1] * offer.prompt_tokens, Sampling(max_tokens=1)))
            step = engine.step()
            if step.size < offer.batch:
                raise RuntimeError("the decoding requests have made all their tokens before the end")
            phase.tbt_s.append(step.ended_s - last)
            if step.size == offer.batch:
                phase.alone_s.append(step.ended_s - last)
            last = step.ended_s
            for number in under_way.intersection(step.ended):
                under_way.remove(number)
                engine.result(number)
                phase.prompts += 1
        for number in under_way:
            engine.cancel(number)
            engine.result(number)
        phase.seconds = last - began
        return phase


def run(offer: Offer, *, rounds: int, watcher: Watcher = QUIET) -> Report:
    """Measure every phase in every round, so that noise of the machine affects all."""
    if offer.prompt_tokens < 2:
        why = "a prompt of one token has no KV to compute, give 2 or more"
        raise UserError("bench-prompt-too-short", f"--prompt-tokens {offer.prompt_tokens}: {why}")
    cores = len(os.sched_getaffinity(0))
    longest = 64 + int(2 * (rounds + 1) * (offer.seconds + 1) / LEAST_TBT_S)
    layouts = {
        "pulled": Layout(pipelining="serial", prefill_workers=1, oversubscribe=cores < OWN_CORES),
        "in turn": Layout(pipelining="serial"),
    }
    what = f"batch {offer.batch:,}, context {offer.context:,}, {rounds:,} rounds"
    prompts_together = together(rounds, watcher)
    phases: dict[str, Phases] = {name: {False: [], True: []} for name in layouts}
    with users_load(what), contextlib.ExitStack() as stack:
        machine = stack.enter_context(_machine(offer))
        # Both exist at the same time, but only one of them works.
        decoding = {name: Decoding(offer, layout, machine, longest) for name, layout in layouts.items()}
        for one in decoding.values():
            stack.callback(one.engine.close)
        token_bytes = decoding["pulled"].engine.core.facts.token_bytes
        for round_ in range(rounds):
            watcher.progress(round_, rounds)
            for name, one in decoding.items():
                # In alternating order, since contexts grow.
                for prompts in (False, True) if round_ % 2 == 0 else (True, False):
                    phases[name][prompts].append(one.phase(prompts=prompts))
        watcher.progress(rounds, rounds)
    ways = {name: _way(name, of_one, offer, token_bytes) for name, of_one in phases.items()}
    return _report(ways, offer, rounds, cores, prompts_together)


def _report(
    ways: Mapping[str, Row], offer: Offer, rounds: int, cores: int, prompts_together: Together
) -> Report:
    judged = offer.source == "traffic" or cores >= OWN_CORES
    met = ways["pulled"].met if judged else None
    facts = {
        "benchmark": "prefill",
        "model": MODEL,
        "source": offer.source,
        "cores": cores,
        "own_core": cores >= OWN_CORES,
        "batch": offer.batch,
        "context": offer.context,
        "prompt_tokens": offer.prompt_tokens,
        "offered_tokens_per_s": offer.tokens_per_s if offer.source == "traffic" else None,
        "rounds": rounds,
        "seconds": offer.seconds,
        "ways": {name: way.facts for name, way in ways.items()},
        "target_p99_ratio": TARGET,
        "met": met,
        "together": prompts_together.facts,
    }
    titles = ("TBT p50", "p99", "with prompts p50", "p99", "p99 ratio", "same batch", "tokens/s", "KV MB/s")
    text: list[Text] = [
        f"{MODEL}, bfloat16, {cores} cores: {offer.batch} requests of {offer.context:,} tokens and more "
        f"decode, prompts of {offer.prompt_tokens:,} tokens come; {rounds} rounds",
        _what_came(offer, own_core=cores >= OWN_CORES),
        Table(("<prompts", *titles), [way.cells for way in ways.values()]),
        "same batch: of iterations without requests whose prompts have just come (they decode one token)",
        (f"p99 TBT with prompts that are pulled, over without: below {TARGET:.2f}", met),
        *prompts_together.text,
    ]
    return Report(facts, text)


def _what_came(offer: Offer, *, own_core: bool) -> str:
    if offer.source == "traffic":
        sharing = "" if own_core else ", on a core that it shares with the model worker"
        return (
            f"traffic: the prefill worker computes nothing and sends KV of made-up content, "
            f"{offer.tokens_per_s:,.0f} tokens/s{sharing}"
        )
    if own_core:
        return "computed: the prefill worker computes prompts on a core of its own"
    return (
        "computed: the prefill worker computes prompts, and takes the time for it from the model worker, "
        f"whose core it shares: not judged, that takes {OWN_CORES} cores"
    )


def _way(name: str, phases: Phases, offer: Offer, token_bytes: int) -> Row:
    quiet, busy = ([_quantiles(phase.tbt_s) for phase in phases[prompts]] for prompts in (False, True))
    alone = [_quantiles(phase.alone_s or phase.tbt_s) for phase in phases[True]]
    # Only prompts that were complete by the end of a phase.
    taken = [phase.prompts * (offer.prompt_tokens - 1) / phase.seconds for phase in phases[True]]
    p50s, p99s = ([of_phase[place] for of_phase in quiet] for place in (0, 1))
    tokens_per_s, bytes_per_s = spread(taken), spread([tokens * token_bytes for tokens in taken])
    p99_ratio, alone_ratio = (ratios([p99 for _, p99 in with_], p99s) for with_ in (busy, alone))
    without, with_prompts = _of_all(phases[False]), _of_all(phases[True])
    facts = {
        "without": without,
        "with": with_prompts,
        "p50_ratio": ratios([p50 for p50, _ in busy], p50s),
        "p99_ratio": p99_ratio,
        # Only iterations without new requests: the cost of the traffic alone.
        "p99_ratio_alone": alone_ratio,
        "prompt_tokens_per_s": tokens_per_s,
        "kv_bytes_per_s": bytes_per_s,
    }
    cells = (
        name,
        *(f"{tbt[key]:,.1f} ms" for tbt in (without, with_prompts) for key in ("p50_ms", "p99_ms")),
        *(ratio.text("{:.2f}".format) for ratio in (p99_ratio, alone_ratio)),
        f"{tokens_per_s.median:,.0f}",
        f"{bytes_per_s.median / 1e6:,.0f}",
    )
    return Row(facts, cells, p99_ratio.median < TARGET)


def _of_all(phases: list[Phase]) -> dict[str, float]:
    every = [tbt_s for phase in phases for tbt_s in phase.tbt_s]
    p50, p99 = _quantiles(every)
    return {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "max_ms": max(every) * 1e3, "tokens": len(every)}


def _quantiles(tbt_s: list[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(tbt_s, [0.5, 0.99])
    return float(p50), float(p99)
