"""Which way of a metric is the better one."""

from __future__ import annotations

from typing import Literal

from laminabench.compare.metrics import SUMMARISED, Sense

Direction = Literal["better", "worse", "up", "down", "same"]

# What nobody compares by, with all that is within: `tbt_ms.max`, `bubbles.model`.
_BESIDE: dict[str, Sense] = {
    "requests.completed": "more",
    "utilisation": "more",
    "tbt_ms": "less",
    "tpot_ms": "less",
    "queueing_s": "less",
    "requests.rejected": "less",
    "requests.unfinished": "less",
    "duration_s": "less",
    "bubbles": "less",
    "preemptions": "less",
}
_BETTER = {metric.key: metric.better for metric in SUMMARISED} | _BESIDE


def direction(metric: str, change: float) -> Direction:
    """What a change of this sign means; `up` or `down` where neither is better."""
    if change == 0:
        return "same"
    name = metric.removeprefix("whole_run.")
    better = next((sense for prefix, sense in _BETTER.items() if name.startswith(prefix)), None)
    if better is None:
        return "up" if change > 0 else "down"
    return "better" if (change > 0) == (better == "more") else "worse"
