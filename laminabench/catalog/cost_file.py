"""Cost sets as TOML: read those of the package or of the user's, and write fitted ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import structs

from laminabench.catalog import cost_keys
from laminabench.catalog.cost_terms import HostCost, Origin, coefficients
from laminabench.catalog.costs import Borrowed, CostSet
from laminabench.catalog.entries import Table, from_path, packaged, pick
from laminabench.catalog.hardware import GB, Device, devices_in
from laminabench.catalog.kernels import with_kernels
from laminabench.catalog.measured import Measured
from laminabench.catalog.measured_tables import (
    BadNumberError,
    curve_of,
    grid_lines,
    grids_of,
    kinds,
    packed,
    read_arrays,
    unpacked,
)
from laminabench.catalog.models import BLOCKS, ModelShape
from laminabench.catalog.network import Network, networks_in
from laminabench.catalog.server_host import ServerHost
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

# What every command takes: the newest measured set. Devices that only an older one measured have that.
DEFAULT_COSTS = "vllm-0.24"
MEASURED_IN = {"rtx-4090": "vllm-0.19", "rtx-pro-6000": "vllm-0.19"}
COST_SETS = ("vllm-0.14", "vidur-2024", "vllm-0.19", "vllm-0.24", "v1-table3", "roofline")

US = 1e-6
MOST = 1e300  # of any coefficient, so that sums and products of a few are numbers
Cost = TypeVar("Cost", bound=msgspec.Struct)


class FormulaTable(NamedTuple):
    """The formulas of a kind: a TOML table for each, named by the parts of its key: [NAME.DEVICE.PART]."""

    key: type[Any]
    cost: type[msgspec.Struct]

    def read(self, table: Table, where: str, path: tuple[str, ...] = ()) -> dict[Any, Any]:
        """Parse all formulas in the tables of a file."""
        parts = 1 if self.key is str else len(self.key._fields)
        if len(path) == parts:
            return {cost_keys.from_path(self.key, path): _cost(self.cost, table, ".".join((where, *path)))}
        formulas: dict[Any, Any] = {}
        for name, inner in table.items():
            formulas |= self.read(inner, where, (*path, name))
        return formulas


@cache
def sections() -> Mapping[str, FormulaTable]:
    """Return every kind of formula, by its name in `CostSet` and in files."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(CostSet).items()}
    return {
        name: FormulaTable(*types)
        for name, types in hints.items()
        if len(types) == 2 and isinstance(types[1], type) and coefficients(types[1])
    }


def usual_costs(model: ModelShape, devices: frozenset[str] = frozenset()) -> str:
    """Return the default cost set for devices of these names: the newest that measured them and the model."""
    older = {MEASURED_IN.get(name, DEFAULT_COSTS) for name in devices}
    newer = model.experts or model.latent or model.window or model.dtype in BLOCKS or len(older) != 1
    return DEFAULT_COSTS if newer else older.pop()


def load_costs(name: str, kernels: Sequence[str] = ()) -> CostSet:
    """Return the cost set called `name`, or the one in the TOML file at that path.

    Decode attention is that of the kernels, each DEVICE=NAME, or of those that are usual on a device.
    """
    path = Path(name)
    if path.suffix == ".toml":
        return with_kernels(from_table(from_path(path), str(path)), kernels)
    known = {each: each for each in COST_SETS}
    packaged_name = pick(
        "cost set", name, known, hint="(or give the path of a .toml written by `costs import` or `calibrate`)"
    )
    return _packaged_costs(packaged_name, tuple(kernels))


@cache
def _packaged_costs(name: str, kernels: tuple[str, ...]) -> CostSet:
    table, measured = packaged("costs", f"{name}.toml"), None
    if "index" in table.get("measured", {}):
        with resources.files(__package__).joinpath("data", "costs", f"{name}.npz").open("rb") as file:
            measured = read_arrays(file, table["measured"]["index"])
    return with_kernels(from_table(table, name, measured), kernels)


def from_table(table: Table, where: str, arrays: Mapping[str, Any] | None = None) -> CostSet:
    """Return the cost set in a parsed file, with what it has in `arrays`.

    Host and borrowing rules default to assumed.toml.
    """
    try:
        return CostSet(
            name=str(table["name"]),
            title=str(table["title"]),
            **{
                name: section.read(table[name], f"{where}.{name}")
                for name, section in sections().items()
                if name in table
            },
            host=_host(table["host"], f"{where}.host") if "host" in table else assumed_host(),
            server=_cost(ServerHost, table["server"], f"{where}.server") if "server" in table else None,
            borrowed=_borrowing(table["borrow"]) if "borrow" in table else assumed_borrowing(),
            measured=_measured(table.get("measured", {}), arrays or {}),
            devices=devices_in(table.get("device", {})),
            networks=_networks(table.get("network", {}), where),
        )
    except BadNumberError as error:
        raise UserError("costs-not-a-number", f"cost set {where}.measured: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise UserError(
            "costs-file-incomplete",
            f"cost set {where}: {type(error).__name__} at {error}; see costs/vllm-0.14.toml",
        ) from error


def _networks(rows: Table, where: str) -> dict[str, Network]:
    for name, row in rows.items():
        _number(row["rtt_us"], f"{where}.network.{name}.rtt_us")
    return networks_in(rows)


def _measured(table: Table, arrays: Mapping[str, Any]) -> Measured:
    parts: dict[str, Any] = {**arrays, **(unpacked(table["tables"]) if "tables" in table else {})}
    for name, section in {"gemm": "gemm", "operators": "operator"}.items():
        rows = table.get(section, [])
        parts[name] = {
            **parts.get(name, {}),
            **dict(curve_of(kinds()[name], row, _origin(row)) for row in rows),
        }
    grids = dict(grids_of(row, _origin(row)) for row in table.get("attention", []))
    parts["attention"] = {**parts.get("attention", {}), **grids}
    return Measured(**parts, graph_rows=table.get("graph_rows", 0), nearest=table.get("nearest", 0))


def _host(row: Table, where: str) -> HostCost:
    server = {each.toml for each in coefficients(ServerHost).values()}
    server -= {each.toml for each in coefficients(HostCost).values()}
    return _cost(ServerHost if server & row.keys() else HostCost, row, where)


def assumed_host() -> HostCost:
    """Return the host cost that no measurement covers."""
    return _cost(HostCost, packaged("costs", "assumed.toml")["host"], "assumed.host")


def assumed_borrowing() -> dict[str, Borrowed]:
    """Map each unmeasured device to the measured one that stands for it."""
    return _borrowing(packaged("costs", "assumed.toml")["borrow"])


def to_toml(costs: CostSet, comment: str = "") -> str:
    """Write the set as TOML text, without borrowing rules and a host that are assumed.toml's."""
    return "\n".join([*formula_lines(costs, comment), *_measured_lines(costs.measured)]) + "\n"


def formula_lines(costs: CostSet, comment: str = "") -> list[str]:
    """Write everything but measured times."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"name = {to_value(costs.name)}", f"title = {to_value(costs.title)}"]
    for name, section in sections().items():
        for key, term in sorted(getattr(costs, name).items()):
            lines += _section((name, *cost_keys.to_path(key)), section.cost, term)
    if costs.host != assumed_host():
        lines += _section(("host",), type(costs.host), costs.host)
    if costs.server:
        lines += _section(("server",), ServerHost, costs.server)
    for device in costs.devices.values():
        lines += ["", f"[device.{device.name}]", *_device_lines(device)]
    for network in costs.networks.values():
        lines += ["", f"[network.{network.name}]", *_network_lines(network)]
    return lines


def write_costs(costs: CostSet, path: Path, comment: str = "") -> None:
    """Write a set; a UserError, and no file, where `load_costs` would refuse it."""
    with replacing(path) as temporary:
        temporary.write_text(to_toml(costs, comment), encoding="utf-8")
        from_table(from_path(temporary), str(path))


def digest(costs: CostSet) -> str:
    """Return the SHA-256 of all values of a set, in whatever form it was written."""
    values = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray):
            values.update(value.astype("<f8").tobytes())
        elif isinstance(value, msgspec.Struct):
            add(structs.asdict(value))
        elif isinstance(value, Mapping):
            for key in sorted(value):
                values.update(repr(tuple(key) if isinstance(key, tuple) else key).encode())
                add(value[key])
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for item in value:
                add(item)
        else:
            values.update(repr(value).encode())

    given = structs.asdict(costs)
    if costs.server is None:
        del given["server"]
    add(given)
    return values.hexdigest()


def _cost(kind: type[Cost], row: Table, where: str) -> Cost:
    """Parse the coefficients in a section of a file; those with a default may be left out."""
    values: Table = {}
    for name, coefficient in coefficients(kind).items():
        if coefficient.toml in row:
            path = f"{where}.{coefficient.toml}"
            number = _number(row[coefficient.toml], path, finite=coefficient.finite)
            if coefficient.positive and number == 0:
                raise UserError("costs-not-positive", f"cost set {path} is 0; it must be above 0")
            values[name] = number * coefficient.unit
    named = {"kernel": row["kernel"]} if "kernel" in row else {}
    return kind(**values, **named, origin=_origin(row))


def _number(value: Any, path: str, *, finite: bool = True) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 <= value <= MOST or (value == math.inf and not finite)):
        raise UserError(
            "costs-not-a-number",
            f"cost set {path} is {value!r:.40}; it must be a number from 0 to {MOST:g}",
        )
    return float(value)


def _origin(row: Table) -> Origin:
    named = {"errors" if key == "errors_percent" else key: value for key, value in row.items()}
    return msgspec.convert(named, Origin)


def _borrowing(rows: Table) -> dict[str, Borrowed]:
    return {name: Borrowed(str(row["from"]), str(row["reason"])) for name, row in rows.items()}


def _section(path: tuple[str, ...], kind: type[msgspec.Struct], cost: Any) -> list[str]:
    declared = coefficients(kind)
    names = sorted(declared, key=lambda name: declared[name].unit == 1)  # times first
    names = [name for name in names if getattr(cost, name) or not declared[name].optional]
    values = {declared[name].toml: getattr(cost, name) / declared[name].unit for name in names}
    if kernel := getattr(cost, "kernel", ""):
        values["kernel"] = kernel
    return ["", f"[{'.'.join(path)}]", *_key_lines(values), *_origin_lines(cost.origin)]


def _origin_lines(origin: Origin) -> list[str]:
    values = {
        "kind": origin.kind,
        "source": origin.source,
        "range": origin.range,
        "samples": origin.samples,
        "errors_percent": origin.errors,
        "unstable": origin.unstable,
    }
    required = ("kind", "source")
    return _key_lines({name: value for name, value in values.items() if value or name in required})


def _device_lines(device: Device) -> list[str]:
    keys = ("title", "tflops", "memory_gb", "bandwidth_gb_per_s", "interchip_gb_per_s", "source", "notes")
    facts = device.describe()
    return _key_lines({**{key: facts[key] for key in keys}, "nic_gbit_per_s": 8 * facts["nic_gb_per_s"]})


def _network_lines(network: Network) -> list[str]:
    return _key_lines(
        {
            "title": network.title,
            "rtt_us": network.rtt_s / US,
            "bandwidth_gb_per_s": network.bandwidth_bytes_per_s / GB,
            "line_rate_gbit_per_s": 8 * network.line_rate_bytes_per_s / GB,
            "kind": network.kind,
            "source": network.source,
        }
    )


def _measured_lines(measured: Measured) -> Iterable[str]:
    curves = any(getattr(measured, name) for name in kinds())
    if curves or measured.attention:
        yield from ("", "[measured]", f"graph_rows = {measured.graph_rows}")
    if measured.nearest:
        yield f"nearest = {measured.nearest}"
    if curves:
        yield from ("tables = '''", packed(measured) + "'''")
    for key, grids in sorted(measured.attention.items()):
        yield from ("", "[[measured.attention]]", *_key_lines(key._asdict()))
        yield from (*_origin_lines(grids.origin), *grid_lines(grids))


def _key_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {to_value(value)}" for key, value in values.items()]


def to_value(value: Any) -> str:
    """Write a TOML value."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        items = (
            f"{key if key.isidentifier() else to_value(key)} = {to_value(item)}"
            for key, item in value.items()
        )
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    # Four digits are more than the fits are good for, and keep the files the same on every machine.
    return "inf" if math.isinf(value) else repr(float(f"{value:.4g}"))
