"""A trace from its name to what is replayed: looked up, cut, and what was done reported."""

from __future__ import annotations

from laminabench.listener import Listener
from laminabench.request import ReplayRequest, seconds
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace
from laminabench.traces.transform import Transforms


def transforms_of(request: ReplayRequest) -> Transforms:
    """How the trace is cut."""
    return Transforms(
        window_s=None if request.window is None else seconds(request.window, "--window"),
        scale_lengths=request.scale_lengths,
        max_prompt=request.max_prompt,
        max_output=request.max_output,
        too_long=request.too_long,
        sample=request.sample,
        num_requests=request.num_requests,
        request_rate=request.request_rate,
        burstiness=request.burstiness,
        rate_scale=request.rate_scale,
        seed=request.seed,
    )


def whole(name: str, transforms: Transforms, listener: Listener, *, offline: bool) -> Trace:
    """As much of it as the transforms can need."""
    with listener.progress(f"downloading {name}") as progress:
        trace = resolve(
            name,
            offline=offline,
            requests=transforms.prefix_needed(),
            seed=transforms.seed,
            notice=listener.note,
            progress=progress,
        )
    # The notice has said that a trace is generated; what its profile rests on is for -v and --json.
    for sentence in trace.meta.notes:
        (listener.note if trace.meta.source == "file" else listener.detail)(sentence)
    return trace


def cut(trace: Trace, transforms: Transforms, listener: Listener) -> Trace:
    """Transform what `whole` gave."""
    transformed = transforms.apply(trace)
    for sentence in transformed.meta.notes[len(trace.meta.notes) :]:
        listener.note(sentence)
    return transformed
