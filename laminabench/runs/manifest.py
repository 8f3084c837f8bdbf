"""The manifest of a Run (run.json): everything needed to understand and repeat it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from laminabench.catalog.deployment import DeploymentFacts
from laminabench.runs.format import FIRST_VERSION, FORMAT
from laminabench.runs.summary import Facts, Summary
from laminabench.sim.spec import Mode
from laminabench.traces.table import Trace
from laminabench.util import safe_parse
from laminabench.util.host import processor
from laminabench.util.json import JsonObject, json_safe
from laminabench.util.redact import command_line
from laminabench.util.version import __version__, git_commit

Backend = Literal["modelled", "live", "emulated"]
# The word for a Run's numbers by backend, shown wherever they are.
NUMBERS: Mapping[str, str] = {"modelled": "modelled", "live": "measured", "emulated": "emulated"}


class Code(Facts, frozen=True, kw_only=True):
    """The version and commit of laminabench that replayed."""

    version: str | None = None
    commit: str | None = None


class TraceFacts(Facts, frozen=True, kw_only=True):
    """The trace as it was replayed."""

    name: str
    source: str = "file"
    sha256: str | None = None
    origin: str = ""
    license: str = ""
    citation: str = ""
    tokenizer: str = ""
    has_arrivals: bool = True
    block_tokens: int = 512
    notes: tuple[str, ...] = ()
    requests: int | None = None


class WorkloadFacts(Facts, frozen=True, kw_only=True):
    """The workload: how requests were offered, with every flag of the replay."""

    mode: Mode
    concurrency: int | None = None
    policy: str | None = None
    slo_tbt_ms: float
    options: JsonObject | UnsetType | None = UNSET


class Host(Facts, frozen=True, kw_only=True):
    """The machine that the replay ran on."""

    platform: str | None = None
    python: str | None = None
    cpu: str | None = None
    cores: int | None = None


class Partial(Facts, frozen=True, kw_only=True):
    """The reason and time of a Run's early end; wherever its numbers are shown, this is too."""

    why: str
    at_s: float  # since the replay began

    @property
    def ended(self) -> str:
        """The clause that follows the Run's name."""
        return f"ended after {self.at_s:,.1f} s: {self.why.rstrip('.')}"

    @property
    def sentence(self) -> str:
        """The warning to show before any number."""
        return f"PARTIAL, it {self.ended}"


class Totals(Facts, frozen=True, kw_only=True):
    """Totals of an outcome that its tables do not have."""

    replica_busy_s: list[float | None]
    attention_busy_s: float | None = 0.0
    end_s: float
    queue_empty_s: float
    peak_kv_tokens: int
    kv_capacity_tokens: int
    # Where the rows of iterations were not stored: their sums; gaps are in a table.
    tally: dict[str, float] | None = None


class Table(Facts, frozen=True, kw_only=True):
    rows: int = 0
    sha256: str


class Manifest(Facts, frozen=True, kw_only=True):
    """The contents of run.json. `format_version` is also the version of this schema."""

    format: str = FORMAT
    format_version: int = FIRST_VERSION  # `write_run` sets it
    laminabench: Code = Code()
    command: str
    request: str | None = None  # as TOML; older Runs have `workload.options`
    seed: int | None = None
    trace: TraceFacts
    transforms: JsonObject
    workload: WorkloadFacts
    system: str
    deployment: DeploymentFacts
    model: JsonObject
    backend: Backend
    coefficients: list[JsonObject]
    host: Host
    wall_s: float | None = None
    summary: Summary
    partial: Partial | None = None
    totals: Totals | None = None  # set when the Run is written, as are the following
    tables: dict[str, Table] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise ValueError("`name` is missing - at `$.model`")
        try:
            _ = self.choices
        except ValueError as error:
            raise ValueError(f"its request is not TOML: {error}") from error

    @property
    def choices(self) -> JsonObject:
        """The replay's choices by flag; in an older Run, by option name."""
        return _parsed(self.request) if self.request is not None else self.workload.options or {}

    @property
    def model_name(self) -> str:
        """The model's name in the catalogue, or on the server."""
        return str(self.model["name"])


@lru_cache(maxsize=1024)
def _parsed(request: str) -> JsonObject:
    return safe_parse.toml(request)


def manifest(
    *,
    command: Sequence[str],
    trace: Trace,
    workload: JsonObject,
    **others: Any,
) -> Manifest:
    """Return the manifest of a Run; `others` are its other fields."""
    return Manifest(
        laminabench=Code(version=__version__, commit=git_commit()),
        command=command_line(command),
        trace=TraceFacts(**{**msgspec.structs.asdict(trace.meta), "requests": len(trace)}),
        workload=msgspec.convert(json_safe(workload), WorkloadFacts),
        host=host(),
        **json_safe(others),
    )


def host() -> Host:
    """Return the facts of this machine."""
    system = platform.uname()
    return Host(
        platform=f"{system.system} {system.release} {system.machine}",
        python=platform.python_version(),
        cpu=processor(),
        cores=os.cpu_count(),
    )
