"""Cost sets as TOML: read those of the package or of the user's, and write fitted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    BatchedCost,
    CollectiveCost,
    DispatchCost,
    ElementwiseCost,
    ExpertCost,
    Float64,
    GemmCost,
    HostCost,
    LatentCost,
    LatentPromptCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.costs import Borrowed, CostSet
from laminabench.catalog.entries import Table, from_path, packaged, pick
from laminabench.catalog.hardware import GB, Device, devices_in
from laminabench.catalog.measured import AttentionGrids, Curve, Grid, Measured
from laminabench.catalog.measured_file import packed, unpacked
from laminabench.catalog.models import BLOCKS, ModelShape
from laminabench.catalog.network import Network, networks_in
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

DEFAULT_COSTS = "vllm-0.14"
COST_SETS = ("vllm-0.14", "vidur-2024", "vllm-0.19", "vllm-0.24", "v1-table3", "roofline")

US = 1e-6
# Units of the times that are not in microseconds.
SMALL = {
    "per_k_s": ("ns", 1e-9),
    "per_query_head_s": ("ns", 1e-9),
    "per_expert_s": ("ns", 1e-9),
    "per_input_s": ("ps", 1e-12),
    "per_byte_s": ("ps", 1e-12),
}

Cost = TypeVar("Cost", bound=msgspec.Struct)


class Section(NamedTuple):
    """The terms of a kind: a table for each, named by the parts of its key: [NAME.DEVICE.PART]."""

    kind: type[Any]
    parts: tuple[str, ...] = ()  # what a number is written behind; "" where the part is a word
    optional: bool = True

    def path(self, key: Any) -> tuple[str, ...]:
        device, *others = (key,) if isinstance(key, str) else key
        return (
            device,
            *(f"{before}{part}" for before, part in zip(self.parts, others, strict=True)),
        )

    def terms(self, table: Table, key: tuple[Any, ...] = ()) -> dict[Any, Any]:
        """All terms in the tables of a file, by their keys."""
        found: dict[Any, Any] = {}
        for name, row in table.items():
            before = self.parts[len(key) - 1] if key else ""
            inner = (*key, int(name.removeprefix(before)) if before else name)
            if len(inner) <= len(self.parts):
                found |= self.terms(row, inner)
            else:
                found[inner if self.parts else name] = _cost(self.kind, row)
        return found


SECTIONS: Mapping[str, Section] = {
    "gemm": Section(GemmCost, ("",), optional=False),
    "attention": Section(AttentionCost, optional=False),
    "prompt_attention": Section(PromptAttentionCost),
    "allreduce": Section(AllReduceCost, ("tp",)),
    "elementwise": Section(ElementwiseCost, optional=False),
    "attention_of": Section(AttentionCost, ("size", "", "window")),
    "prompt_attention_of": Section(PromptAttentionCost, ("size", "", "window")),
    "experts": Section(ExpertCost, ("",)),
    "latent": Section(LatentCost, ("",)),
    "latent_prompts": Section(LatentPromptCost),
    "batched": Section(BatchedCost),
    "collectives": Section(CollectiveCost, ("", "over")),
    "dispatch": Section(DispatchCost, ("", "nodes")),
}


# The default for what the other default knows nothing of, or has from another device alone.
COSTS_OF_TODAY = "vllm-0.24"
DEVICES_OF_TODAY = frozenset({"h200", "b200"})


def usual_costs(model: ModelShape, devices: frozenset[str] = frozenset()) -> str:
    """The set that is taken where nobody asks for one, for devices of these names."""
    today = model.experts or model.latent or model.window or model.dtype in BLOCKS
    return COSTS_OF_TODAY if today or devices & DEVICES_OF_TODAY else DEFAULT_COSTS


def load_costs(name: str = DEFAULT_COSTS) -> CostSet:
    """The cost set called `name`, or the one in the TOML file at that path."""
    path = Path(name)
    if path.suffix == ".toml":
        return from_table(from_path(path), str(path))
    known = {each: each for each in COST_SETS}
    found = pick("cost set", name, known, hint="(or give the path of a .toml written by `costs fit`)")
    return _packaged_costs(found)


# How the names of coefficients end: their unit, or what they are a share of.
DIVISORS = ("_efficiency", "sharpness")
COEFFICIENTS = (*DIVISORS, "_us", "_ns", "_ps", "fill", "activation")


@cache
def _packaged_costs(name: str) -> CostSet:
    return from_table(packaged("costs", f"{name}.toml"), name)


def from_table(table: Table, where: str) -> CostSet:
    """The cost set in a parsed file; host and borrowing rules default to assumed.toml."""
    check_coefficients(table, where)
    try:
        return CostSet(
            name=table["name"],
            title=table["title"],
            **{
                name: section.terms(table.get(name, {}) if section.optional else table[name])
                for name, section in SECTIONS.items()
            },
            host=_cost(HostCost, table["host"]) if "host" in table else assumed_host(),
            borrowed=_borrowing(table["borrow"]) if "borrow" in table else assumed_borrowing(),
            measured=_measured(table["measured"], where) if "measured" in table else Measured(),
            held=str(table.get("held", "")),
            devices=devices_in(table.get("device", {})),
            networks=networks_in(table.get("network", {})),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            "costs-file-incomplete",
            f"cost set {where}: {type(error).__name__} at {error}; see costs/vllm-0.14.toml",
        ) from error


def check_coefficients(table: Table, where: str) -> None:
    """A UserError that names the first coefficient which is no sensible number."""
    for key, value in table.items():
        path = f"{where}.{key}"
        if isinstance(value, dict):
            if key not in ("errors_percent", "borrow", "measured"):
                check_coefficients(value, path)
        elif key.endswith(COEFFICIENTS):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or math.isnan(value) or value < 0 or (math.isinf(value) and key != "sharpness"):
                raise UserError(
                    "costs-not-a-number", f"cost set {path} is {value!r}; it must be a number, not negative"
                )
            if value == 0 and key.endswith(DIVISORS):
                raise UserError("costs-not-positive", f"cost set {path} is 0; it must be above 0")


def assumed_host() -> HostCost:
    """The host cost that no measurement covers."""
    return _cost(HostCost, packaged("costs", "assumed.toml")["host"])


def assumed_borrowing() -> dict[str, Borrowed]:
    """Which measured device stands for one that was not measured."""
    return _borrowing(packaged("costs", "assumed.toml")["borrow"])


def to_toml(costs: CostSet, comment: str = "") -> str:
    """The set as TOML text, without borrowing rules and a host that are assumed.toml's."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"name = {_value(costs.name)}", f"title = {_value(costs.title)}"]
    lines += [f"held = {_value(costs.held)}"] if costs.held else []
    sections: dict[tuple[str, ...], Any] = {
        (name, *section.path(key)): term
        for name, section in SECTIONS.items()
        for key, term in sorted(getattr(costs, name).items())
    }
    if costs.host != assumed_host():
        sections["host",] = costs.host
    for path, cost in sections.items():
        lines += _section(path, cost)
    for device in costs.devices.values():
        lines += ["", f"[device.{device.name}]", *_device_lines(device)]
    for network in costs.networks.values():
        lines += ["", f"[network.{network.name}]", *_network_lines(network)]
    return "\n".join([*lines, *_measured_lines(costs.measured)]) + "\n"


def write_costs(costs: CostSet, path: Path, comment: str = "") -> None:
    with replacing(path) as temporary:
        temporary.write_text(to_toml(costs, comment), encoding="utf-8")


def _written_as(coefficient: str) -> tuple[str, float]:
    """The name of a coefficient in files, and its unit there: times are in the least unit that suits them."""
    if not coefficient.endswith("_s"):
        return coefficient, 1
    unit, seconds = SMALL.get(coefficient, ("us", US))
    return f"{coefficient.removesuffix('s')}{unit}", seconds


def _cost(kind: type[Cost], row: Table) -> Cost:
    """The cost in a section of a file; what has a default may be left out."""
    found: Table = {}
    for field in structs.fields(kind):
        key, unit = _written_as(field.name)
        if field.name != "origin" and (field.required or key in row):
            found[field.name] = row[key] * unit
    return kind(**found, origin=_origin(row))


def _origin(row: Table) -> Origin:
    about = (row["kind"], row["source"], row.get("range", ""))
    return Origin(*about, row.get("errors_percent", {}), row.get("samples", 0), row.get("unstable", False))


def _borrowing(rows: Table) -> dict[str, Borrowed]:
    return {name: Borrowed(row["from"], row["reason"]) for name, row in rows.items()}


def _section(path: tuple[str, ...], cost: Any) -> list[str]:
    origin, names = cost.origin, [name for name in cost.__struct_fields__ if name != "origin"]
    lines = ["", f"[{'.'.join(path)}]"]
    for name in sorted(names, key=lambda name: not name.endswith("_s")):  # times first
        key, unit = _written_as(name)
        lines.append(f"{key} = {_value(getattr(cost, name) / unit)}")
    return lines + _origin_lines(origin)


def _origin_lines(origin: Origin) -> list[str]:
    lines = [f"kind = {_value(origin.kind)}", f"source = {_value(origin.source)}"]
    if origin.range:
        lines.append(f"range = {_value(origin.range)}")
    if origin.samples:
        lines.append(f"samples = {origin.samples}")
    if origin.errors:
        lines.append(f"errors_percent = {_value(origin.errors)}")
    if origin.unstable:
        lines.append("unstable = true")
    return lines


def _device_lines(device: Device) -> list[str]:
    keys = ("title", "tflops", "memory_gb", "bandwidth_gb_per_s", "interchip_gb_per_s", "source", "notes")
    facts = device.describe()
    lines = [f"{key} = {_value(facts[key])}" for key in keys]
    return [*lines, f"nic_gbit_per_s = {_value(8 * facts['nic_gb_per_s'])}"]


def _network_lines(network: Network) -> list[str]:
    values = {
        "title": network.title,
        "rtt_us": network.rtt_s / US,
        "bandwidth_gb_per_s": network.bandwidth_bytes_per_s / GB,
        "line_rate_gbit_per_s": 8 * network.line_rate_bytes_per_s / GB,
        "kind": network.kind,
        "source": network.source,
    }
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    number = float(value)
    # Four digits are more than the fits are good for, and keep the files the same on every machine.
    return "inf" if math.isinf(number) else repr(float(f"{number:.4g}"))


# What was measured: numbers in a row are one string, which is short to write and fast to read.


def _measured_lines(measured: Measured) -> list[str]:
    lines = (
        ["", "[measured]", f"graph_rows = {measured.graph_rows}"]
        if measured.gemm or measured.attention or measured.lines or measured.experts
        else []
    )
    lines += [f"nearest = {measured.nearest}"] if measured.nearest else []

    def curve(kind: str, found: Curve, **of: str | int) -> list[str]:
        about = [
            f"{name} = {value if isinstance(value, int) else _value(value)}" for name, value in of.items()
        ]
        points = [f'rows = "{_numbers(found.rows)}"', f'us = "{_numbers(found.seconds / US)}"']
        return ["", f"[[measured.{kind}]]", *about, *points, *_origin_lines(found.origin)]

    # Where there are thousands of curves, TOML would take a second to read.
    many = bool(measured.lines or measured.latent or measured.experts)
    if many:
        lines += ["tables = '''", packed(measured) + "'''"]
    for (device, dtype, n, k), found in {} if many else measured.gemm.items():
        lines += curve("gemm", found, device=device, dtype=dtype, n=n, k=k)
    for (device, name, width), found in measured.operators.items():
        lines += curve("operator", found, device=device, name=name, width=width)
    for (device, heads, kv_heads, size), grids in measured.attention.items():
        lines += ["", "[[measured.attention]]", f"device = {_value(device)}"]
        lines += [f"heads = {heads}", f"kv_heads = {kv_heads}", f"head_dim = {size}"]
        lines += _origin_lines(grids.origin)
        for name, unit in GRIDS.items():
            lines += ["", f"[measured.attention.{name}]", *_grid_lines(getattr(grids, name), unit)]
    return lines


# The grids of attention, and what a value is in: shares have no unit.
GRIDS = {"decode": US, "prompt": US, "mixed": US, "skew": 1.0, "mixed_skew": 1.0}


def _grid_lines(grid: Grid, unit: float) -> list[str]:
    axes = ", ".join(f'"{_numbers(axis)}"' for axis in grid.axes)
    rows = grid.values.reshape(-1, grid.values.shape[-1]) / unit
    return [f"axes = [{axes}]", 'values = """', *(_numbers(row) for row in rows), '"""']


def _numbers(values: Float64) -> str:
    # Four digits, as everywhere; a measurement repeats no better than that.
    return " ".join(f"{value:.4g}" if value < 10000 else f"{value:.0f}" for value in values.tolist())


def _measured(table: Table, where: str) -> Measured:
    def read(text: str) -> Float64:
        found = np.array(text.split(), np.float64)
        if not len(found) or not np.isfinite(found).all() or found.min() < 0:
            raise UserError(
                "costs-not-a-number",
                f"cost set {where}.measured has {text[:40]!r}...; it must be numbers, none of them negative",
            )
        return found

    def curve(row: Table) -> Curve:
        rows, seconds = read(row["rows"]), read(row["us"]) * US
        if len(rows) != len(seconds) or (np.diff(rows) <= 0).any():
            raise UserError(
                "costs-file-incomplete",
                f"cost set {where}.measured: {row.get('n', row.get('name'))} needs a time for each number of "
                "rows, and those in ascending order",
            )
        return Curve(rows, seconds, _origin(row))

    def grid(row: Table, unit: float) -> Grid:
        axes = tuple(read(axis) for axis in row["axes"])
        return Grid(axes, read(row["values"]).reshape([len(axis) for axis in axes]) * unit)

    many = unpacked(table["tables"], where) if "tables" in table else {}
    return Measured(
        many.pop("gemm", {})
        | {(row["device"], row["dtype"], row["n"], row["k"]): curve(row) for row in table.get("gemm", [])},
        {(row["device"], row["name"], row["width"]): curve(row) for row in table.get("operator", [])},
        {
            (row["device"], row["heads"], row["kv_heads"], row["head_dim"]): AttentionGrids(
                origin=_origin(row), **{name: grid(row[name], unit) for name, unit in GRIDS.items()}
            )
            for row in table.get("attention", [])
        },
        table.get("graph_rows", 0),
        table.get("nearest", 0),
        **many,
    )
