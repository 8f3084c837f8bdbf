"""What a case's numbers come from, of its Run's manifest and the catalogue; and what of it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
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
# How many differences of one kind are worth naming.
_NAMED = 4
_NONE = object()

# What each part of the facts is called, in the order in which it explains.
_INPUTS = {
    "case": "the case itself",
    "trace": "the trace",
    "coefficients": "cost coefficients",
    "deployment": "the deployment or its price",
    "devices": "data sheets",
    "model": "the model",
    "host": "the machine",
}


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


def causes(golden: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """The likely causes, a sentence each; what a replay is given comes before what it is done with."""
    found = []
    for part, called in _INPUTS.items():
        differing = list(_differences(golden.get(part, {}), now.get(part, {})))
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            found.append(f"{called}: {'; '.join(differing[:_NAMED])}{more}")
    return (*found, _code(golden["laminabench"], now["laminabench"], explained=bool(found)))


def inputs_differ(golden: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a golden tells of other inputs than there are now; which code used them is not one."""
    return any(golden.get(part) != now.get(part) for part in _INPUTS if part != "host")


def _code(golden: Mapping[str, Any], now: Mapping[str, Any], *, explained: bool) -> str:
    """What is known of the code's own share."""
    was, is_ = _version(golden), _version(now)
    if was != is_:
        return (
            f"{'perhaps also the code' if explained else 'nothing but the code'}: laminabench {was} -> {is_}"
        )
    if "dirty" in is_:
        return f"changes to the code that are not committed, perhaps: laminabench {is_} then and now"
    if explained:
        return f"not the code: laminabench {is_} then and now"
    return f"nothing that is recorded: laminabench {is_}, the same inputs"


def _version(facts: Mapping[str, Any]) -> str:
    return f"{facts['version']} ({facts['commit'] or 'no commit known'})"


def _differences(golden: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(golden, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*golden, *now]):
            yield from _differences(golden.get(key, _NONE), now.get(key, _NONE), f"{path} {key}".strip())
    elif golden != now:
        yield f"{path} {_said(golden)} -> {_said(now)}{_change(golden, now)}"


def _said(value: Any) -> str:
    if value is _NONE:
        return "not there"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Checksums and sources are told apart by their beginning.
    return text if len(text) <= 40 else f"{text[:12]}…"


def _change(golden: Any, now: Any) -> str:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (golden, now))
    return f" ({now / golden - 1:+.3g})".replace("+-", "-") if numbers and golden else ""
