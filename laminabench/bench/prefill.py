"""What prompts cost those who decode meanwhile: their TBT with and without prompts, in turns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from lamina.cluster import Layout, Machine
from lamina.serve import Engine, Sampling
from laminabench.bench.mini import MODEL, mini_config
from laminabench.bench.timing import spread

Source = Literal["traffic", "computed"]
TARGET = 1.10  # p99 TBT with prompts over that without: below
OWN_CORES = 3  # model worker, attention worker, prefill worker
# Prompts that wait or are under way, so that prefill workers always have something to do.
AHEAD = 2
# The model's weights are not read in less: those who decode have tokens to make until the end.
LEAST_TBT_S = 15e-3
# Not counted: what comes of the phase before.
_SETTLE_STEPS = 5


@dataclass(frozen=True)
class Offer:
    """Who decodes, and which prompts come meanwhile."""

    source: Source
    tokens_per_s: float  # of made-up prompts
    batch: int
    context: int
    prompt_tokens: int
    seconds: float  # of each phase


@dataclass
class Phase:
    """A while of decoding."""

    tbt_s: list[float]
    alone_s: list[float]  # of iterations in which nobody new decoded too, and made the batch larger
    seconds: float
    prompts: int  # whose KV was there


def _machine(offer: Offer) -> Machine:
    machine = Machine()
    if offer.source == "traffic":
        machine.program = ("-m", "laminabench.bench.prefill_traffic", str(offer.tokens_per_s))
    return machine


class Decoding:
    """Requests that decode for as long as this lasts."""

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
        wish = Sampling(max_tokens=longest, ignore_eos=True)
        for _ in range(offer.batch):
            self.engine.submit(self._prompt(offer.context), wish)
        while self.engine.step().size < offer.batch:
            pass

    def _prompt(self, tokens: int) -> list[int]:
        return [1] * tokens

    def phase(self, *, prompts: bool) -> Phase:
        """Decode for the offer's time, with prompts that come meanwhile or without."""
        offer, engine = self._offer, self.engine
        for _ in range(_SETTLE_STEPS):
            last = engine.step().ended_s
        found, began, under_way = Phase([], [], 0.0, 0), last, set[int]()
        while last - began < offer.seconds:
            while prompts and len(under_way) < AHEAD:
                wish = Sampling(max_tokens=1)
                under_way.add(engine.submit(self._prompt(offer.prompt_tokens), wish))
            step = engine.step()
            if step.size < offer.batch:
                raise RuntimeError("those who decode have made all their tokens before the end")
            found.tbt_s.append(step.ended_s - last)
            if step.size == offer.batch:
                found.alone_s.append(step.ended_s - last)
            last = step.ended_s
            for number in under_way.intersection(step.ended):
                under_way.remove(number)
                engine.result(number)
                found.prompts += 1
        for number in under_way:
            engine.cancel(number)
            engine.result(number)
        found.seconds = last - began
        return found


def run(
    offer: Offer,
    *,
    rounds: int,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Every phase in every round, so that a noisy moment of the machine falls on all; ready for JSON."""
    cores = len(os.sched_getaffinity(0))
    longest = 64 + int(2 * (rounds + 1) * (offer.seconds + 1) / LEAST_TBT_S)
    layouts = {
        "pulled": Layout(pipelining="serial", prefill_workers=1, oversubscribe=cores < OWN_CORES),
        "in turn": Layout(pipelining="serial"),
    }
    phases: dict[str, dict[bool, list[Phase]]] = {name: {False: [], True: []} for name in layouts}
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(_machine(offer))
        # Side by side, but only one of them works.
        decoding = {name: Decoding(offer, layout, machine, longest) for name, layout in layouts.items()}
        for one in decoding.values():
            stack.callback(one.engine.close)
        token_bytes = decoding["pulled"].engine.core.facts.token_bytes
        for round_ in range(rounds):
            progress(round_, rounds)
            for name, one in decoding.items():
                # In either order, since contexts grow.
                for prompts in (False, True) if round_ % 2 == 0 else (True, False):
                    phases[name][prompts].append(one.phase(prompts=prompts))
        progress(rounds, rounds)
    return _report(phases, offer, rounds, cores, token_bytes)


def _report(
    phases: dict[str, dict[bool, list[Phase]]], offer: Offer, rounds: int, cores: int, token_bytes: int
) -> dict[str, Any]:
    ways = {name: _way(found, offer, token_bytes) for name, found in phases.items()}
    judged = offer.source == "traffic" or cores >= OWN_CORES
    return {
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
        "ways": ways,
        "target_p99_ratio": TARGET,
        "met": ways["pulled"]["p99_ratio"]["median"] < TARGET if judged else None,
    }


def _way(found: dict[bool, list[Phase]], offer: Offer, token_bytes: int) -> dict[str, Any]:
    quiet, busy = ([_quantiles(phase.tbt_s) for phase in found[prompts]] for prompts in (False, True))
    alone = [_quantiles(phase.alone_s or phase.tbt_s) for phase in found[True]]
    taken = [phase.prompts * (offer.prompt_tokens - 1) / phase.seconds for phase in found[True]]
    return {
        "without": _of_all(found[False]),
        "with": _of_all(found[True]),
        "p50_ratio": spread([b[0] / a[0] for a, b in zip(quiet, busy, strict=True)]),
        "p99_ratio": spread([b[1] / a[1] for a, b in zip(quiet, busy, strict=True)]),
        # Of iterations of those who decode, by themselves: what the traffic costs, without the newcomers.
        "p99_ratio_alone": spread([b[1] / a[1] for a, b in zip(quiet, alone, strict=True)]),
        # Of prompts that were whole by the end of a phase.
        "prompt_tokens_per_s": spread(taken),
        "kv_bytes_per_s": spread([tokens * token_bytes for tokens in taken]),
    }


def _of_all(phases: list[Phase]) -> dict[str, float]:
    every = [each for phase in phases for each in phase.tbt_s]
    p50, p99 = _quantiles(every)
    return {"p50_ms": p50 * 1e3, "p99_ms": p99 * 1e3, "max_ms": max(every) * 1e3, "tokens": len(every)}


def _quantiles(tbt_s: list[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(tbt_s, [0.5, 0.99])
    return float(p50), float(p99)
