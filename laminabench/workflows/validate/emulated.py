"""The engine on emulated devices and the virtual cluster: the same times, scheduled live.

What the two should differ in is the host: that of a cost set is assumed, and the engine's is this one. So
the modelled side has the host that the emulated one had, and reports it; the rest is order, channels and
waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np

from laminabench.runs.summary import number_at
from laminabench.systems.live.emulated.setup import modelled_twin
from laminabench.util.json import JsonObject
from laminabench.util.progress import SILENT, Listener, Once
from laminabench.workflows.replay import ReplayRequest, Result, run

METRICS = ("tokens/s", "TBT p50", "TBT p99", "first token p50")
# In percent. A first token waits for one or two iterations; it is judged where requests arrive over time, as
# all at once have theirs from one iteration, which is chance.
TARGETS = {"tokens/s": 5.0, "TBT p50": 5.0, "TBT p99": 10.0, "first token p50": 10.0}
_SMALL = "--model llama3.1-8b --num-requests 40 --scale-lengths 0.1 --slowdown 32"
_LARGE = "--num-requests 60 --scale-lengths 0.1 --slowdown 16"
# The paper's deployment in rotation and serial; three batches on two replicas; by requests; arrivals.
CASES = tuple(
    f"--trace azure-conv --offline --emulate h100,h20 {each}"
    for each in (
        f"{_LARGE} --deployment 2xh100+4xh20",
        f"{_LARGE} --deployment 2xh100+4xh20 --batches 1",
        f"{_SMALL} --deployment 2xh100+1xh20 --batches 3",
        f"{_SMALL} --deployment 1xh100+2xh20 --partition requests",
        f"{_SMALL} --deployment 1xh100+1xh20 --mode open --request-rate 20",
    )
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """One replay, live on emulated devices and modelled."""

    label: str
    emulated: dict[str, float]
    modelled: dict[str, float]  # with the host that the emulated one had
    host_ms: float  # of an iteration
    assumed: dict[str, float]  # modelled with the cost set's host
    pace: JsonObject

    def differences(self) -> dict[str, float]:
        """Return emulated / modelled - 1 in percent, of what both have: few tokens may have no TBT."""
        return {
            name: 100 * (value / self.modelled[name] - 1)
            for name, value in self.emulated.items()
            if name in self.modelled
        }

    def missed(self) -> list[str]:
        """Return the missed targets; if the host did not keep the pace, there is nothing to judge."""
        if not self.pace["kept"]:
            return ["pace"]
        off = self.differences()
        return [name for name in self.modelled if name not in off or abs(off[name]) > TARGETS[name]]

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            "replay": self.label,
            "emulated": self.emulated,
            "modelled": self.modelled,
            "modelled_with_assumed_host": self.assumed,
            "host_ms": self.host_ms,
            "differences_percent": self.differences(),
            "pace": self.pace,
            "missed": self.missed(),
        }


def agreements(requests: Sequence[tuple[str, ReplayRequest]], listener: Listener = SILENT) -> list[Agreement]:
    """Return the agreement for each request, replayed in turn."""
    listener = Once(listener)
    return [agreement(label, request, listener) for label, request in requests]


def agreement(label: str, request: ReplayRequest, listener: Listener = SILENT) -> Agreement:
    """Return the agreement of the live replay with the modelled ones."""
    request = msgspec.structs.replace(request, backend="live", no_out=True)
    listener.note(f"emulating: {label}")
    live = run(request, listener=listener)
    live.require_sound()
    host_ms = _host_ms(live)
    twin = modelled_twin(live.prepared.request)
    twin = msgspec.structs.replace(twin, no_out=True)
    own = msgspec.structs.replace(twin, host=f"{host_ms * 1e3:.0f}us")
    pace = cast(JsonObject, live.replayed.facts["pace"])
    return Agreement(label, _metrics(live), _metrics(run(own)), host_ms, _metrics(run(twin)), pace)


def _host_ms(live: Result) -> float:
    """Return the time from an iteration's end on its devices to the next one's start.

    This is the front end's work, and the delay until it is notified of the end.
    """
    pace: Any = live.replayed.facts["pace"]
    work_ms = float(np.mean(live.replayed.outcome.iterations["host_s"])) * 1e3
    return work_ms + float(pace["lateness_ms"]["p50"])


def _metrics(result: Result) -> dict[str, float]:
    summary, requests = result.replayed.summary, result.replayed.outcome.requests
    over_time = result.prepared.request.mode == "open"
    first_s = requests["first_token_s"] - requests["arrival_s"]
    numbers = (
        number_at(summary, "throughput_tokens_per_s"),
        number_at(summary, "tbt_ms.p50"),
        number_at(summary, "tbt_ms.p99"),
        float(np.nanmedian(first_s)) * 1e3 if over_time else None,
    )
    return {name: value for name, value in zip(METRICS, numbers, strict=True) if value is not None}
