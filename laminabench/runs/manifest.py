"""run.json: what a Run is the result of, so that it can be understood and repeated."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from laminabench.finite import finite
from laminabench.runs.format import FIRST_VERSION, FORMAT
from laminabench.runs.partial import Partial
from laminabench.traces.table import Trace
from laminabench.version import __version__, git_commit

Backend = Literal["modelled", "live"]


def manifest(
    *,
    command: Sequence[str],
    seed: int | None,
    trace: Trace,
    transforms: Mapping[str, Any],
    workload: Mapping[str, Any],
    system: str,
    deployment: Mapping[str, Any],
    model: Mapping[str, Any],
    backend: Backend,
    coefficients: Sequence[Mapping[str, Any]],
    wall_s: float,
    summary: Mapping[str, Any],
    partial: Partial | None = None,
) -> dict[str, Any]:
    """The manifest of a Run; each coefficient says where it is from, and `partial` why it ended early."""
    facts = {
        "format": FORMAT,
        "format_version": FIRST_VERSION,  # write_run knows better
        "laminabench": {"version": __version__, "commit": git_commit()},
        "command": shlex.join(command),
        "seed": seed,
        "trace": {
            **msgspec.structs.asdict(trace.meta),
            "notes": list(trace.meta.notes),
            "requests": len(trace),
        },
        "transforms": dict(transforms),
        "workload": dict(workload),
        "system": system,
        "deployment": dict(deployment),
        "model": dict(model),
        "backend": backend,
        "coefficients": [dict(coefficient) for coefficient in coefficients],
        "host": host(),
        "wall_s": wall_s,
        "summary": dict(summary),
        "partial": None if partial is None else dict(partial),
    }
    return {name: finite(fact) for name, fact in facts.items()}


def host() -> dict[str, Any]:
    """The machine this runs on."""
    system = platform.uname()
    return {
        "platform": f"{system.system} {system.release} {system.machine}",
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _cpu() -> str | None:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return None
