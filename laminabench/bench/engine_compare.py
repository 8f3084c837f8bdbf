"""Layouts of the engine, and vLLM, decoding the same load in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Row:
    """A contender; `more` has the parts of an iteration that it tells of."""

    tokens_per_s: Spread
    round_s: Spread  # of a token of every request, in however many batches
    more: Mapping[str, Spread]

    def cells(self) -> tuple[str, ...]:
        parts = (self.more.get(part) for part in ("model_s", "attention_s", "host_s"))
        return (
            *self.tokens_per_s.cells("{:,.0f}".format),
            ms_text(self.round_s.median),
            *("" if part is None else ms_text(part.median) for part in parts),
        )


@dataclass(frozen=True)
class Ratio:
    """One contender's throughput over another's."""

    of: str
    over: str
    ratio: Spread
    target: float | None
    judged: bool
    met: bool | None
    more: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> Text:
        text = f"{self.of} / {self.over}: {self.ratio.text('{:.2f}'.format)}"
        text += f", target {self.target:.2f}" if self.target else ""
        if self.more:
            text += f"; slices take {self.more['model_over_attention']:.2f} times attention's"
            text += "" if self.judged else ", and it is judged up to a factor of 2"
        return text, self.met


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
    rows = {name: _row(of_one, load) for name, of_one in turns.items()}
    pairs = [_ratio(first, second, turns, rows) for (first, second) in _pairs(list(turns))]
    boundary = rows["serial"].more.get("boundary_s") if "serial" in rows else None
    boundary_met = None if boundary is None else boundary.median <= TARGET_BOUNDARY_S
    books_met = books.median <= TARGET_BOOKKEEPING_S
    facts = {
        "benchmark": "engine-compare",
        "model": MODEL,
        "batch": load.batch,
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "rounds": rounds,
        "contenders": rows,
        "ratios": pairs,
        "boundary_s": boundary,
        "target_boundary_s": TARGET_BOUNDARY_S,
        "bookkeeping_s": books,
        "bookkeeping_requests": BOOKKEEPING_REQUESTS,
        "target_bookkeeping_s": TARGET_BOOKKEEPING_S,
        "boundary_met": boundary_met,
        "bookkeeping_met": books_met,
        "met": all_met([*(pair.met for pair in pairs), boundary_met, books_met]),
    }
    text: list[Text] = [
        f"{MODEL}, bfloat16, decoding only: {load.batch} requests of {load.prompt:,} tokens make "
        f"{load.output} each, {rounds} rounds",
        Table(
            ("<", "tokens/s", "min to max", "a token of all", "slices", "attention", "host"),
            [(name, *row.cells()) for name, row in rows.items()],
        ),
        "slices, attention and host are of one batch's iteration",
        *(pair.text() for pair in pairs),
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


def _row(turns: Sequence[Turn], load: Load) -> Row:
    return Row(
        spread([load.tokens / turn.seconds for turn in turns]),
        spread([turn.seconds / load.output for turn in turns]),
        {part: spread([turn.parts[part] for turn in turns]) for part in turns[0].parts},
    )


def _ratio(first: str, second: str, turns: Mapping[str, Sequence[Turn]], rows: Mapping[str, Row]) -> Ratio:
    ratio = ratios(*([turn.seconds for turn in turns[name]] for name in (second, first)))
    target, more, balanced = TARGETS.get((first, second)), {}, True
    if (first, second) == ("rotational", "serial"):
        model, attention = (rows["serial"].more[name].median for name in ("model_s", "attention_s"))
        more = {"model_over_attention": model / attention}
        balanced = max(model, attention) <= WITHIN * min(model, attention)
    judged = target is not None and balanced
    met = ratio.median >= target if target is not None and balanced else None
    return Ratio(first, second, ratio, target, judged, met, more)
