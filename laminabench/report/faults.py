"""What went wrong in live Runs, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.present.numbers import number4
from laminabench.report.markup import Markup, table
from laminabench.report.shown import Shown
from laminabench.runs.summary import FaultCost

_HEADER = (
    *("Noticed at, s", "Workers", "Why", "Noticed after, s", "Iterations went on after, s"),
    *("Normal after, s", "Worst TBT, ms", "Goodput lost, tokens"),
)
# Of a long chaos run the first ones do; all are in run.json.
_MOST = 50


def fault_tables(runs: Sequence[Shown]) -> list[Markup]:
    """One for each Run that had any."""
    return [_faults(each, each.summary.faults) for each in runs if each.summary.faults]


def _faults(each: Shown, faults: list[FaultCost]) -> Markup:
    rows = [
        (
            number4(fault.noticed_s),
            ", ".join(fault.workers) or "none",
            fault.why,
            *map(number4, (fault.detection_s, fault.recovery_s, fault.normal_again_s)),
            *map(number4, (fault.tbt_worst_ms, fault.goodput_lost_tokens)),
        )
        for fault in faults[:_MOST]
    ]
    rest = f"; the first {_MOST} of {len(faults):,}" if len(faults) > _MOST else ""
    return table(f"Faults of {each.name}{rest}", _HEADER, rows)
