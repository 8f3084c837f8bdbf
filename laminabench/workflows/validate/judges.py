"""Loads of servers by role: judges, those that constants were fitted to, and those that queue for KV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from laminabench.util.json import JsonObject
from laminabench.workflows.validate.serving import METRICS, Errors, Judged

# In percent, of absolute errors, or of signed ones either way.
OF_ALL = {"ttft median": 10.0, "tpot median": 5.0, "ttft p90": 25.0}
OF_TODAY = {"ttft median": 8.0, "tpot median": 4.0}
OF_A_GROUP = {"ttft signed": 10.0}
# Fewer loads make no group that has targets.
ENOUGH = 10
TODAY = (0, 15)


class Standing(NamedTuple):
    """A group of loads, its errors and their targets."""

    group: str
    role: str  # judge, fit, queued or P/D
    errors: Mapping[str, Errors]  # by metric
    targets: Mapping[str, float]

    @property
    def loads(self) -> int:
        return self.errors["ttft"].points

    @property
    def missed(self) -> list[str]:
        """The targets that are not met."""
        return [name for name, most in self.targets.items() if not abs(self.value(name)) <= most]

    def value(self, name: str) -> float:
        metric, statistic = name.split(" ")
        return float(getattr(self.errors[metric], statistic))

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        numbers = {
            metric: {name: getattr(errors, name) for name in ("median", "signed", "p90")}
            for metric, errors in self.errors.items()
        }
        rest: JsonObject = {"targets": dict(self.targets), "missed": self.missed}
        return {"group": self.group, "role": self.role, "loads": self.loads, **numbers, **rest}


def standings(predictions: Sequence[Judged]) -> list[Standing]:
    """Return judges: all, of today and by group; then fit rows, loads that queue for KV, and those of P/D.

    The latter have workers for prompts alone, which no constant or target is about.
    """
    return [each for each in _standings(predictions) if each.loads]


def _standings(predictions: Sequence[Judged]) -> Iterator[Standing]:
    known = [each for each in predictions if not each.point.off and each.tpot_ms is not None]
    sound = [each for each in known if each.point.pool is None]
    settled = [each for each in sound if not each.queued]
    judges = [each for each in settled if not each.point.fit]
    yield _standing("all", "judge", judges, OF_ALL)
    yield _standing("vLLM 0.15 and later", "judge", [each for each in judges if _today(each)], OF_TODAY)
    for name, group in _grouped(judges):
        yield _standing(name, "judge", group, OF_A_GROUP if len(group) >= ENOUGH else {})
    fit = [each for each in settled if each.point.fit]
    yield _standing("all", "fit", fit, {})
    for name, group in _grouped(fit):
        yield _standing(name, "fit", group, {})
    yield _standing("all", "queued", [each for each in sound if each.queued], {})
    split = [each for each in known if each.point.pool is not None]
    yield _standing("all", "P/D", split, {})
    for name, group in _grouped(split):
        yield _standing(name, "P/D", group, {})


def _grouped(predictions: Sequence[Judged]) -> list[tuple[str, list[Judged]]]:
    groups: dict[str, list[Judged]] = {}
    for each in predictions:
        about = each.point.server
        name = " ".join(str(about[key]) for key in ("model", "device", "version", "precision"))
        groups.setdefault(name, []).append(each)
    return sorted(groups.items())


def _standing(name: str, role: str, group: Sequence[Judged], targets: Mapping[str, float]) -> Standing:
    return Standing(name, role, {metric: Errors.of(group, metric) for metric in METRICS}, targets)


def _today(each: Judged) -> bool:
    numbers = str(each.point.server["version"]).split(".")
    return all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= TODAY
