"""What another price of one device would do to the winner: exact, as prices do not change throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.plan.front import meets, order, winner
from laminabench.plan.measure import Point
from laminabench.plan.search import PRICE_CHANGE


@dataclass(frozen=True, slots=True)
class Repriced:
    """The winner at another price of one device."""

    device: str
    change: float  # 0.1 is 10 % more
    usd_each_per_hour: float
    winner: Point
    stays: bool

    def row(self) -> dict[str, object]:
        """For --json."""
        return {
            "device": self.device,
            "change": self.change,
            "usd_each_per_hour": self.usd_each_per_hour,
            "winner": str(self.winner.candidate),
            "stays": self.stays,
            "usd_per_million_tokens": self.winner.usd_per_million_tokens,
        }


def repriced(points: Sequence[Point], slo_tbt_p99_ms: float) -> Iterator[Repriced]:
    """Each device that may matter a tenth cheaper, and a tenth dearer; none if nothing meets the limit.

    All that could win at these prices is among the points: the search saw to it. The budget is what it was.
    """
    best = winner(points, slo_tbt_p99_ms)
    if best is None:
        return
    meeting = [each for each in points if meets(each, slo_tbt_p99_ms)]
    prices = {
        part.device.name: part.device.price_usd_per_hour
        for each in sorted(meeting, key=order)
        for part in each.candidate.deployment.parts
    }
    for device, usd in prices.items():
        for change in (-PRICE_CHANGE, PRICE_CHANGE):
            assert usd is not None
            new_usd = usd * (1 + change)
            changed = [(_at(each, device, new_usd), each) for each in meeting]
            now, before = min(changed, key=lambda pair: order(pair[0]))
            yield Repriced(device, change, new_usd, now, before is best)


def _at(point: Point, device: str, usd_per_hour: float) -> Point:
    """The same replay, billed otherwise."""
    old = point.candidate.deployment
    attention = None if old.attention is None else _priced(old.attention, device, usd_per_hour)
    new = Deployment(_priced(old.model, device, usd_per_hour), attention)
    return replace(point, candidate=replace(point.candidate, deployment=new))


def _priced(workers: Workers, device: str, usd_per_hour: float) -> Workers:
    if workers.device.name != device:
        return workers
    return Workers(replace(workers.device, override_usd_per_hour=usd_per_hour), workers.count)
