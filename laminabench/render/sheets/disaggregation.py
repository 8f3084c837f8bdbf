"""Tables of measured decode steps against predicted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Any

from laminabench.render.model import Cell, Row, Sheet
from laminabench.workflows.validate.audit import Audited

WIDTH, HEIGHT = 60, 16


def disaggregation_sheets(results: Mapping[str, Any]) -> Iterator[Sheet]:
    """Yield the errors by system, and the steps as a scatter of characters; nothing without results."""
    if results:
        yield _errors(results)
        yield _kv(results["kv_capacity"])
        yield _scatter(results["rows"])


def audit_sheet(steps: Sequence[Audited]) -> Sheet:
    """Return a row a published step, with the floor that is nearest."""
    columns = ("step", "system", "devices", ">published ms", ">least ms", ">with KV in bf16", "floor", "")
    rows: list[Row] = [
        [
            *(each.row.id, each.row.system),
            "+".join(filter(None, (each.row.model_side, each.row.attention_side))),
            "-" if each.published_ms is None else f"{each.published_ms:,.2f}",
            *(f"{each.least_ms(kv_dtype):,.2f}" for kv_dtype in ("fp8", "bf16")),
            each.binding,
            Cell(each.verdict, tone="bad" if each.verdict == "impossible" else ""),
        ]
        for each in steps
    ]
    wrong = sum(each.verdict == "impossible" for each in steps)
    note = f"{wrong} of {len(steps)} are below what the devices' data sheets allow"
    return Sheet("published decode steps against physical floors", columns, rows, [note])


def _errors(results: Mapping[str, Any]) -> Sheet:
    names = ("median_absolute_percent", "signed_median_percent", "p90_percent", "worst_percent")
    rows = [
        (
            *(system, "CUDA" if quantity == "cuda" else quantity, str(of["n"])),
            *(_percent(of[name], signed=name[0] in "sw") for name in names),
        )
        for system, quantities in (
            *results["summaries"].items(),
            *((f"{name}, own kernels", of) for name, of in results["with_own_kernels"]["summaries"].items()),
        )
        for quantity, of in quantities.items()
        if of["n"]
    ]
    order = results["order"]
    notes = [
        f"order of systems by tokens/s of a device: right in {order['right']} of {order['pairs']} pairs",
        "own kernels: with kernel times and routing that the split system had at 1:1, and no step's",
        "CUDA: sums of kernels; wall: with the host, whose time by ranks was fitted to the packaged rows",
    ]
    columns = ("system", "time", ">rows", ">median", ">signed", ">p90", ">worst")
    return Sheet("step, predicted / measured - 1, in percent", columns, rows, notes)


def _kv(capacities: list[Mapping[str, Any]]) -> Sheet:
    rows = [
        (
            each["deployment"],
            *(f"{each[name]:,}" for name in ("printed_tokens", "predicted_tokens")),
            _percent(each["error_percent"], signed=True),
        )
        for each in capacities
    ]
    return Sheet("KV tokens of a device", ("deployment", ">printed", ">predicted", ">%"), rows)


def _scatter(rows: list[Mapping[str, Any]]) -> Sheet:
    """Return predicted (up) against measured CUDA times (right), on logarithmic scales."""
    points = [
        (each["measured_ms_cuda"], each["predicted_ms_cuda"], each["system"][0])
        for each in rows
        if each["measured_ms_cuda"]
    ]
    if not points:
        return Sheet("", ("no CUDA time was measured",), [])
    low, high = min(min(x, y) for x, y, _ in points), max(max(x, y) for x, y, _ in points)

    def place(value: float, size: int) -> int:
        return round((size - 1) * log(value / low) / log(high / low)) if high > low else 0

    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for at in range(WIDTH):
        grid[round(at * (HEIGHT - 1) / (WIDTH - 1))][at] = "."
    for x, y, mark in points:
        grid[place(y, HEIGHT)][place(x, WIDTH)] = mark
    lines = [("".join(line),) for line in reversed(grid)]
    note = f"{low:.0f} to {high:.0f} ms on both axes, dots where they are equal; first letters of systems"
    return Sheet("predicted (up) against measured (right) CUDA time", ("",), lines, [note])


def _percent(value: float, *, signed: bool) -> Cell:
    return Cell(f"{value:+.1f}" if signed else f"{value:.1f}", value)
