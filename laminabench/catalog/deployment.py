"""Deployments: counted devices, written `4xh100` or, with attention workers of their own, `2xh100+4xh20`.

How devices share a model is written after a colon, such as `8xh200:dp8ep8`; else it is tensor parallelism.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from laminabench.catalog.hardware import Device, HourlyPrice, device
from laminabench.catalog.layout import Layout, parse_layout
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject, json_safe

_PART = re.compile(r"(?:(\d+)\s*[x×*]\s*)?([a-z0-9][a-z0-9._-]*)(?::([a-z0-9]+))?", re.IGNORECASE)  # noqa: RUF001
MAX_COUNT = 4096
# In place of one: what this machine is fastest with, of live replays that can find it out.
AUTO = "auto"


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one kind in a Run's manifest."""

    device: str
    count: int
    price: HourlyPrice | None = None


class DeploymentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment in a Run's manifest; `facts` is what the system derived from its devices and prices."""

    name: str
    dop: list[int] | None = None
    usd_per_hour: float | int | None
    power_w: float | int | None = None
    devices: list[DeviceFacts] | None = None
    price_note: str | None = None
    url: str | UnsetType = UNSET
    facts: JsonObject | UnsetType | None = UNSET

    def with_facts(self, facts: JsonObject) -> DeploymentFacts:
        return msgspec.structs.replace(self, facts=json_safe(facts))


@dataclass(frozen=True, slots=True)
class Workers:
    """Some devices of one kind doing the same job."""

    device: Device
    count: int
    layout: Layout | None = None  # how they share a model, if given

    def shared(self, replicas: int = 1) -> Layout:
        """Return the layout of each of so many replicas: tensor parallelism unless one is given."""
        if self.layout and not self.layout.plain and replicas > 1:
            raise UserError(
                "deployment-bad-layout",
                f"{self} are one replica, and {replicas} were requested; leave the layout or --batches out",
            )
        return self.layout if replicas == 1 and self.layout else Layout(self.count // replicas)

    @property
    def usd_per_hour(self) -> float | None:
        each = self.device.price_usd_per_hour
        return None if each is None else self.count * each

    @property
    def power_w(self) -> float | None:
        each = self.device.power_w
        return None if each is None else self.count * each

    @property
    def memory_bytes(self) -> float:
        return self.count * self.device.memory_bytes

    def __str__(self) -> str:
        layout = f":{self.layout}" if self.layout and not self.layout.plain else ""
        return f"{self.count}x{self.device.name}{layout}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Model workers, and attention workers where they are separate devices.

    Prompts may be computed by devices of their own, `prefill`.
    """

    model: Workers
    attention: Workers | None = None
    prefill: Workers | None = None

    @property
    def dop(self) -> tuple[int, int]:
        """(a, b): model and attention workers, as the papers write it; b is 0 where nothing is split."""
        return self.model.count, self.attention.count if self.attention else 0

    @property
    def parts(self) -> tuple[Workers, ...]:
        return tuple(part for part in (self.model, self.attention, self.prefill) if part is not None)

    @property
    def usd_per_hour(self) -> float | None:
        """None where a part has no price: the others' alone would be too little."""
        return _sum_if_known([part.usd_per_hour for part in self.parts])

    @property
    def power_w(self) -> float | None:
        """Rated power of all devices, without hosts and network; None if a rating is missing."""
        return _sum_if_known([part.power_w for part in self.parts])

    @property
    def price_note(self) -> str:
        """A warning where rents and purchases are added up, or amounts are assumed; else empty."""
        kinds = kinds_of_prices(part.device for part in self.parts)
        notes = list(assumed_amounts(part.device for part in self.parts))
        if kinds and self.usd_per_hour is not None:
            notes.append(
                f"prices of different kinds are added up ({kinds}); give comparable ones with --price"
            )
        return "; ".join(notes)

    def describe(self) -> DeploymentFacts:
        """Return the manifest entry."""
        return _facts(self, self.dop, [(part.device, part.count) for part in self.parts])

    def __str__(self) -> str:
        decoding = "+".join(str(part) for part in (self.model, self.attention) if part is not None)
        return decoding if self.prefill is None else f"{decoding}, prompts on {self.prefill}"


@dataclass(frozen=True, slots=True)
class Instances:
    """Deployments behind a router."""

    each: tuple[Deployment, ...]

    @property
    def usd_per_hour(self) -> float | None:
        """None where a part has no price."""
        return _sum_if_known([one.usd_per_hour for one in self.each])

    @property
    def power_w(self) -> float | None:
        """None where a part has no rating."""
        return _sum_if_known([one.power_w for one in self.each])

    @property
    def price_note(self) -> str:
        """Note on the devices' prices."""
        return "; ".join(dict.fromkeys(note for one in self.each if (note := one.price_note)))

    def describe(self) -> DeploymentFacts:
        """Return the manifest entry."""
        devices: Counter[Device] = Counter()
        for part in (part for one in self.each for part in one.parts):
            devices[part.device] += part.count
        return _facts(self, [sum(one.dop[side] for one in self.each) for side in (0, 1)], devices.items())

    def __str__(self) -> str:
        kinds = Counter(map(str, self.each))
        return " and ".join(f"{count} of {kind}" for kind, count in kinds.items())


def parse_deployments(
    text: str, instances: int | None, devices: Mapping[str, Device] | None = None
) -> tuple[Deployment, ...]:
    """Read `2xh100+4xh20` for so many instances, or one after the other as `2xh100+4xh20,1xh100+8xh20`."""
    each = tuple(parse_deployment(piece, devices) for piece in text.split(","))
    if len(each) == 1:
        return each * (instances or 1)
    if instances not in (None, len(each)):
        raise UserError(
            "deployment-instances",
            f"--instances {instances}: --deployment names {len(each)} instances; leave --instances out, or "
            "name one deployment that all have",
        )
    return each


def devices_named(text: str) -> frozenset[str]:
    """Return the devices that texts of deployments and lists name, without checking that they exist."""
    matches = map(_PART.fullmatch, re.split(r"[,+\s]+", text.lower()))
    return frozenset(match[2] for match in matches if match)


def parse_workers(text: str, devices: Mapping[str, Device] | None = None) -> Workers:
    """Read `4xh100`; a count of 1 may be left out."""
    return _workers(text, text, devices)


def parse_deployment(text: str, devices: Mapping[str, Device] | None = None) -> Deployment:
    """Read `2xh100+4xh20` or `4xh100`; a count of 1 may be left out."""
    pieces = text.split("+")
    if text.strip().lower() == AUTO:
        raise UserError(
            "deployment-auto",
            f"--deployment {AUTO} is for --system lamina --backend live, which measures what this machine is "
            "fastest with; write one such as 2xcpu or 1xcpu+1xcpu",
        )
    if len(pieces) > 2:
        raise UserError(
            "deployment-too-many-parts",
            f"deployment {text!r} has {len(pieces)} parts; "
            "write MODEL_WORKERS or MODEL_WORKERS+ATTENTION_WORKERS, such as 2xh100+4xh20",
        )
    return Deployment(*(_workers(piece, text, devices) for piece in pieces))


def kinds_of_prices(devices: Iterable[Device]) -> str:
    """Map devices to their kind of price where rents and purchases mix; empty if all are comparable."""
    # An assumed price is a rent too, but labelled.
    bases = {
        device.name: "rent" if device.price.basis == "assumed" else device.price.basis
        for device in devices
        if device.price
    }
    if len(set(bases.values()) - {"override"}) < 2:
        return ""
    return ", ".join(f"{name} by {basis}" for name, basis in bases.items())


def assumed_amounts(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return a sentence for each price and wattage that is assumed."""
    sentences: dict[str, None] = {}
    for each in devices:
        assumed = []
        if each.price is not None and each.price.basis == "assumed":
            assumed.append(f"${each.price.usd:.2f} an hour")
        if each.power_w is not None and each.power_basis == "assumed":
            assumed.append(f"{each.power_w:,.0f} W")
        if assumed:
            amounts = f"{' and '.join(assumed)} of {each.name}"
            sentences[
                f"assumed, as it is not published: {amounts} (hardware show says from what); "
                "--price and --power give others"
            ] = None
    return tuple(sentences)


def _facts(
    of: Deployment | Instances, dop: Iterable[int], devices: Iterable[tuple[Device, int]]
) -> DeploymentFacts:
    return DeploymentFacts(
        name=str(of),
        dop=list(dop),
        usd_per_hour=of.usd_per_hour,
        power_w=of.power_w,
        devices=[DeviceFacts(device=each.name, count=count, price=each.price) for each, count in devices],
        price_note=of.price_note,
    )


def _sum_if_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _workers(piece: str, text: str, devices: Mapping[str, Device] | None) -> Workers:
    match = _PART.fullmatch(piece.strip())
    if match is None:
        raise UserError(
            "deployment-unreadable",
            f"deployment {text!r}: cannot read {piece.strip()!r}; write COUNTxDEVICE, such as 4xh20, "
            "with a layout after a colon where that is not tensor parallelism, such as 8xh200:dp8ep8",
        )
    count = int(match[1] or 1)
    if not 1 <= count <= MAX_COUNT:
        raise UserError(
            "deployment-bad-count",
            f"deployment {text!r}: {count} devices; a count is between 1 and {MAX_COUNT}",
        )
    layout = parse_layout(match[3].lower(), count) if match[3] else None
    return Workers(device(match[2], devices), count, layout)
