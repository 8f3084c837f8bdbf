"""What `bench engine --compare` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console

CONTENDERS = ("serial", "rotational", "one-process", "vllm")


def render(console: Console, result: dict[str, Any]) -> None:
    """A row for each who took part, then the ratios beside their targets."""
    from rich.table import Table

    console.print(
        f"{result['model']}, bfloat16, decoding only: {result['batch']} requests of "
        f"{result['prompt_tokens']:,} tokens make {result['output_tokens']} each, {result['rounds']} rounds"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for title in ("tokens/s", "min to max", "a token of all", "slices", "attention", "host"):
        table.add_column(title, justify="right")
    for name, row in result["contenders"].items():
        speed = row["tokens_per_s"]
        table.add_row(
            name,
            f"{speed['median']:,.0f}",
            f"{speed['min']:,.0f} to {speed['max']:,.0f}",
            _ms(row["round_s"]),
            *(_ms(row.get(part)) for part in ("model_s", "attention_s", "host_s")),
        )
    console.print(table)
    console.print("[dim]slices, attention and host are of one batch's iteration[/dim]")
    for line in _judged(result):
        console.print(": ".join(line), soft_wrap=True)


def _judged(result: dict[str, Any]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for ratio in result["ratios"]:
        found = ratio["ratio"]
        target = f", target {ratio['target']:.2f}" if ratio["target"] else ""
        text = (
            f"{ratio['of']} / {ratio['over']}: {found['median']:.2f} "
            f"({found['min']:.2f} to {found['max']:.2f}){target}"
        )
        if "model_over_attention" in ratio:
            text += f"; slices take {ratio['model_over_attention']:.2f} times attention's"
            if not ratio["judged"]:
                text += ", and it is judged up to a factor of 2"
        lines.append((text, verdict(ratio["met"])))
    if result["boundary_s"]:
        lines.append(
            (
                f"control between two iterations (serial): {_ms(result['boundary_s'])}, target "
                f"{result['target_boundary_s'] * 1e3:g} ms",
                verdict(result["boundary_met"]),
            )
        )
    books = f"{_ms(result['bookkeeping_s'])} an iteration, target {result['target_bookkeeping_s'] * 1e3:g} ms"
    lines.append(
        (
            f"scheduling and bookkeeping of {result['bookkeeping_requests']:,} requests: {books}",
            verdict(result["bookkeeping_met"]),
        )
    )
    return lines


def _ms(seconds: dict[str, float] | None) -> str:
    return "" if seconds is None else f"{seconds['median'] * 1e3:,.2f} ms"
