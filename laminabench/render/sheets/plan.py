"""What became of the candidates of a plan, in words."""

from __future__ import annotations

from collections.abc import Mapping

# Why a candidate was not replayed, in the order in which it is found out.
WHY = {
    "does_not_fit": "do not hold the model",
    "too_small": "do not hold the longest request",
    "falls_behind": "would fall behind, by a bound",
    "bound_too_slow": "are too slow, by a bound",
    "dearer": "cost more",
    "missed": "miss a limit early in the trace",
    "bound_dominated": "are beaten in cost and TBT, by a bound",
    "halved": "are beaten on samples",
    "replayed": "replayed in full",
}
# What was decided at the prices of the search: at others it may be wrong.
BY_PRICES = ("dearer", "bound_dominated", "halved")


def counted(counts: Mapping[str, int]) -> str:
    """What decided about how many candidates."""
    return ", ".join(f"{counts[key]:,} {words}" for key, words in WHY.items() if counts.get(key))
