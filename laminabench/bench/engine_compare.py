"""Layouts of the engine, and vLLM, decoding the same load in turns."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lamina.cluster import Machine
from laminabench.bench.engine_contenders import (
    LAYOUTS,
    Contender,
    Load,
    OurContender,
    Turn,
    VllmContender,
    bookkeeping,
)
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
from laminabench.bench.mini import MODEL, users_load
from laminabench.errors import UserError

CONTENDERS = (*LAYOUTS, "vllm")
# A ratio's target is for the first's throughput over the second's.
TARGETS = {("rotational", "serial"): 1.25, ("rotational", "vllm"): 1.2}
# Where one of the two takes more than twice the other's time, taking turns cannot give that much.
WITHIN = 2.0
TARGET_BOUNDARY_S = 1e-3
TARGET_BOOKKEEPING_S = 0.5e-3
BOOKKEEPING_REQUESTS = 1000
BOOKKEEPING_ITERATIONS = 40


def run(
    names: str,
    load: Load,
    *,
    rounds: int,
    vllm_python: Path | None = None,
    watcher: Watcher = QUIET,
) -> Report:
    """The contenders of a list such as "serial,rotational", a turn each in every round."""
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in chosen if name not in CONTENDERS]:
        why = f"'{unknown[0]}' is unknown; known are {', '.join(CONTENDERS)}"
        raise UserError("bench-contender-unknown", f"--compare {names}: {why}")
    what = f"--compare {names}, batch {load.batch:,}, context {load.prompt:,}"
    with users_load(what), contextlib.ExitStack() as stack:
        machine = stack.enter_context(Machine())
        contenders = []
        for name in chosen:
            contenders.append(_contender(name, load, machine, vllm_python))
            stack.callback(contenders[-1].close)
        books = bookkeeping(BOOKKEEPING_REQUESTS, BOOKKEEPING_ITERATIONS)
        for contender in contenders:
            contender.round()  # not counted: touches all memory, and vLLM starts
        kept: list[float] = []
        turns = in_turns(
            {contender.name: contender.round for contender in contenders},
            rounds,
            watcher.progress,
            after=lambda: kept.append(books()),
        )
    return _report(turns, spread(kept), load, rounds)


def _contender(name: str, load: Load, machine: Machine, vllm_python: Path | None) -> Contender:
    return VllmContender(load, vllm_python) if name == "vllm" else OurContender(name, load, machine)


def _report(turns: Mapping[str, list[Turn]], books: Spread, load: Load, rounds: int) -> Report:
    rows = {name: _row(name, of_one, load) for name, of_one in turns.items()}
    pairs = [_ratio(first, second, turns) for (first, second) in _pairs(list(turns))]
    serial = turns.get("serial", ())
    boundary = spread([turn.parts["boundary_s"] for turn in serial]) if serial else None
    boundary_met = None if boundary is None else boundary.median <= TARGET_BOUNDARY_S
    books_met = books.median <= TARGET_BOOKKEEPING_S
    facts = {
        "benchmark": "engine-compare",
        "model": MODEL,
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
        f"{MODEL}, bfloat16, decoding only: {load.batch} requests of {load.prompt:,} tokens make "
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
    """Those with a target, and all others over the first."""
    pairs = [pair for pair in TARGETS if set(pair) <= set(names)]
    others = [(name, names[0]) for name in names[1:]]
    return pairs + [pair for pair in others if pair not in pairs and pair[::-1] not in pairs]


def _row(name: str, turns: Sequence[Turn], load: Load) -> Row:
    parts = {part: spread([turn.parts[part] for turn in turns]) for part in turns[0].parts}
    speed = spread([load.tokens / turn.seconds for turn in turns])
    # Of a token of every request, in however many batches.
    round_s = spread([turn.seconds / load.output for turn in turns])
    shown = [round_s, *(parts.get(part) for part in ("model_s", "attention_s", "host_s"))]
    texts = ("" if took is None else ms_text(took.median) for took in shown)
    return Row(
        {"tokens_per_s": speed, "round_s": round_s, **parts}, (name, *speed.cells("{:,.0f}".format), *texts)
    )


def _ratio(first: str, second: str, turns: Mapping[str, Sequence[Turn]]) -> Row:
    ratio = ratios(*([turn.seconds for turn in turns[name]] for name in (second, first)))
    target = TARGETS.get((first, second))
    facts: dict[str, object] = {"of": first, "over": second, "ratio": ratio, "target": target}
    text = f"{first} / {second}: {ratio.text('{:.2f}'.format)}" + (f", target {target:.2f}" if target else "")
    judged = target is not None
    if (first, second) == ("rotational", "serial"):
        model, attention = (
            statistics.median(turn.parts[part] for turn in turns["serial"])
            for part in ("model_s", "attention_s")
        )
        judged = max(model, attention) <= WITHIN * min(model, attention)
        facts["model_over_attention"] = model / attention
        text += f"; slices take {model / attention:.2f} times attention's"
        text += "" if judged else ", and it is judged up to a factor of 2"
    facts["judged"] = judged
    return Row(facts, (text,), ratio.median >= target if target is not None and judged else None)
