"""Cost sets as TOML: read those of the package or of the user's, and write fitted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from laminabench.atomic import replacing
from laminabench.catalog.cost_terms import (
    AllReduceCost,
    AttentionCost,
    ElementwiseCost,
    GemmCost,
    HostCost,
    Origin,
)
from laminabench.catalog.costs import Borrowed, CostSet
from laminabench.catalog.names import pick
from laminabench.catalog.toml_file import Table, from_path, packaged
from laminabench.errors import UserError

DEFAULT_COSTS = "vllm-0.14"
COST_SETS = ("vllm-0.14", "vidur-2024", "roofline")

US = 1e-6


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
COEFFICIENTS = (*DIVISORS, "_us", "_ns", "_ps", "fill")


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
            gemm={
                (device, dtype): GemmCost(
                    overhead_s=row["overhead_us"] * US,
                    per_k_s=row["per_k_ns"] * 1e-9,
                    flops_efficiency=row["flops_efficiency"],
                    bandwidth_efficiency=row["bandwidth_efficiency"],
                    sharpness=row["sharpness"],
                    origin=_origin(row),
                    per_input_s=row.get("per_input_ps", 0) * 1e-12,
                )
                for device, rows in table["gemm"].items()
                for dtype, row in rows.items()
            },
            attention={
                device: AttentionCost(
                    overhead_s=row["overhead_us"] * US,
                    per_query_head_s=row["per_query_head_ns"] * 1e-9,
                    bandwidth_efficiency=row["bandwidth_efficiency"],
                    fill=row["fill"],
                    origin=_origin(row),
                )
                for device, row in table["attention"].items()
            },
            allreduce={
                (device, int(degree.removeprefix("tp"))): AllReduceCost(
                    row["latency_us"] * US, row["link_efficiency"], _origin(row)
                )
                for device, rows in table["allreduce"].items()
                for degree, row in rows.items()
            },
            elementwise={
                device: ElementwiseCost(row["kernel_us"] * US, row["bandwidth_efficiency"], _origin(row))
                for device, row in table["elementwise"].items()
            },
            host=_host(table["host"]) if "host" in table else assumed_host(),
            borrowed=_borrowing(table["borrow"]) if "borrow" in table else assumed_borrowing(),
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
            if key not in ("errors_percent", "borrow"):
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
    return _host(packaged("costs", "assumed.toml")["host"])


def assumed_borrowing() -> dict[str, Borrowed]:
    """Which measured device stands for one that was not measured."""
    return _borrowing(packaged("costs", "assumed.toml")["borrow"])


def to_toml(costs: CostSet, comment: str = "") -> str:
    """The set as TOML text, without the host and borrowing rules (those are assumed.toml's)."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"name = {_value(costs.name)}", f"title = {_value(costs.title)}"]
    for (device, dtype), gemm in sorted(costs.gemm.items()):
        lines += _section(
            ("gemm", device, dtype),
            gemm.origin,
            overhead_us=gemm.overhead_s / US,
            per_k_ns=gemm.per_k_s * 1e9,
            per_input_ps=gemm.per_input_s * 1e12,
            flops_efficiency=gemm.flops_efficiency,
            bandwidth_efficiency=gemm.bandwidth_efficiency,
            sharpness=gemm.sharpness,
        )
    for device, attention in sorted(costs.attention.items()):
        lines += _section(
            ("attention", device),
            attention.origin,
            overhead_us=attention.overhead_s / US,
            per_query_head_ns=attention.per_query_head_s * 1e9,
            bandwidth_efficiency=attention.bandwidth_efficiency,
            fill=attention.fill,
        )
    for (device, degree), reduce in sorted(costs.allreduce.items()):
        lines += _section(
            ("allreduce", device, f"tp{degree}"),
            reduce.origin,
            latency_us=reduce.latency_s / US,
            link_efficiency=reduce.link_efficiency,
        )
    for device, elementwise in sorted(costs.elementwise.items()):
        lines += _section(
            ("elementwise", device),
            elementwise.origin,
            kernel_us=elementwise.kernel_s / US,
            bandwidth_efficiency=elementwise.bandwidth_efficiency,
        )
    return "\n".join(lines) + "\n"


def write_costs(costs: CostSet, path: Path, comment: str = "") -> None:
    """Write the set to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(to_toml(costs, comment), encoding="utf-8")


def _host(row: Table) -> HostCost:
    return HostCost(row["per_step_us"] * US, row["per_request_us"] * US, _origin(row))


def _borrowing(rows: Table) -> dict[str, Borrowed]:
    return {name: Borrowed(row["from"], row["reason"]) for name, row in rows.items()}


def _origin(row: Table) -> Origin:
    return Origin(
        row["kind"], row["source"], row.get("range", ""), row.get("errors_percent", {}), row.get("samples", 0)
    )


def _section(path: tuple[str, ...], origin: Origin, **coefficients: float) -> list[str]:
    lines = ["", f"[{'.'.join(path)}]"]
    lines += [f"{name} = {_value(value)}" for name, value in coefficients.items()]
    lines += [f"kind = {_value(origin.kind)}", f"source = {_value(origin.source)}"]
    if origin.range:
        lines.append(f"range = {_value(origin.range)}")
    if origin.samples:
        lines.append(f"samples = {origin.samples}")
    if origin.errors:
        lines.append(f"errors_percent = {_value(origin.errors)}")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    number = float(value)
    # Four digits are more than the fits are good for, and keep the files the same on every machine.
    return "inf" if math.isinf(number) else repr(float(f"{number:.4g}"))
