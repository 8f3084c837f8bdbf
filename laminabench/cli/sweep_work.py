"""One point of a sweep: what it is kept under, and its replay, in whichever process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from laminabench.cli.sweep_points import QUIET, Point, TraceKey
from laminabench.errors import CheckFailedError, UserError
from laminabench.json_safe import json_safe
from laminabench.replay import Workload
from laminabench.version import describe

if TYPE_CHECKING:
    from laminabench.traces.table import Trace


def identity(point: Point, trace: Trace) -> dict[str, Any]:
    """All that its numbers depend on; what a setup is made of, prices and coefficients, is in its repr."""
    meta = trace.meta
    return {
        "laminabench": describe(),
        "flags": point.call.choices(),
        "setup": repr(point.backend.setup),
        "transforms": asdict(point.call.options.transforms),
        "trace": [meta.name, meta.source, meta.sha256, len(trace)],
    }


def replayed(traces: Mapping[TraceKey, Trace], point: Point) -> dict[str, Any]:
    """The documented keys of the point's replay, or why there is none."""
    call = point.call
    # The tables of the replay go with the copy.
    backend = copy.copy(point.backend)
    offered = Workload(*(call.flags[name] for name in ("mode", "concurrency", "policy", "slo_tbt_ms")))
    try:
        trace = call.options.cut(traces[point.trace], QUIET)
        backend.replay(trace, offered)
        backend.require_sound()
        if backend.partial:
            raise UserError("replay-ended-early", backend.partial.sentence)
    except (UserError, CheckFailedError) as error:
        setup = backend.setup
        return {
            "backend": backend.name,
            "system": call.flags["system_name"],
            "deployment": str(setup.deployment),
            "model": setup.model.name,
            "mode": call.flags["mode"],
            "error": str(error),
        }
    result = json_safe(call.result(trace, backend).describe())
    assert isinstance(result, dict)
    return result
