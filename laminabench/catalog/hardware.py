"""Devices: what a data sheet says about an accelerator, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import msgspec

from laminabench.catalog.entries import Table, packaged, pick
from laminabench.util.errors import UserError

GB = 1e9  # everywhere in this project: data sheets and the papers count in powers of ten

# float16 and bfloat16 run at the same rate on every device listed.
_SAME_RATE = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "float8": "fp8"}
# The units that compute with weights in these formats: weights of 4 bits are unpacked to bf16, but for nvfp4.
COMPUTED_IN = {"fp8_block": "fp8", "fp8_fused": "fp8", "mxfp4": "bf16", "int4": "bf16", "nvfp4": "fp4"}


# Source of the watts: a data sheet, an assumption, or the user.
PowerBasis = Literal["rated", "assumed", "override"]


Basis = Literal["rent", "purchase", "override", "assumed"]

HOURS_PER_YEAR = 8760.0


class ListedPrice(msgspec.Struct, frozen=True):
    """A price in USD: per hour for a rent, once for a purchase. Published, unless marked otherwise."""

    usd: float
    source: str
    date: str
    assumed: bool = False


class Amortisation(msgspec.Struct, frozen=True):
    """Rule that turns a purchase into a price per hour: straight line over the years, plus electricity.

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


class HourlyPrice(msgspec.Struct, frozen=True):
    """The price that a replay charges, and where it comes from."""

    usd: float
    basis: Basis
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Peak rates are for dense matrices; links are per direction."""

    name: str
    title: str
    flops: Mapping[str, float] = field(hash=False)  # by dtype, per second
    memory_bytes: float
    bandwidth_bytes_per_s: float
    interchip_bytes_per_s: float
    nic_bytes_per_s: float
    power_w: float | None
    source: str
    power_basis: PowerBasis = "rated"
    link_domain: int = 8  # devices that the fast links connect
    own_working_bytes: float = 0.0  # of an engine, next to weights and KV; 0: not known of this device
    board: str | None = None  # of boards.toml, where an iteration is computed from that instead of cost sets
    notes: str = ""
    rent: ListedPrice | None = None
    purchase: ListedPrice | None = None
    override_usd_per_hour: float | None = None
    amortisation: Amortisation = DEFAULT_RULE

    def flops_for(self, dtype: str) -> float:
        """Return the peak dense rate for `dtype`; a UserError where the device has no such units."""
        key = canonical_dtype(dtype)
        key = COMPUTED_IN.get(key, key)
        if key not in self.flops:
            known = ", ".join(sorted(self.flops))
            raise UserError(
                "hardware-no-peak-rate",
                f"{self.name} has no peak rate for {dtype}; the catalogue knows {known}",
            )
        return self.flops[key]

    def link_domains(self, devices: int) -> int:
        """Return how many domains of fast links so many devices are in."""
        return -(-devices // self.link_domain)

    @property
    def capability(self) -> tuple[object, ...]:
        """Figures that times are computed from, without prices."""
        links = (self.interchip_bytes_per_s, self.nic_bytes_per_s)
        return (*sorted(self.flops.items()), self.memory_bytes, self.bandwidth_bytes_per_s, *links)

    @property
    def price(self) -> HourlyPrice | None:
        """The price charged: an override, else the rent, else the purchase spread over its life.

        None where none is published, as for the cores of the reader's own machine.
        """
        if self.override_usd_per_hour is not None:
            return HourlyPrice(self.override_usd_per_hour, "override", "given by --price", "")
        if self.rent is not None:
            basis: Basis = "assumed" if self.rent.assumed else "rent"
            return HourlyPrice(self.rent.usd, basis, self.rent.source, self.rent.date)
        return None if self.purchase is None else self.purchase_price

    @property
    def purchase_price(self) -> HourlyPrice:
        if self.purchase is None:
            raise UserError(
                "hardware-no-purchase-price",
                f"{self.name} has no purchase price; give one per hour: --price {self.name}=2.5",
            )
        usd = self.amortisation.usd_per_hour(self.purchase.usd, self.power_w)
        source = f"{self.purchase.source}; {self.amortisation.describe()}"
        return HourlyPrice(usd, "purchase", source, self.purchase.date)

    def varied(self) -> Device:
        """Return it as other hardware, for which only the power that the user gave is known."""
        watts = self.power_w if self.power_basis == "override" else None
        return replace(self, rent=None, purchase=None, power_w=watts)

    @property
    def price_usd_per_hour(self) -> float | None:
        return None if self.price is None else self.price.usd

    @property
    def purchase_usd_per_gb(self) -> float | None:
        """v1 Table 1's $/GB."""
        return None if self.purchase is None else self.purchase.usd / (self.memory_bytes / GB)

    @property
    def purchase_usd_per_gb_per_s(self) -> float | None:
        """v1 Table 1's $/(GB/s)."""
        bandwidth = self.bandwidth_bytes_per_s / GB
        return None if self.purchase is None else self.purchase.usd / bandwidth

    def describe(self) -> Table:
        return {
            "name": self.name,
            "title": self.title,
            "tflops": {dtype: rate / 1e12 for dtype, rate in self.flops.items()},
            "memory_gb": self.memory_bytes / GB,
            "bandwidth_gb_per_s": self.bandwidth_bytes_per_s / GB,
            "interchip_gb_per_s": self.interchip_bytes_per_s / GB,
            "link_domain": self.link_domain,
            "nic_gb_per_s": self.nic_bytes_per_s / GB,
            "power_w": self.power_w,
            "power_basis": None if self.power_w is None else self.power_basis,
            "board": self.board,
            "source": self.source,
            "notes": self.notes,
            "price": None if self.price is None else msgspec.structs.asdict(self.price),
            "purchase_usd": None if self.purchase is None else self.purchase.usd,
            "purchase_usd_per_gb": self.purchase_usd_per_gb,
            "purchase_usd_per_gb_per_s": self.purchase_usd_per_gb_per_s,
        }


def canonical_dtype(dtype: str) -> str:
    key = dtype.lower()
    return _SAME_RATE.get(key, key)


@cache
def load_devices() -> Mapping[str, Device]:
    return devices_in(packaged("hardware.toml"))


def devices_in(rows: Mapping[str, Table]) -> dict[str, Device]:
    """Return the devices in a file, by name."""
    return {name: _device(name, row) for name, row in rows.items()}


def device(name: str, devices: Mapping[str, Device] | None = None) -> Device:
    """Return the device called `name`; a UserError suggests the nearest names."""
    return pick("device", name, load_devices() if devices is None else devices)


def priced(devices: Mapping[str, Device], overrides: Mapping[str, float]) -> dict[str, Device]:
    """Return the devices with these prices per hour in place of the catalogue's."""
    return _with(devices, {name: {"override_usd_per_hour": usd} for name, usd in overrides.items()})


def rated(devices: Mapping[str, Device], overrides: Mapping[str, float]) -> dict[str, Device]:
    given = {name: {"power_w": watts, "power_basis": "override"} for name, watts in overrides.items()}
    return _with(devices, given)


def _with(devices: Mapping[str, Device], given: Mapping[str, Mapping[str, Any]]) -> dict[str, Device]:
    changed = {device(name, devices).name: fields for name, fields in given.items()}
    return {name: replace(known, **changed.get(name, {})) for name, known in devices.items()}


def bought(devices: Mapping[str, Device], rule: Amortisation) -> dict[str, Device]:
    """Return the devices priced by purchase under `rule`; those without a purchase price keep their rent."""
    return {
        name: replace(device, amortisation=rule, rent=None if device.purchase else device.rent)
        for name, device in devices.items()
    }


def priced_devices(
    prices: Sequence[str] = (),
    basis: str | None = None,
    powers: Sequence[str] = (),
    known: Mapping[str, Device] | None = None,
) -> Mapping[str, Device]:
    """Return known or catalogue devices with the user's prices and watts, each as DEVICE=AMOUNT."""
    # Watts first: a purchase price has their electricity in it.
    devices: Mapping[str, Device] = rated(
        load_devices() if known is None else known, dict(map(parse_power, powers))
    )
    if basis == "purchase":
        devices = bought(devices, DEFAULT_RULE)
    return priced(devices, dict(map(parse_price, prices)))


def parse_price(text: str) -> tuple[str, float]:
    """Parse `h100=2.5` as (h100, 2.5), for --price."""
    return _parse(
        "--price", text, text.partition("=")[2].strip().removeprefix("$"), "USD_PER_HOUR, such as h100=2.5"
    )


def parse_power(text: str) -> tuple[str, float]:
    """Parse `h100=700` as (h100, 700.0), for --power."""
    return _parse(
        "--power", text, text.partition("=")[2].strip().lower().removesuffix("w"), "WATTS, such as h100=700"
    )


def _device(name: str, row: Table) -> Device:
    return Device(
        name=name,
        title=row["title"],
        flops={dtype: rate * 1e12 for dtype, rate in row["tflops"].items()},
        memory_bytes=row["memory_gb"] * GB,
        bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * GB,
        link_domain=row.get("link_domain", 8),
        own_working_bytes=row.get("working_gb", 0.0) * GB,
        interchip_bytes_per_s=row["interchip_gb_per_s"] * GB,
        nic_bytes_per_s=row["nic_gbit_per_s"] / 8 * GB,
        power_w=row.get("power_w"),
        power_basis=row.get("power_basis", "rated"),
        board=row.get("board"),
        source=row["source"],
        notes=row.get("notes", ""),
        rent=_listed(row, "rent"),
        purchase=_listed(row, "purchase"),
    )


# Of dollars an hour and of watts: what they are multiplied with leaves sums finite.
MOST_AMOUNT = 1e12


def _parse(flag: str, text: str, amount: str, expected: str) -> tuple[str, float]:
    name = text.partition("=")[0].strip().lower()
    try:
        number = float(amount)
    except ValueError:
        number = -1.0
    if not name or not 0 <= number <= MOST_AMOUNT:
        raise UserError("hardware-bad-option", f"{flag} {text}: expected DEVICE={expected}")
    return name, number


def _listed(row: Table, kind: Literal["rent", "purchase"]) -> ListedPrice | None:
    price = row.get(kind)
    if price is None:
        return None
    assumed = price.get("basis") == "assumed"
    return ListedPrice(float(price["usd"]), price["source"], price["date"], assumed)
