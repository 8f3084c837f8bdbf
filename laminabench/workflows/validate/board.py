"""The accuracy board, made from a validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from laminabench.catalog.accuracy import Accuracy
from laminabench.catalog.deployment import devices_named
from laminabench.util.json import JsonObject
from laminabench.workflows.validate import disaggregation, percentiles, published, recorded, serving

FITTED_HOSTS = "host times, to other loads of vLLM servers"
FITTED_WALL = "host time by ranks, to these steps"


class Sample(NamedTuple):
    """The error of one measured load."""

    system: str
    device: str
    model: str
    metric: str
    costs: str
    against: str
    fitted: str
    error: float  # predicted / measured - 1, in percent
    measured: str  # the day, empty where the source has none


def board_of(samples: Iterable[Sample]) -> list[Accuracy]:
    """Return the cells of these samples, sorted."""
    cells: dict[tuple[str, ...], list[Sample]] = {}
    for each in samples:
        cells.setdefault(each[:7], []).append(each)
    return [_cell(cells[key]) for key in sorted(cells)]


def described_board(samples: Iterable[Sample]) -> JsonObject:
    """Return the board as a validation stores it; empty without samples."""
    cells = board_of(samples)
    return {"board": [asdict(each) for each in cells]} if cells else {}


def _cell(samples: list[Sample]) -> Accuracy:
    errors = np.array([each.error for each in samples])
    absolute = np.abs(errors)
    days = sorted({each.measured for each in samples} - {"", "-"})
    first = samples[0]
    return Accuracy(
        **dict(zip(Sample._fields[:7], first[:7], strict=True)),
        loads=len(samples),
        median=round(float(np.median(absolute)), 1),
        signed=round(float(np.median(errors)), 1),
        p90=round(float(np.percentile(absolute, 90)), 1),
        measured=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
    )


def samples_of(
    recordings: Sequence[recorded.Judged],
    printed: Sequence[published.Row],
    served: Sequence[serving.Judged],
    steps: Sequence[disaggregation.Predicted],
    tails: Sequence[percentiles.Compared] = (),
) -> Iterator[Sample]:
    """Yield the error of every load that judges the model; loads that are known to be off are none."""
    for run in recordings:
        if run.constants == recorded.AS_MEASURED:
            about, device = run.recording.about, run.recording.device
            model, costs = str(about.get("model", "")), str(about["costs"])
            for metric, errors in run.errors().items():
                against = "recorded runs of vLLM"
                yield Sample("vllm", device, model, metric, costs, against, "", errors["mean"], "")
    for row in printed:
        if row.error is not None:
            (device,) = devices_named(row.deployment)
            against = "latencies that vLLM's CI printed"
            yield Sample("vllm", device, row.model, "latency", row.costs, against, "", row.error, "")
    for load in served:
        point = load.point
        against = "loads of vLLM servers" + (" with workers for prompts" if point.pool else "")
        if point.off or point.fit or load.queued:
            continue
        device, model, costs = point.device, point.model, str(point.server["costs"])
        for metric in serving.METRICS:
            if (error := load.error(metric)) is not None:
                day = point.measured
                yield Sample("vllm", device, model, metric, costs, against, FITTED_HOSTS, error, day)
    yield from _samples_of_tails(tails)
    costs = str(disaggregation.table()["costs"])
    for step in steps:
        system, against = step.row.system, "measured decode steps"
        (device,) = devices_named(step.row.attention_side)
        model = disaggregation.model_of(step.row.model).name
        wall = FITTED_WALL if system == "vllm" else ""
        for metric, quantity, fitted in (("step", "cuda", ""), ("step, wall", "wall", wall)):
            if (error := step.error(quantity)) is not None:
                yield Sample(system, device, model, metric, costs, against, fitted, error, "")


def _samples_of_tails(tails: Sequence[percentiles.Compared]) -> Iterator[Sample]:
    for each in tails:
        load, against = each.load, "loads of vLLM servers with percentiles"
        device, model, costs = load.device, load.model, str(load.server["costs"])
        for metric, error in each.errors.items():
            yield Sample("vllm", device, model, metric, costs, against, FITTED_HOSTS, error, load.measured)
