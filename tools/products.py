"""Speed of multiplying rows by a model's weights, here and in torch in turns: most of what slices do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from lamina.convert import packing
from laminabench.bench.attention import usual_kv_bytes
from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Watcher,
    all_met,
    in_turns,
    judged,
    ratios,
    seconds_of,
    spread,
)
from laminabench.calibrate.models import mini_config
from laminabench.util.errors import UserError

TARGET_RATIO = 1.0  # our own kernel has to be worth its lines wherever it is used
BATCHES = (1, 4, 16, 32, 64, 128, 512)
# So many numbers of a weight times rows are multiplied in a round: some ten milliseconds.
WORK = 2 << 30


def run(batches: Sequence[int] = BATCHES, rounds: int = 9, watcher: Watcher = QUIET) -> Report:
    """Measure every size of weight of the engine's own benchmark, from memory: a row of the table for each
    batch.

    A round multiplies by several weights of a size as torch does, in oneDNN's order where that has products
    of bfloat16, and then as we do. Where torch's are as good we have none, and nothing is judged.
    """
    if not packing.packs():
        raise UserError("bench-no-bfloat16", "this processor has no products of bfloat16 to measure")
    table: list[Row] = []
    sizes = _sizes()
    for name, (outputs, inputs) in sizes.items():
        weight = torch.randn(outputs, inputs).bfloat16()
        copies = max(2, usual_kv_bytes() // weight.nbytes)
        orders = _orders(weight, copies)
        for batch in batches:
            watcher.progress(len(table), len(sizes) * len(batches))
            table.append(_row(name, orders, batch, rounds))
        del orders
    torchs = "oneDNN" if packing.library_packs() else "torch"
    titles = (
        "<weight",
        "outputs",
        "inputs",
        "rows",
        torchs,
        "panels",
        "GB/s",
        "times as fast",
        "min to max",
    )
    facts = {
        "benchmark": "products",
        "torch": torchs,
        "target_ratio": TARGET_RATIO,
        "rows": table,
        "met": all_met(table),
    }
    text = [judged((*titles, f"<target {TARGET_RATIO:g}"), table)]
    threads = f"{torch.get_num_threads()} threads"
    if not packing.panel_product():
        return Report(facts, [*text, f"{threads}; all products are oneDNN's here"])
    return Report(facts, [*text, threads])


def _sizes() -> Mapping[str, tuple[int, int]]:
    """Return the outputs and inputs of the model's products, merged as in the engine."""
    config = mini_config()
    hidden, heads = config.hidden_size, config.num_attention_heads + 2 * config.num_key_value_heads
    return {
        "q, k, v": (heads * config.head_dim, hidden),
        "o": (hidden, config.num_attention_heads * config.head_dim),
        "gate, up": (2 * config.intermediate_size, hidden),
        "down": (hidden, config.intermediate_size),
        "head": (config.vocab_size, hidden),
    }


def _orders(weight: Tensor, copies: int) -> Mapping[str, list[Tensor]]:
    def of(order: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return [order(weight) for _ in range(copies)]

    orders = {"torch": of(packing.in_library_order if packing.library_packs() else Tensor.clone)}
    return orders | ({"panels": of(packing.in_panels)} if packing.panel_product() else {})


@torch.inference_mode()
def _row(name: str, orders: Mapping[str, list[Tensor]], batch: int, rounds: int) -> Row:
    outputs, inputs = packing.sizes(orders["torch"][0])
    calls = max(1, min(len(orders["torch"]), WORK // (outputs * inputs * batch)))
    x = torch.randn(batch, inputs).bfloat16()
    at = 0

    def multiply(weights: Sequence[Tensor]) -> None:
        for number in range(at, at + calls):
            packing.linear(x, weights[number % len(weights)])

    def on() -> None:
        nonlocal at
        at += calls  # to weights that no cache has

    actions = {way: partial(seconds_of, partial(multiply, weights)) for way, weights in orders.items()}
    in_turns(actions, 1)
    took = in_turns(actions, rounds, after=on)
    seconds = {way: spread([each / calls for each in times]) for way, times in took.items()}
    fastest = min(one.median for one in seconds.values())
    facts = {"weight": name, "outputs": outputs, "inputs": inputs, "batch": batch, "seconds": seconds}
    cells = [name, f"{outputs:,}", f"{inputs:,}", f"{batch}"]
    cells += [f"{seconds[way].median * 1e3:.3f} ms" if way in seconds else "-" for way in ("torch", "panels")]
    cells.append(f"{outputs * inputs * 2 / fastest / 1e9:.1f}")
    if "panels" not in seconds:
        return Row(facts, (*cells, "-", "-"))
    ratio = ratios(took["torch"], took["panels"])
    shown = ratio.cells("{:.2f}".format)
    return Row(facts | {"ratio": ratio}, (*cells, *shown), ratio.median >= TARGET_RATIO)
