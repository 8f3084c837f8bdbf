"""The live engine of this machine and its modelled twin, of costs that were measured here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from laminabench.analysis.estimate import Estimate, of_rounds
from laminabench.catalog.cost_file import load_costs
from laminabench.requests.replay import FIELDS
from laminabench.runs.summary import Summary, number_at
from laminabench.systems.registry import live_system, prepare, system
from laminabench.util.errors import Interrupted, UserError
from laminabench.util.json import JsonObject
from laminabench.util.progress import SILENT, Listener, Once
from laminabench.workflows.replay import ReplayRequest, in_turns, run

METRICS = {
    "tokens/s": "throughput_tokens_per_s",
    "mean batch": "mean_batch",
    "TBT p50": "tbt_ms.p50",
    "TBT p99": "tbt_ms.p99",
    "TTFT p50": "ttft_ms.p50",  # where prompts are computed
}
# In percent.
TARGETS = {"tokens/s": 5.0, "mean batch": 5.0, "TBT p50": 5.0, "TBT p99": 10.0, "TTFT p50": 5.0}
# Choices of a replay, and what a Run calls what came of them.
SETTLED = {
    "batches": "batches",
    "min_batch": "min_batch",
    "pipelining": "pipelining",
    "partition": "attention_partition",
    "overlap": "overlap",
    "kv_tokens": "kv_capacity_tokens",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
}
# What a live core is called in a deployment.
CORE = "cpu"
# Of the live side, where nothing of it is modelled.
LIVE_ONLY = ("oversubscribe", "ray", "max_model_len", "enforce_eager", "runner_timeout")


@dataclass(frozen=True, slots=True)
class Twin:
    """A measurement, round by round, and its modelled twin."""

    label: str
    deployment: str  # the modelled one
    load: str  # its request: twins of one load are compared
    measured: dict[str, Estimate]
    predicted: dict[str, float]

    def errors(self) -> dict[str, float]:
        """Return predicted / measured - 1, in percent."""
        return {
            name: 100 * (self.predicted[name] / each.value - 1)
            for name, each in self.measured.items()
            if each.value
        }

    def missed(self) -> list[str]:
        """Return the targets that it does not meet."""
        return [name for name, error in self.errors().items() if abs(error) > TARGETS[name]]

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            "twin": self.label,
            "deployment": self.deployment,
            "load": self.load,
            "measured": {
                name: {"value": each.value, "interval": each.interval} for name, each in self.measured.items()
            },
            "predicted": self.predicted,
            "errors_percent": self.errors(),
            "missed": self.missed(),
        }


def twins(pairs: Sequence[tuple[str, ReplayRequest]], rounds: int, listener: Listener = SILENT) -> list[Twin]:
    """Replay live in turns, each with the modelled twin of its costs.

    Whatever is refused is so before the first.
    """
    alone = [msgspec.structs.replace(request, no_out=True) for _, request in pairs]
    modelled = [of_costs(request) for request in alone]
    requests = [msgspec.structs.replace(request, backend="live", costs=None) for request in alone]
    for request in (*requests, *modelled):
        request.require_valid()
        prepare(request)
    listener = Once(listener)
    measured_rounds: list[list[Summary]] = [[] for _ in pairs]
    built: list[JsonObject] = [{} for _ in pairs]
    for turn, place in in_turns(len(pairs), rounds):
        listener.note(f"round {turn + 1} of {rounds}: {pairs[place][0]}")
        result = run(requests[place], listener=listener)
        if result.replayed.interrupted:
            raise Interrupted("nothing was written")
        result.require_sound()
        measured_rounds[place].append(result.replayed.summary)
        built[place] = result.replayed.facts
    # What the engine settled by itself holds for the twin too.
    modelled = [
        msgspec.structs.replace(
            request, **{key: facts[name] for key, name in _settled(request) if name in facts}
        )
        for request, facts in zip(modelled, built, strict=True)
    ]
    return [
        Twin(
            label,
            str(request.deployment),
            _load(request),
            *_in_both(summaries, run(request).replayed.summary),
        )
        for (label, _), request, summaries in zip(pairs, modelled, measured_rounds, strict=True)
    ]


def same_order(compared: Sequence[Twin]) -> bool:
    """Return whether deployments with the same requests rank equally, modelled and live, by tokens/s.

    Where what was measured of two overlaps, neither comes first.
    """
    return not any(
        one.load == other.load
        and _ends(one)[1] < _ends(other)[0]
        and one.predicted["tokens/s"] > other.predicted["tokens/s"]
        for one, other in itertools.permutations(compared, 2)
    )


def _ends(twin: Twin) -> tuple[float, float]:
    """Return the bounds of its tokens a second."""
    measured = twin.measured["tokens/s"]
    value = measured.value or 0.0
    return measured.interval or (value, value)


def of_costs(request: ReplayRequest) -> ReplayRequest:
    """Return the modelled twin of a live replay, on the device that its cost set brings."""
    assert request.costs
    devices = load_costs(request.costs).devices
    if not devices:
        raise UserError(
            "validation-no-device",
            f"--costs {request.costs} brings no device of this machine; `laminabench calibrate` measures one",
        )
    name = next(iter(devices))
    live = live_system(request.system)
    count = "1x" if live.ONE_DEVICE else r"\g<1>"
    more: dict[str, Any] = {each: FIELDS[each].default for each in LIVE_ONLY}
    more["deployment"] = re.sub(rf"(\d+x){CORE}\b", rf"{count}{name}", request.deployment or "")
    if request.prefill == "model":
        more["prefill"] = "colocated"
    return msgspec.structs.replace(request, backend="modelled", **more, **live.twin(request))


def _settled(request: ReplayRequest) -> Iterator[tuple[str, str]]:
    """Return the request with the options that a modelled system takes."""
    taken = system(request.system).TAKES
    if request.prefill not in (None, "off"):  # where the model fills all batches evenly
        taken -= {"min_batch"}
    return ((key, name) for key, name in SETTLED.items() if key in taken)


def _load(request: ReplayRequest) -> str:
    """Return the trace, and whether prompts are computed."""
    prompts = request.prefill not in (None, "off")
    return f"{request.trace}, prompts computed" if prompts else str(request.trace)


def _in_both(measured: Sequence[Summary], modelled: Summary) -> tuple[dict[str, Estimate], dict[str, float]]:
    """Return the metrics that both have."""
    predicted = {name: number_at(modelled, key) for name, key in METRICS.items()}
    there = {name: value for name, value in predicted.items() if value is not None}
    return {
        name: _estimate([number_at(summary, METRICS[name]) for summary in measured]) for name in there
    }, there


def _estimate(values: list[float | None]) -> Estimate:
    return of_rounds(values) if len(values) > 1 else Estimate(values[0], None)
