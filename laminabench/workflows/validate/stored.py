"""A validation as a folder: validation.json, as `validate -o` writes it and others read it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from laminabench.catalog.accuracy import Accuracy
from laminabench.runs.documents import Kind, read
from laminabench.runs.format import sealed
from laminabench.runs.summary import Facts
from laminabench.util.json import JsonObject, json_safe
from laminabench.util.version import __version__, git_commit

VALIDATION = Kind(
    "validation",
    "laminabench validate -o FOLDER",
    "validation.json",
    "laminabench validation",
    1,
    unmarked=("recorded", "published", "serving", "twin", "emulated"),
)


class StoredRecorded(Facts, frozen=True, kw_only=True):
    """A prediction of a recorded run."""

    recording: str
    costs: str
    constants: str
    gap_ms: float
    errors_percent: dict[str, dict[str, float]]  # by metric: of mean, p50, p90, p99 and `by_request`
    missed: list[str]
    # By other simulators: of the mean, then of percentiles.
    others: dict[str, dict[str, list[float]]] = msgspec.field(default_factory=dict)


class StoredPublished(Facts, frozen=True, kw_only=True):
    """A published number; without a prediction it says why."""

    model: str
    deployment: str
    costs: str
    measured_ms: float
    predicted_ms: float | None
    error_percent: float | None
    why_not: str = ""


class StoredErrors(Facts, frozen=True, kw_only=True):
    """Errors of a group's loads, in percent; None where no load of it could be predicted."""

    points: int
    median: float | None
    mean: float | None
    worst: float | None
    signed: float | None = None
    p90: float | None = None


class StoredGroup(Facts, frozen=True, kw_only=True):
    device: str
    what: str
    versions: list[str]
    off: str
    errors: dict[str, StoredErrors]
    target: float | None
    missed: bool


class StoredMetric(Facts, frozen=True, kw_only=True):
    """Errors of a metric over a group's loads, in percent."""

    median: float  # of absolute ones
    signed: float
    p90: float


class StoredStanding(Facts, frozen=True, kw_only=True):
    """A group of loads that judges, that constants were fitted to, or that queues for KV."""

    group: str
    role: str
    loads: int
    ttft: StoredMetric
    tpot: StoredMetric
    targets: dict[str, float]
    missed: list[str]


class StoredRefit(Facts, frozen=True, kw_only=True):
    """Constants fitted to one device's loads, and the others' errors with them."""

    device: str
    loads: int
    constants_ms: dict[str, float]
    factors: dict[str, float]
    standings: tuple[StoredStanding, ...]


class StoredUnpriced(Facts, frozen=True, kw_only=True):
    """A load without a prediction."""

    row: str
    why: str


class StoredServing(Facts, frozen=True, kw_only=True):
    groups: list[StoredGroup]
    standings: tuple[StoredStanding, ...] = ()
    unpriced: tuple[StoredUnpriced, ...] = ()
    refit: StoredRefit | None = None


class StoredEstimate(Facts, frozen=True, kw_only=True):
    value: float | None
    interval: tuple[float, float] | None = None


class StoredTwin(Facts, frozen=True, kw_only=True):
    """A live replay, and what was modelled of the same."""

    twin: str
    deployment: str
    load: str
    measured: dict[str, StoredEstimate]
    predicted: dict[str, float]
    errors_percent: dict[str, float]
    missed: list[str]


class StoredAgreement(Facts, frozen=True, kw_only=True):
    """A replay on emulated devices, and modelled."""

    replay: str
    emulated: dict[str, float]
    modelled: dict[str, float]
    modelled_with_assumed_host: dict[str, float]
    host_ms: float
    differences_percent: dict[str, float]
    pace: Mapping[str, Any]
    missed: list[str]


class StoredValidation(Facts, frozen=True, kw_only=True):
    command: str = ""
    date: str = ""
    recorded: tuple[StoredRecorded, ...] = ()
    published: tuple[StoredPublished, ...] = ()
    serving: StoredServing | None = None
    twin: tuple[StoredTwin, ...] = ()
    twin_same_order: bool | None = None
    emulated: tuple[StoredAgreement, ...] = ()
    board: tuple[Accuracy, ...] = ()


def marked(result: JsonObject, command: str) -> JsonObject:
    """Return the result as stored, with a checksum."""
    head = {"format": VALIDATION.format, "format_version": VALIDATION.version}
    code = {"version": __version__, "commit": git_commit()}
    about = {"laminabench": code, "date": f"{datetime.now(UTC):%Y-%m-%d}", "command": command}
    facts: JsonObject = json_safe({**head, **about, **result})
    return sealed(facts)


def validation_of(result: JsonObject) -> StoredValidation:
    """Return the result as a stored validation."""
    return msgspec.convert(json_safe(result), StoredValidation)


def read_validation(directory: Path) -> StoredValidation:
    """Read a validation that this version understands, checked."""
    return read(directory, VALIDATION, StoredValidation)
