"""The other direction: hosts' constants fitted to one device's loads, and judged on the others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.server_host import SCALED, server_host
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.workflows.validate.judges import Standing, standings
from laminabench.workflows.validate.serving import Judged, ServerLoad, judged

# What is fitted together: only the sum of both ways shows.
TOGETHER = (("request_in_s", "out_s"), *((name,) for name in SCALED if name not in ("request_in_s", "out_s")))
SHORT = 1024  # tokens of the prompts whose loads are fitted to
# Of another device, the loads that its machines' factor is from.
FACTOR_MODEL = "minimax-m2.5"
ROUNDS, STEP, LARGEST, DAMPING = 5, 0.2, 0.7, 0.1
Predict = Callable[[Sequence[ServerLoad]], list[Judged]]


@dataclass(frozen=True, slots=True)
class Refit:
    """Constants by one device's loads, factors of the others, and their errors."""

    device: str
    loads: int
    constants_ms: Mapping[str, float]
    factors: Mapping[str, float]
    standings: Sequence[Standing]

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            "device": self.device,
            "loads": self.loads,
            "constants_ms": dict(self.constants_ms),
            "factors": dict(self.factors),
            "standings": [each.describe() for each in self.standings if each.role == "judge"],
        }


def refit(loads: Sequence[ServerLoad], device: str, costs: str | None) -> Refit:
    """Fit to a device's sound loads with short prompts, and judge those of all other devices."""
    sound = [each for each in loads if not each.off]
    own = [each for each in sound if each.device == device and each.prompt_tokens == SHORT]
    if not own:
        known = ", ".join(sorted({each.device for each in sound}))
        raise UserError(
            "serving-nothing-to-fit",
            f"--fit-on {device}: no load of it has prompts of {SHORT} tokens; there are loads on {known}",
        )

    def predict(chosen: Sequence[ServerLoad]) -> list[Judged]:
        return judged(chosen, costs)

    usual = server_host("0.18.0", device)
    start = {name: getattr(usual, name) for name in SCALED}
    scale = _fitted(predict, own, start, TOGETHER)
    constants = {name: scale[i] * start[name] for i, names in enumerate(TOGETHER) for name in names}
    factors, predictions = {}, []
    for other in sorted({each.device for each in sound} - {device}):
        here = [each for each in sound if each.device == other]
        of_factor = [each for each in here if each.model == FACTOR_MODEL and _lengths(each) == (SHORT, SHORT)]
        factors[other] = float(_fitted(predict, of_factor, constants, (SCALED,))[0]) if of_factor else 1.0
        values = {name: factors[other] * value for name, value in constants.items()}
        judges = [replace(each, server={**each.server, "fit": ()}) for each in here if each not in of_factor]
        predictions += predict([_with(each, values) for each in judges])
    named = {name.removesuffix("_s"): round(1000 * float(value), 3) for name, value in constants.items()}
    return Refit(device, len(own), named, factors, standings(predictions))


def _lengths(load: ServerLoad) -> tuple[int, int]:
    return load.prompt_tokens, load.output_tokens


def _with(load: ServerLoad, values: Mapping[str, float]) -> ServerLoad:
    return replace(load, server={**load.server, "host": dict(values)})


def _fitted(
    predict: Predict, loads: Sequence[ServerLoad], start: Mapping[str, float], groups: Sequence[Sequence[str]]
) -> Float64:
    """Return by how much each group of constants is multiplied: damped least squares of ln(TTFT)'s errors."""

    def errors(logs: Float64) -> Float64:
        values = {
            name: start[name] * float(np.exp(logs[i])) for i, names in enumerate(groups) for name in names
        }
        times = [each.error("ttft") for each in predict([_with(load, values) for load in loads])]
        off = np.array([0.0 if each is None else np.log1p(each / 100) for each in times])
        clipped: Float64 = np.clip(off, -1.0, 1.0)
        return clipped

    logs = np.zeros(len(groups))
    for _ in range(ROUNDS):
        now = errors(logs)
        steps = STEP * np.eye(len(groups))
        slopes = np.array([(errors(logs + step) - now) / STEP for step in steps]).T
        damped = np.vstack([slopes, DAMPING * np.eye(len(groups))])
        move = np.linalg.lstsq(damped, np.concatenate([-now, np.zeros(len(groups))]), rcond=None)[0]
        logs = logs + np.clip(move, -LARGEST, LARGEST)
    result: Float64 = np.exp(logs)
    return result
