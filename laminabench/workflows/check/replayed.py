"""Replays of a case: its current metrics, and how they were obtained."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Sequence
from typing import cast

from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.costs import known_devices
from laminabench.catalog.hardware import Device
from laminabench.requests.replay import BY_KEY
from laminabench.runs.manifest import Manifest
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import Json, JsonObject, to_json
from laminabench.util.suggest import nearest
from laminabench.workflows.check.case_file import Case
from laminabench.workflows.check.golden import Obtained, Value
from laminabench.workflows.check.verdict import require_samples
from laminabench.workflows.replay import ReplayRequest, in_turns, run


def replayed(_: None, case: Case, done: Callable[[], None] = lambda: None) -> tuple[Obtained, float]:
    """Replay the case; return its result and seconds. `done` is called after each measured replay."""
    began = time.perf_counter()
    try:
        result = _measured(case, done) if case.measured else _modelled(case)
    except (UserError, CheckFailedError) as error:
        raise error.within(f"case '{case.name}'") from error
    return result, time.perf_counter() - began


def _modelled(case: Case) -> Obtained:
    manifest = _manifest(case.requests[0])
    metrics: dict[str, Value] = dict(_metrics(case, manifest))
    return Obtained(metrics, facts_of(case, _command(case), manifest))


def _measured(case: Case, done: Callable[[], None]) -> Obtained:
    """Measure rounds one after another. With a second replay, both alternate; the metric is their ratio."""
    requests = case.requests
    values: list[list[dict[str, float | None]]] = [[] for _ in requests]
    for _, side in in_turns(len(requests), case.rounds):
        manifest = _manifest(requests[side])
        values[side].append(_metrics(case, manifest))
        if side == 0:
            facts = facts_of(case, _command(case), manifest)
        done()
    metrics: dict[str, Value] = {}
    for metric in case.metrics:
        samples = [require_samples(metric, [each[metric] for each in rounds]) for rounds in values]
        one, *other = samples
        metrics[metric] = [of / over for of, over in zip(one, *other, strict=True)] if other else one
    return Obtained(metrics, facts)


def _command(case: Case) -> str:
    """Return the case as a command line."""
    words = [word for key, value in case.flags.items() for word in BY_KEY[key].arguments(value)]
    return shlex.join(["laminabench", "replay", *words, "--no-out"])


def _manifest(request: ReplayRequest) -> Manifest:
    """Replay, and return what its Run would record."""
    result = run(request)
    if result.replayed.interrupted:
        raise KeyboardInterrupt
    result.require_sound()
    if partial := result.replayed.partial:
        raise CheckFailedError("check-partial", f"its Run cannot be judged, it is {partial.sentence}")
    return result.manifest(request)


def _metrics(case: Case, manifest: Manifest) -> dict[str, float | None]:
    """Return the metrics that the case names; an unknown one is a UserError that suggests the nearest."""
    known = dict(_numbers(to_json(manifest.summary)))
    for metric in case.metrics:
        if metric not in known:
            raise UserError("metric-unknown", f"no metric is called '{metric}'; {nearest(metric, known)}")
    return {metric: known[metric] for metric in case.metrics}


def _numbers(summary: Json, path: str = "") -> list[tuple[str, float | None]]:
    """Yield every number of a summary by its dotted key; of lists by position."""
    if isinstance(summary, dict | list):
        pairs = summary.items() if isinstance(summary, dict) else enumerate(summary)
        return [row for key, value in pairs for row in _numbers(value, f"{path}.{key}".lstrip("."))]
    is_number = summary is None or (isinstance(summary, int | float) and not isinstance(summary, bool))
    return [(path, cast("float | None", summary))] if is_number else []


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
    """Return how the case's numbers were obtained, and for measured ones on which machine."""
    coefficients = _coefficients(manifest.coefficients)
    trace, deployment = manifest.trace, manifest.deployment
    devices = deployment.devices or []
    known = known_devices([load_costs(str(case.flags.get("costs", DEFAULT_COSTS)))])
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
        "devices": {row.device: _data_sheet(known[row.device]) for row in devices},
        "model": manifest.model,
        "coefficients": coefficients,
        "coefficients_sha256": hashlib.sha256(json.dumps(coefficients, sort_keys=True).encode()).hexdigest(),
    }
    if case.measured:
        facts["host"] = to_json(manifest.host)
        facts["rounds"] = case.rounds
    plain: dict[str, Json] = json.loads(json.dumps(facts))  # as it is when read back: no tuples
    return plain


def _data_sheet(device: Device) -> dict[str, Json]:
    """Return the device's data sheet, without its price, which the deployment has."""
    sheet = device.describe()
    return {key: sheet[key] for key in _DATA_SHEET}


def _coefficients(rows: Sequence[JsonObject]) -> dict[str, Json]:
    """Return each term's coefficients by the name of the term."""
    named: dict[str, Json] = {}
    for row in rows:
        # A network's numbers are in the row itself.
        own = {key: value for key, value in row.items() if isinstance(value, float | int)}
        coefficients = cast("JsonObject", row.get("coefficients", own))
        origin = {key: row[key] for key in ("set", "name") if key in row}
        named[" ".join([str(row["term"]), *([f"of {row['device']}"] if "device" in row else [])])] = {
            **origin,
            **coefficients,
        }
    return named
