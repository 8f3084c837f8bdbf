"""What a live replay says of the faults and interruptions that it has survived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from laminabench.cli.output import literal
from laminabench.cli.replay_numbers import milliseconds, number

if TYPE_CHECKING:
    from rich.table import Table

# More are a page, and in --json anyway.
MOST = 12


def disturbances(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Lines of the summary; none of a replay in which nothing happened."""
    total, resumed = result["faults_in_all"], result["resumed"]
    if total["faults"] or total["strikes_planned"]:
        yield "faults", _in_all(total)
    if resumed["times"]:
        often = "once" if resumed["times"] == 1 else f"{resumed['times']} times"
        moments = ", ".join(f"{at_s:,.1f}" for at_s in resumed["at_s"])
        yield "resumed", f"{often}, at {moments} s; the time in between is left out"
    if result["tokens_sha256"]:
        yield "tokens' sha256", result["tokens_sha256"]


def fault_table(faults: list[dict[str, Any]]) -> Table:
    """A row for each of the first faults."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("fault")
    for title in ("at s", "noticed", "recovered", "normal", "TBT before", "worst", "goodput lost"):
        table.add_column(title, justify="right")
    for fault in faults[:MOST]:
        how = ", ".join(dict.fromkeys(each["how"] for each in fault["struck"]))
        table.add_row(
            literal(", ".join(fault["workers"]) or "connections") + (f" ({how})" if how else ""),
            f"{min([each['at_s'] for each in fault['struck']], default=fault['noticed_s']):,.2f}",
            milliseconds(fault["detection_s"]),
            milliseconds(fault["recovery_s"]),
            milliseconds(fault["normal_again_s"]),
            _with(fault["tbt_before_ms"], "ms"),
            _with(fault["tbt_worst_ms"], "ms"),
            _with(fault["goodput_lost_tokens"], "tokens"),
        )
    if len(faults) > MOST:
        table.add_row(f"and {len(faults) - MOST} more")
    return table


def _with(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def _in_all(total: dict[str, Any]) -> str:
    asked = f" ({total['strikes']} of {total['strikes_planned']} blows)" if total["strikes_planned"] else ""
    return (
        f"{total['faults']} recovered from{asked}; at worst noticed after "
        f"{milliseconds(total['detection_s'])}, iterations again {milliseconds(total['recovery_s'])} later, "
        f"TBT {number(total['tbt_worst_ms'])} ms; goodput lost {number(total['goodput_lost_tokens'])} tokens"
    )
