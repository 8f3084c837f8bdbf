"""The result of a calibration: the cost set, and how stable its measurements were."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from laminabench.calibrate.cost_set import Made
from laminabench.calibrate.rounds import UNSTABLE, Repeats, Seconds, mean_spread, relative_spread
from laminabench.calibrate.terms import Decode, Model, Prompts
from laminabench.catalog.cost_terms import coefficients
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.models import ModelShape
from laminabench.catalog.server_host import ServerHost
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

_NAME = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Calibration:
    """The cost set, and facts about its measurement."""

    costs: CostSet
    facts: JsonObject


def require_name(name: str) -> None:
    """Raise a UserError unless the name is free and valid for a device."""
    if name in load_devices() or not _NAME.fullmatch(name):
        why = "the catalogue has a device of that name" if name in load_devices() else "no name of a device"
        raise UserError(
            "calibrate-name", f"--name {name}: {why}; take another one, of small letters, digits and hyphens"
        )


def require_dtype(shape: ModelShape, source: str) -> None:
    """Raise a UserError unless the model has the dtype and the parts that can be measured."""
    shape.require_plain("calibrate")
    if shape.dtype != "bf16":
        raise UserError(
            "calibrate-dtype",
            f"--model {source} is in {shape.dtype}; what is measured is bf16: name such a one",
        )


# Terms between workers, by the kind of their points.
BETWEEN = {"between slice and attention": "trip", "between iterations": "boundary"}


def measured(made: Made) -> dict[str, tuple[Seconds, float]]:
    """Return all terms, and how much the control drifted meanwhile."""
    repeats, shape = made.repeats, made.shape
    products = [f"gemm {matrix.name}" for matrix in (*shape.layer_gemms(), shape.lm_head_gemm())]
    drift = {name: repeats.drift(name) for name in repeats.columns}
    return {
        "slices": (repeats.of_kind("slices"), drift[Model.name]),
        "matrix products": (repeats.of_kind(*products), drift[Model.name]),
        "choosing tokens": (repeats.of_kind("sampler"), drift[Model.name]),
        Decode.name: (repeats.of_kind("decode", "skew"), drift[Decode.name]),
        Prompts.name: (repeats.of_kind("prompt"), drift[Prompts.name]),
        **{what: (made.between_of(kind), 0.0) for what, kind in BETWEEN.items() if made.between},
        **({"server": (made.served, 0.0)} if made.served else {}),
    }


def described(
    costs: CostSet,
    made: Made,
    repeats: Repeats,
    terms: Mapping[str, tuple[Seconds, float]],
    took_s: float,
) -> JsonObject:
    """Return the facts for --json: measurements, repeats, and how stable the machine was."""
    host, network = costs.host, next(iter(costs.networks.values()), None)
    control = relative_spread(repeats.controls)
    return {
        "model": made.shape.name,
        "device": costs.devices[made.name].describe(),
        "measured_on": made.source,
        "seconds": took_s,
        "rounds": repeats.rounds,
        "control_spread_percent": 100 * control,
        "control_drift_percent": 100 * max(repeats.drift(name) for name in repeats.columns),
        "stable": control <= UNSTABLE,
        "terms": [_row(what, points, drift) for what, (points, drift) in terms.items()],
        "host": {
            "kind": host.origin.kind,
            "per_step_s": host.per_step_s,
            "per_request_s": host.per_request_s,
        },
        "network": None if network is None else asdict(network),
        "server": None
        if costs.server is None
        else {name: getattr(costs.server, name) for name in coefficients(ServerHost)},
    }


def _row(what: str, points: Seconds, drift: float) -> JsonObject:
    spread = mean_spread(points)
    return {
        "term": what,
        "points": len(points),
        "repeats": min(map(len, points.values())),
        "spread_percent": 100 * spread,
        "unstable": max(spread, drift) > UNSTABLE,
    }
