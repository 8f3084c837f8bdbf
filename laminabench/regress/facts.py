"""What a case's numbers come from: the part of a Run's manifest, and of the catalogue, that is a golden's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from laminabench.catalog.hardware import device
from laminabench.json_safe import Json, JsonObject, to_json
from laminabench.regress.case_file import Case
from laminabench.runs.manifest import Manifest

_DATA_SHEET = (
    "tflops",
    "memory_gb",
    "bandwidth_gb_per_s",
    "interchip_gb_per_s",
    "nic_gb_per_s",
    "power_w",
    "source",
)


def facts_of(case: Case, command: str, manifest: Manifest) -> dict[str, Json]:
    """How the case's numbers were obtained; of what is measured, where too."""
    coefficients = _coefficients(manifest.coefficients)
    trace, deployment = manifest.trace, manifest.deployment
    devices = deployment.devices or []
    facts: dict[str, Json] = {
        "backend": manifest.backend,
        "command": command,
        "laminabench": to_json(manifest.laminabench),
        "case": {**case.flags, **({"against": case.against} if case.against else {})},
        "trace": {name: getattr(trace, name) for name in ("name", "source", "sha256", "requests")},
        "deployment": {
            "name": deployment.name,
            "usd_per_hour": deployment.usd_per_hour,
            "prices": {row.device: to_json(row.price) if row.price else None for row in devices},
        },
        "devices": {row.device: _data_sheet(row.device) for row in devices},
        "model": manifest.model,
        "coefficients": coefficients,
        "coefficients_sha256": hashlib.sha256(json.dumps(coefficients, sort_keys=True).encode()).hexdigest(),
    }
    if case.measured:
        facts["host"] = to_json(manifest.host)
        facts["rounds"] = case.rounds
    plain: dict[str, Json] = json.loads(json.dumps(facts))  # as it is when read back: no tuples
    return plain


def same_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether what was measured on both may be compared as it is."""
    return all(one["host"][name] == other["host"][name] for name in ("cpu", "cores"))


def _data_sheet(name: str) -> dict[str, Json]:
    """What a device can do; the price in force is the deployment's."""
    found = device(name).describe()
    return {key: found[key] for key in _DATA_SHEET}


def _coefficients(rows: Sequence[JsonObject]) -> dict[str, Json]:
    """Each term's numbers, by what it is a term of."""
    named: dict[str, Json] = {}
    for row in rows:
        # A network's numbers are in the row itself.
        own = {key: value for key, value in row.items() if isinstance(value, float | int)}
        found = cast("JsonObject", row.get("coefficients", own))
        origin = {key: row[key] for key in ("set", "name") if key in row}
        named[" ".join([str(row["term"]), *([f"of {row['device']}"] if "device" in row else [])])] = {
            **origin,
            **found,
        }
    return named
