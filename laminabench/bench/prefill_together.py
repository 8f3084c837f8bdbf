"""Benchmark of short prompts through the slices together and one by one, and of matrix products alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from lamina.model import Prefill, PromptRun, PromptTokens
from lamina.model.prefill import CHUNK
from lamina.serve import Engine
from laminabench.bench.engine import Gemms
from laminabench.bench.frame import QUIET, Row, Table, Text, Watcher, in_turns, ratios, seconds_of, spread
from laminabench.calibrate.models import mini_config

LENGTHS = (32, 128, 512)
# Share of the products' rate. The rest is attention (4 % of the operations at 512 tokens, at half the
# products' rate) and small operators (a tenth of an iteration).
TARGET_SHARE = 0.80


@dataclass(frozen=True)
class Together:
    """The results: rows by length of prompts."""

    rows: Sequence[Row]
    met: bool

    @property
    def facts(self) -> Mapping[str, object]:
        return {"rows": self.rows, "target_share": TARGET_SHARE, "met": self.met}

    @property
    def text(self) -> list[Text]:
        titles = (
            "tokens of each",
            "one by one",
            "together",
            "gain",
            f"products, {CHUNK} rows",
            "share of that",
        )
        return [
            f"prompts in one process, {CHUNK} tokens a call, tokens/s:",
            Table(titles, [row.cells for row in self.rows]),
            (f"prompts together reach {TARGET_SHARE:.0%} of the products' rate", self.met),
        ]


@torch.inference_mode()
def run(rounds: int, watcher: Watcher = QUIET) -> Together:
    """Measure as many tokens in each way, in turns."""
    engine = Engine(
        mini_config(), max_sequences=1, dtype=torch.bfloat16, load_format="dummy", kv_tokens=CHUNK
    )
    slices = engine.core.slices[:-1]
    prefill = Prefill(slices, engine.core.conversion.attended({}))
    products = Gemms(slices, engine.core.conversion.vocab_size, CHUNK)
    actions: dict[str, Callable[[], float]] = {"products": products.seconds}
    for length in LENGTHS:
        runs = CHUNK // length
        actions[f"{length} one by one"] = partial(_compute, prefill, [1] * runs, length)
        actions[f"{length} together"] = partial(_compute, prefill, [runs], length)
    for action in actions.values():
        action()
    took = in_turns(actions, rounds, watcher.progress)
    rows = [_row(length, took) for length in LENGTHS]
    return Together(rows, all(row.met for row in rows))


def _compute(prefill: Prefill, calls: Sequence[int], length: int) -> float:
    """Return the seconds of prompts of one length, with this many in each call."""
    tokens = torch.ones(length, dtype=torch.int64)
    batches = [[PromptTokens(PromptRun(length), tokens) for _ in range(count)] for count in calls]

    def compute() -> None:
        for some in batches:
            prefill.call(some, None, lambda *_: None)

    return seconds_of(compute)


def _row(length: int, took: Mapping[str, Sequence[float]]) -> Row:
    alone, both, products = (took[f"{length} one by one"], took[f"{length} together"], took["products"])
    rates = {
        name: spread([CHUNK / seconds for seconds in each])
        for name, each in (("one_by_one", alone), ("together", both), ("products", products))
    }
    gain, share = ratios(alone, both), ratios(products, both)
    facts = {
        "prompt_tokens": length,
        **{f"{name}_tokens_per_s": rate for name, rate in rates.items()},
        "gain": gain,
        "share_of_products": share,
    }
    cells = (
        f"{length}",
        *(f"{rates[name].median:,.0f}" for name in ("one_by_one", "together")),
        gain.text("{:.2f}".format),
        f"{rates['products'].median:,.0f}",
        share.text("{:.0%}".format),
    )
    return Row(facts, cells, share.median >= TARGET_SHARE)
