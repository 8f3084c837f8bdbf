"""Benchmark of layouts of the engine, one process of it, and vLLM, which decode the same load in turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from lamina.cluster import Layout, Machine
from lamina.pipeline import Records, Schedule, check_schedule
from lamina.serve import Engine, Sampling, Step
from laminabench.bench.engine_vllm import Contender, Load, Turn, vllm
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Spread,
    Table,
    Text,
    Watcher,
    all_met,
    in_turns,
    ms_text,
    ratios,
    spread,
)
from laminabench.calibrate.models import MODEL, MOE, config_of, moe_config, users_load
from laminabench.util.errors import UserError

LAYOUTS: dict[str, Layout | None] = {
    "serial": Layout(pipelining="serial"),
    "rotational": Layout(pipelining="rotational", batches=2),
    "one-process": None,
}
# These decode MOE instead of MODEL. Two model workers of a replica and the attention worker share two cores.
_RANKS = Layout(2, 1, pipelining="serial", oversubscribe=True)
EXPERTS: dict[str, Layout] = {
    "tensor-parallel": _RANKS,
    "expert-parallel": replace(_RANKS, experts="ep"),
}
# vLLM's contenders and their dtypes.
VLLMS = {"vllm": "bf16", "vllm-fp32": "fp32"}
CONTENDERS = (*LAYOUTS, *EXPERTS, *VLLMS)
# Ratios are the first's throughput over the second's.
PAIRS = (
    ("rotational", "serial"),
    *((name, other) for name in ("rotational", "one-process") for other in VLLMS),
)
# If one of the two takes more than twice the other's time, rotation cannot reach its target.
WITHIN = 2.0
SMALL_BATCH = 16  # below it an iteration mostly reads weights
TARGET_BOUNDARY_S = 1e-3
TARGET_BOOKKEEPING_S = 0.5e-3
BOOKKEEPING_REQUESTS = 1000
BOOKKEEPING_ITERATIONS = 40
# Lengths of the requests whose bookkeeping is measured: a mean answer of the Azure trace.
PROMPT, OUTPUT = 200, 200


def target(first: str, second: str, load: Load) -> float | None:
    if (first, second) == ("rotational", "serial"):
        return 1.25
    if first == "rotational" and second in VLLMS:
        return 1.0
    if first == "one-process" and second in VLLMS:
        if load.batch < SMALL_BATCH:
            return 1.0
        return 1.35 if load.model == MODEL else 1.2
    return None


def usual_output(names: str) -> int:
    """Return the tokens of each request: fewer for ranks, which share cores and are slow."""
    return 16 if any(name in names for name in EXPERTS) else 64


def run(
    names: str,
    load: Load,
    *,
    rounds: int,
    vllm_python: Path | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """Measure the contenders of a list such as "serial,rotational", one turn each in every round."""
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in chosen if name not in CONTENDERS]:
        why = f"'{unknown[0]}' is unknown; known are {', '.join(CONTENDERS)}"
        raise UserError("bench-contender-unknown", f"--compare {names}: {why}")
    if len({name in EXPERTS for name in chosen}) > 1:
        why = f"{' and '.join(EXPERTS)} decode another model than others; compare them with each other"
        raise UserError("bench-contender-model", f"--compare {names}: {why}")
    if chosen[0] in EXPERTS and load.model != MODEL:
        raise UserError("bench-contender-model", f"--model {load.model}: {names} decode {MOE} only")
    what = f"--compare {names}, batch {load.batch:,}, context {load.prompt:,}"
    with users_load(what), contextlib.ExitStack() as stack:
        machine = stack.enter_context(Machine())
        contenders = {
            name: stack.enter_context(
                vllm(load, vllm_python, VLLMS[name]) if name in VLLMS else our_engine(name, load, machine)
            )
            for name in chosen
        }
        books = bookkeeping(BOOKKEEPING_REQUESTS, BOOKKEEPING_ITERATIONS)
        in_turns(contenders, 1)  # not counted: touches all memory, and vLLM starts
        book_s: list[float] = []
        turns = in_turns(contenders, rounds, watcher.progress, after=lambda: book_s.append(books()))
    return _report(turns, spread(book_s), load, rounds)


@contextlib.contextmanager
def our_engine(name: str, load: Load, machine: Machine) -> Iterator[Contender]:
    """Yield a contender with slices on one core and attention on another, or one process on both."""
    engine = Engine(
        moe_config() if name in EXPERTS else config_of(load.model),
        layout=(LAYOUTS | EXPERTS)[name],
        machine=machine,
        max_sequences=load.batch,
        dtype=torch.bfloat16,
        load_format="dummy",
        decode_only=True,
        kv_tokens=load.batch * (load.prompt + load.output),
    )
    known = 0  # iterations of turns before

    def turn() -> Turn:
        nonlocal known
        sampling = Sampling(max_tokens=load.output, ignore_eos=True)
        numbers = [engine.submit(load.prompt, sampling) for _ in range(load.batch)]
        steps: list[Step] = []
        started = time.monotonic()
        while not engine.idle:
            steps.append(engine.step())
        seconds = steps[-1].ended_s - started
        for number in numbers:
            engine.result(number)
        host = {"host_s": statistics.median(step.host_s for step in steps)}
        records = engine.records()
        if records is None:
            host["model_s"] = statistics.median(step.model_s for step in steps)
            host["attention_s"] = statistics.median(step.attention_s for step in steps)
            return Turn(seconds, host)
        if problems := check_schedule(records, engine.schedule):
            raise RuntimeError(f"the workers of {name} left their schedule: {problems[0]}")
        of = records.of_iterations
        fresh = of.iteration >= known
        known += load.output
        parts = {"model_s": float(np.median(of.model_s[fresh]))}
        parts["attention_s"] = float(np.median(of.attention_s[fresh]))
        parts["boundary_s"] = boundary_s(records, engine.schedule)
        return Turn(seconds, parts | host)

    with contextlib.closing(engine):
        yield turn


def boundary_s(records: Records, schedule: Schedule) -> float:
    """Return the median time between iterations of a batch: from its last slice to its next first one.

    It covers sending the tokens to the front end, scheduling, and sending the next iteration to the workers.
    """
    model = records.where((np.array(records.replica_of)[records.worker] >= 0) & (records.batch == 0))
    last, first = model.slice == schedule.slices - 1, model.slice == 0
    ends, starts = model.end_ns[last], model.start_ns[first]
    began, ended = model.iteration[first], model.iteration[last]
    both = np.intersect1d(ended + 1, began)
    gaps = starts[np.isin(began, both)] - ends[np.isin(ended + 1, both)]
    return float(np.median(gaps)) / 1e9


def bookkeeping(requests: int, iterations: int) -> Callable[[], float]:
    """Return a function that measures the host's time of an iteration of an engine with a tiny model.


    It is the time of scheduler, slots and bookkeeping. Requests make OUTPUT tokens and began at different
    times, so that as many join and leave in each iteration as in a steady state.
    """
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=128,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    engine = Engine(
        config,
        max_sequences=requests,
        kv_tokens=requests * (PROMPT + OUTPUT),
        load_format="dummy",
        decode_only=True,
    )

    def measure() -> float:
        tokens = [1 + OUTPUT * number // requests for number in range(requests)] + [OUTPUT] * requests
        numbers = [engine.submit(PROMPT, Sampling(max_tokens=count, ignore_eos=True)) for count in tokens]
        steps = [engine.step() for _ in range(iterations + 1)]
        full = [step.host_s for step in steps[1:] if step.size == requests]
        for number in numbers:
            engine.cancel(number)
            engine.result(number)
        return statistics.median(full)

    return measure


def _report(turns: Mapping[str, list[Turn]], books: Spread, load: Load, rounds: int) -> Report:
    rows = {name: _row(name, of_one, load) for name, of_one in turns.items()}
    pairs = [_ratio(first, second, turns, load) for (first, second) in _pairs(list(turns))]
    decoded = MOE if turns.keys() <= EXPERTS.keys() else load.model
    serial = turns.get("serial", ())
    boundary = spread([turn.parts["boundary_s"] for turn in serial]) if serial else None
    boundary_met = None if boundary is None else boundary.median <= TARGET_BOUNDARY_S
    books_met = books.median <= TARGET_BOOKKEEPING_S
    facts = {
        "benchmark": "engine-compare",
        "model": decoded,
        "batch": load.batch,
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "rounds": rounds,
        "contenders": {name: row.facts for name, row in rows.items()},
        "ratios": pairs,
        "boundary_s": boundary,
        "target_boundary_s": TARGET_BOUNDARY_S,
        "bookkeeping_s": books,
        "bookkeeping_requests": BOOKKEEPING_REQUESTS,
        "target_bookkeeping_s": TARGET_BOOKKEEPING_S,
        "boundary_met": boundary_met,
        "bookkeeping_met": books_met,
        "met": all_met(pairs) and boundary_met is not False and books_met,
    }
    text: list[Text] = [
        f"{decoded}, bfloat16, decoding only: {load.batch} requests of {load.prompt:,} tokens make "
        f"{load.output} each, {rounds} rounds",
        Table(
            ("<", "tokens/s", "min to max", "a token of all", "slices", "attention", "host"),
            [row.cells for row in rows.values()],
        ),
        "slices, attention and host are of one batch's iteration",
        *((str(pair.cells[0]), pair.met) for pair in pairs),
    ]
    if boundary is not None:
        took = f"{ms_text(boundary.median)}, target {TARGET_BOUNDARY_S * 1e3:g} ms"
        text.append((f"control between two iterations (serial): {took}", boundary_met))
    took = f"{ms_text(books.median)} an iteration, target {TARGET_BOOKKEEPING_S * 1e3:g} ms"
    text.append((f"scheduling and bookkeeping of {BOOKKEEPING_REQUESTS:,} requests: {took}", books_met))
    return Report(facts, text)


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Return the pairs with a target, and all others over the first."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(names)]
    others = [(name, names[0]) for name in names[1:]]
    return pairs + [pair for pair in others if pair not in pairs and pair[::-1] not in pairs]


def _row(name: str, turns: Sequence[Turn], load: Load) -> Row:
    parts = {part: spread([turn.parts[part] for turn in turns]) for part in turns[0].parts}
    speed = spread([load.batch * load.output / turn.seconds for turn in turns])
    # The time of one token of every request, in however many batches.
    round_s = spread([turn.seconds / load.output for turn in turns])
    shown = [round_s, *(parts.get(part) for part in ("model_s", "attention_s", "host_s"))]
    texts = ("" if took is None else ms_text(took.median) for took in shown)
    return Row(
        {"tokens_per_s": speed, "round_s": round_s, **parts}, (name, *speed.cells("{:,.0f}".format), *texts)
    )


def _ratio(first: str, second: str, turns: Mapping[str, Sequence[Turn]], load: Load) -> Row:
    ratio = ratios(*([turn.seconds for turn in turns[name]] for name in (second, first)))
    target_ratio = target(first, second, load)
    facts: dict[str, object] = {"of": first, "over": second, "ratio": ratio, "target": target_ratio}
    text = f"{first} / {second}: {ratio.text('{:.2f}'.format)}" + (
        f", target {target_ratio:.2f}" if target_ratio else ""
    )
    judged = target_ratio is not None
    if first == "rotational":
        # The times of a model worker and an attention worker without anything in parallel.
        alone = turns.get("serial", turns["rotational"])
        model, attention = (
            statistics.median(turn.parts[part] for turn in alone) for part in ("model_s", "attention_s")
        )
        judged = max(model, attention) <= WITHIN * min(model, attention)
        facts["model_over_attention"] = model / attention
        text += f"; slices take {model / attention:.2f} times attention's"
        text += "" if judged else ", and it is judged up to a factor of 2"
    facts["judged"] = judged
    return Row(facts, (text,), ratio.median >= target_ratio if target_ratio is not None and judged else None)
