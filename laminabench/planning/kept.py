"""A plan as a folder: plan.json, with all that was replayed, so that it can be looked at and billed anew."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from laminabench.atomic import replacing
from laminabench.errors import UserError
from laminabench.json_safe import json_safe
from laminabench.runs.format import manifest_in
from laminabench.runs.replace import require_replaceable
from laminabench.runs.summary import Facts
from laminabench.version import __version__, describe, git_commit

FORMAT, FORMAT_VERSION = "laminabench plan", 1
MANIFEST = "plan.json"


class KeptEffect(Facts, frozen=True, kw_only=True):
    """What a tenth more of one resource alone would do; shares."""

    resource: str
    throughput_gain: float
    tbt_p99_gain: float
    ttft_p99_gain: float | None = None


class KeptPoint(Facts, frozen=True, kw_only=True):
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
    ttft_p99_ms: float | None = None  # where prompts are computed
    assumed_devices: tuple[str, ...] = ()
    binds: list[KeptEffect] | None = None  # None where it was not worked out

    def meets(self, slo_tbt_p99_ms: float) -> bool:
        """As `measure.meets` of the point that was kept."""
        return self.keeps_up and self.tbt_p99_ms <= slo_tbt_p99_ms


class KeptPrice(Facts, frozen=True, kw_only=True):
    usd: float
    basis: str = ""
    source: str = ""
    date: str = ""


class KeptDevice(Facts, frozen=True, kw_only=True):
    name: str
    price: KeptPrice | None = None


class KeptSearch(Facts, frozen=True, kw_only=True):
    considered: int
    counts: dict[str, int]


class KeptAnswer(Facts, frozen=True, kw_only=True):
    """With one cost set."""

    costs: str
    replayed: list[KeptPoint]
    search: KeptSearch


class KeptTrace(Facts, frozen=True, kw_only=True):
    name: str
    source: str
    requests: int


class KeptCode(Facts, frozen=True, kw_only=True):
    version: str | None = None
    commit: str | None = None


class KeptPlan(Facts, frozen=True, kw_only=True):
    """What there is to know of a plan by who did not search."""

    laminabench: KeptCode = KeptCode()
    command: str = ""
    trace: KeptTrace
    model: str
    mode: str
    slo_tbt_p99_ms: float
    slo_ttft_p99_ms: float | None = None
    budget_usd_per_hour: float
    power_budget_w: float | None = None
    devices: list[KeptDevice]
    answers: list[KeptAnswer]

    @property
    def prices(self) -> dict[str, float]:
        """$ an hour of each device that a candidate has, as the search had them."""
        used = {name for each in self.answers for point in each.replayed for name in point.devices}
        return {
            each.name: each.price.usd for each in self.devices if each.price is not None and each.name in used
        }


def default_directory(name: str, asked: Sequence[object]) -> Path:
    """The same for the same plan by the same laminabench."""
    said = json.dumps([describe(), *asked], sort_keys=True, default=str)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return Path("plans") / f"{plain}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def require_free(directory: Path) -> None:
    """A UserError unless nothing is there, or another plan, which is replaced."""
    is_plan = lambda: manifest_in(directory, FORMAT, MANIFEST) is not None  # noqa: E731
    require_replaceable(directory, is_plan, "a plan")


def write_plan(directory: Path, facts: Mapping[str, Any]) -> None:
    """Keep what `plan --json` says, whole or not at all."""
    require_free(directory)
    whole = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "laminabench": {"version": __version__, "commit": git_commit()},
        "command": shlex.join(["laminabench", *sys.argv[1:]]),
        **facts,
    }
    with replacing(directory / MANIFEST) as temporary:
        text = json.dumps(json_safe(whole), indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_plan(directory: Path) -> KeptPlan:
    """A plan that this version can read, checked as a whole."""
    path = directory / MANIFEST
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_plan(directory, f"it has no {MANIFEST}") from error
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _no_plan(directory, f'{MANIFEST} does not say "format": "{FORMAT}"')
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            "plan-format-newer",
            f"{directory} was written in format {version} and this laminabench reads up to {FORMAT_VERSION}; "
            "upgrade laminabench",
        )
    try:
        found = msgspec.convert(document, KeptPlan)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error
    for answer in found.answers:
        for point in answer.replayed:
            if unpriced := point.devices.keys() - found.prices.keys():
                raise _damaged(path, f"{point.candidate} has {min(unpriced)}, which has no price")
    return found


def _no_plan(directory: Path, why: str) -> UserError:
    return UserError("plan-not-a-plan", f"{directory} is not a plan: {why}")


def _damaged(path: Path, why: str) -> UserError:
    return UserError("plan-damaged", f"{path} is damaged: {why}; `laminabench plan` writes it again")
