"""Kernels of decode attention by name, each laid over whatever a cost set has for a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from laminabench.catalog.cost_keys import AttentionKey, DtypeKey
from laminabench.catalog.cost_terms import NS, US, Origin, coefficients
from laminabench.catalog.costs import CostSet, known_devices
from laminabench.catalog.entries import Table, packaged, pick
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.measured import AttentionLines
from laminabench.util.errors import UserError

ANY = "any"
FORMATS = ("bf16", "fp8")  # of a KV cache


class Kernel(NamedTuple):
    """A kernel, with rows of coefficients by device, or any, and format of the KV cache."""

    name: str
    title: str
    latent: bool  # over a latent KV (MLA), or over keys and values
    rows: Mapping[tuple[str, str], Table]

    def laid_over(self, base: Any, on: Device, kv_dtype: str) -> Any:
        """Return the cost `base` with this kernel's coefficients; those that it lacks are unchanged."""
        row = self._row(on, kv_dtype)
        kind: type[msgspec.Struct] = type(base)
        declared = coefficients(kind).items()
        values = {name: float(row[of.toml] * of.unit) for name, of in declared if of.toml in row}
        return structs.replace(base, **values, origin=_origin(row, on), kernel=self.name)

    def tiles_on(self, on: Device, kv_dtype: str) -> AttentionLines | None:
        """Return its times by tiles, if these were measured on this device."""
        row = self._row(on, kv_dtype)
        if "tiles" not in row or on.name not in row["devices"]:
            return None
        columns = (row["tiles"], row["tiles_us"], row["tiles_per_token_ns"])
        tiles, fixed, per_token = (np.array(column, np.float64) for column in columns)
        return AttentionLines(tiles, fixed * US, per_token * NS, _origin(row, on))

    def _row(self, on: Device, kv_dtype: str) -> Table:
        keys = ((name, dtype) for dtype in (kv_dtype, "bf16") for name in (on.name, ANY))
        return next(self.rows[key] for key in keys if key in self.rows)


def _origin(row: Table, on: Device) -> Origin:
    here = on.name in row["devices"]
    return Origin(
        row["kind"] if here else "scaled",
        row["source"] if here else f"by {on.name}'s data sheet: {row['source']}",
        row["range"],
        row.get("errors_percent", {}),
        row.get("samples", 0),
    )


class Choice(NamedTuple):
    """A device's kernel."""

    device: str
    kernel: Kernel

    def __str__(self) -> str:
        return f"{self.device}={self.kernel.name}"


@cache
def load_kernels() -> Mapping[str, Kernel]:
    return {
        name: Kernel(
            name,
            of["title"],
            of.get("latent", False),
            {(on, kv): row for on in of["on"] for kv, row in of["on"][on].items()},
        )
        for name, of in packaged("costs", "kernels.toml")["kernel"].items()
    }


@cache
def default_choices() -> tuple[Choice, ...]:
    """Return the kernels of devices that no cost set has measured attention of."""
    defaults = packaged("costs", "kernels.toml")["default"]
    return tuple(Choice(on, load_kernels()[name]) for on, names in defaults.items() for name in names)


def usual_kernel(server: str) -> str:
    """Return the kernel that a server takes where none is named."""
    return str(packaged("costs", "kernels.toml")["out_of_the_box"][server])


def parse_choices(texts: Iterable[str], known: Mapping[str, Device]) -> list[Choice]:
    """Parse `h20=fa3-64`; a UserError for an unknown device or kernel."""
    choices = []
    for text in texts:
        name, separator, kernel = text.partition("=")
        if not separator:
            raise UserError(
                "kernel-flag-invalid",
                f"--attention-kernel {text}: write DEVICE=NAME, such as h20=fa3-64",
            )
        choices.append(Choice(device(name, known).name, pick("attention kernel", kernel, load_kernels())))
    return choices


def with_kernels(costs: CostSet, texts: Sequence[str] = ()) -> CostSet:
    """Return the set with these kernels, and with the usual ones of devices of which it has no attention."""
    known = known_devices([costs])
    usual = [each for each in default_choices() if _lacks(costs, each)]
    chosen = {(each.device, each.kernel.latent): each for each in [*usual, *parse_choices(texts, known)]}
    changed = costs
    for each in chosen.values():
        changed = _laid_over(changed, costs, each.kernel, known[each.device])
    return changed


def _lacks(costs: CostSet, choice: Choice) -> bool:
    """Return whether the set borrows this attention for the device."""
    table: Iterable[Any] = {key.device for key in costs.latent} if choice.kernel.latent else costs.attention
    lender = costs.borrowed.get(choice.device)
    return lender is not None and choice.device not in table and lender.device in table


def _laid_over(changed: CostSet, costs: CostSet, kernel: Kernel, on: Device) -> CostSet:
    """Return `changed` with the kernel over what `costs` has for the device."""
    measured, name = changed.measured, on.name
    if kernel.latent:
        lender = costs.source_of(costs.latent, on)
        formats = {key.dtype for key in costs.latent if key.device == lender}
        latent = {
            DtypeKey(name, kv): kernel.laid_over(costs.latent_cost(on, kv), on, kv)
            for kv in FORMATS
            if formats & {kv, ANY}
        }
        return structs.replace(
            changed,
            latent={**changed.latent, **latent},
            measured=structs.replace(measured, latent=_without(measured.latent, name)),
        )
    tiles = {DtypeKey(name, kv): kernel.tiles_on(on, kv) for kv in FORMATS}
    costs_of = {kv: kernel.laid_over(costs.attention_cost(on, 128, kv), on, kv) for kv in FORMATS}
    return structs.replace(
        changed,
        attention={**changed.attention, name: costs_of["bf16"]},
        attention_of={
            **_without(changed.attention_of, name),
            AttentionKey(name, 128, "fp8", 0): costs_of["fp8"],
        },
        measured=structs.replace(
            measured,
            attention=_without(measured.attention, name),
            lines=_without(measured.lines, name),
            tiles={**_without(measured.tiles, name), **{key: of for key, of in tiles.items() if of}},
        ),
    )


def _without(table: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    return {key: value for key, value in table.items() if key.device != name}


def out_of_the_box(costs: CostSet, names: Iterable[str], server: str = "vllm") -> tuple[str, ...]:
    """Return a server's own kernels for those of these devices that have the usual ones of the catalogue."""
    own = usual_kernel(server)
    usual = {each.device: each.kernel.name for each in default_choices() if not each.kernel.latent}
    named = ((name, usual[name]) for name in sorted(set(names)) if name in usual and name in costs.attention)
    return tuple(f"{name}={own}" for name, kernel in named if costs.attention[name].kernel == kernel)
