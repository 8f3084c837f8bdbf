"""What a device costs: a rent per hour, or a purchase price spread over its life."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Basis = Literal["rent", "purchase", "override", "assumed"]

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True)
class Listed:
    """A price in USD: per hour for a rent, once for a purchase. Somebody published it, unless it says not."""

    usd: float
    source: str
    date: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Amortisation:
    """How a purchase becomes a price per hour: straight line over the years, plus electricity.

    All three numbers are assumptions. The device is taken to run at its rated power all the time, which
    is pessimistic for memory-bound work; where no power rating is known, electricity is left out.
    """

    years: float = 4.0
    usd_per_kwh: float = 0.10
    facility_factor: float = 1.3  # watts drawn by the building for a watt drawn by the device

    def usd_per_hour(self, purchase_usd: float, power_w: float | None) -> float:
        electricity = (power_w or 0.0) / 1000 * self.facility_factor * self.usd_per_kwh
        return purchase_usd / (self.years * HOURS_PER_YEAR) + electricity

    def describe(self) -> str:
        return (
            f"straight line over {self.years:g} years, plus rated power x {self.facility_factor:g} "
            f"at ${self.usd_per_kwh:g}/kWh (assumed)"
        )


DEFAULT_RULE = Amortisation()


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """The price that a replay charges, and where it comes from."""

    usd: float
    basis: Basis
    source: str
    date: str

    def describe(self) -> dict[str, Any]:
        return asdict(self)
