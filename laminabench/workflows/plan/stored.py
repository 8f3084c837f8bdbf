"""A plan as a folder: plan.json, with all that was replayed, so that it can be looked at and billed anew."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from laminabench.runs.documents import Kind, read
from laminabench.runs.format import sealed
from laminabench.runs.manifest import Code
from laminabench.runs.replace import require_replaceable
from laminabench.runs.summary import Facts
from laminabench.util.atomic import replacing
from laminabench.util.json import json_safe
from laminabench.util.redact import command_line
from laminabench.util.version import __version__, describe, git_commit

PLAN = Kind("plan", "laminabench plan", "plan.json", "laminabench plan", 1)


class Effect(Facts, frozen=True, kw_only=True):
    """The effect of a tenth more of one resource alone; shares."""

    resource: str
    throughput_gain: float  # 0.04 is 4 % more tokens a second
    elasticity: float = 0.0  # percent gained for each percent more of the resource
    tbt_p99_gain: float  # how much shorter: 0.04 is 4 % less
    ttft_p99_gain: float | UnsetType | None = UNSET  # likewise, where prompts are computed


class StoredPoint(Facts, frozen=True, kw_only=True):
    """A candidate that was replayed in full."""

    candidate: str
    system: str
    deployment: str
    devices: dict[str, int]  # of all instances: what an hour costs follows from their prices
    tokens_per_s: float
    mean_batch: float
    tbt_p50_ms: float
    tbt_p99_ms: float
    token_attainment: float
    keeps_up: bool
    batches: int = 1
    most_requests: int | None = None
    # Where prompts are computed.
    instances: int = 1
    max_batched_tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    assumed_devices: tuple[str, ...] = ()
    binds: list[Effect] | None = None  # None where it was not worked out

    def meets(self, slo_tbt_p99_ms: float) -> bool:
        """Return whether the stored point meets the limit; see `measure.meets`."""
        return self.keeps_up and self.tbt_p99_ms <= slo_tbt_p99_ms


class StoredPrice(Facts, frozen=True, kw_only=True):
    usd: float
    basis: str = ""
    source: str = ""
    date: str = ""


class StoredDevice(Facts, frozen=True, kw_only=True):
    name: str
    price: StoredPrice | None = None


class StoredSearch(Facts, frozen=True, kw_only=True):
    considered: int
    counts: dict[str, int]


class Repriced(Facts, frozen=True, kw_only=True):
    """The winner at one other price."""

    device: str
    change: float  # 0.1 is 10 % more
    usd_each_per_hour: float
    winner: str
    stays: bool
    usd_per_million_tokens: float | None


class StoredAnswer(Facts, frozen=True, kw_only=True):
    """The stored plan with one cost set."""

    costs: str
    replayed: list[StoredPoint]
    prices: tuple[Repriced, ...] = ()
    search: StoredSearch


class StoredTrace(Facts, frozen=True, kw_only=True):
    name: str
    source: str
    requests: int


class StoredPlan(Facts, frozen=True, kw_only=True):
    """A stored plan, for readers that did not search."""

    laminabench: Code = Code()
    command: str = ""
    trace: StoredTrace
    model: str
    mode: str
    slo_tbt_p99_ms: float
    slo_ttft_p99_ms: float | None = None
    budget_usd_per_hour: float
    power_budget_w: float | None = None
    devices: list[StoredDevice]
    answers: list[StoredAnswer]

    @property
    def prices(self) -> dict[str, float]:
        """$ an hour of each device that a candidate has, as the search had them."""
        used = {name for each in self.answers for point in each.replayed for name in point.devices}
        return {
            each.name: each.price.usd for each in self.devices if each.price is not None and each.name in used
        }


def default_directory(name: str, options: Sequence[object]) -> Path:
    """Return the plan's folder: the same for the same plan by the same laminabench."""
    text = json.dumps([describe(), *options], sort_keys=True, default=str)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return Path("plans") / f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def require_free(directory: Path) -> None:
    """Raise a UserError unless the path is free or has another plan, which is replaced."""
    require_replaceable(directory, lambda: PLAN.is_in(directory), "a plan")


def write_plan(directory: Path, facts: Mapping[str, Any]) -> None:
    """Save the output of `plan --json` atomically."""
    require_free(directory)
    complete = {
        "format": PLAN.format,
        "format_version": PLAN.version,
        "laminabench": {"version": __version__, "commit": git_commit()},
        "command": command_line(["laminabench", *sys.argv[1:]]),
        **facts,
    }
    with replacing(directory / PLAN.file) as temporary:
        text = json.dumps(sealed(json_safe(complete)), indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def plan_of(facts: Mapping[str, Any]) -> StoredPlan:
    """Return the output of `plan --json` as a stored plan."""
    return msgspec.convert(json_safe(facts), StoredPlan)


def read_plan(directory: Path) -> StoredPlan:
    """Read a plan that this version understands, checked."""
    plan = read(directory, PLAN, StoredPlan)
    for answer in plan.answers:
        for point in answer.replayed:
            if unpriced := point.devices.keys() - plan.prices.keys():
                why = f"{point.candidate} has {min(unpriced)}, which has no price"
                raise PLAN.damaged(directory / PLAN.file, why)
    return plan
