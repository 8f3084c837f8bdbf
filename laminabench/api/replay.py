"""`lb.replay`: a trace against a system, as `laminabench replay` does it, and the Run in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from laminabench.api.keywords import request_of, with_keywords
from laminabench.api.messages import MessageLog
from laminabench.api.run import Run
from laminabench.requests.replay import ReplayRequest
from laminabench.traces.resolve import cut, transforms_of
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener
from laminabench.workflows.replay.run import run

if TYPE_CHECKING:
    import pandas as pd

    from laminabench.api.keyword_types import ReplayKeywords

    TraceLike: TypeAlias = str | os.PathLike[str] | Trace | pd.DataFrame


@with_keywords(ReplayRequest)
def replay(
    trace: TraceLike,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **choices: Unpack[ReplayKeywords],
) -> Run:
    """Replay a trace against a system: on modelled hardware, or live on this machine.

    Args:
        trace: A name of the catalogue, a file, a Trace, or a data frame with the columns `prompt_tokens`,
            `output_tokens` and perhaps `arrival_s`.
        out: A folder to keep the Run in; without it nothing is written.
        progress: Show on stderr how far it is, and what else there is to know.
        **choices: The flags of `laminabench replay`, with underscores: `system="vllm"`,
            `deployment="4xh100"`, `mode="open"`, `price={"h200": 8}`, `window=(0, 600)`.

    Returns:
        The Run: its numbers, its tables, its pictures.

    Raises:
        UserError: For what cannot be replayed; its `code` is in docs/errors.md.

    Examples:
        >>> import laminabench as lb
        >>> few = {"trace": "profile:azure-conv", "num_requests": 200, "system": "lamina"}
        >>> run = lb.replay(**few, deployment="2xh100+4xh20")
        >>> print(run.manifest.deployment.name, f"${run.cost.usd_per_hour:.2f} an hour")
        2xh100+4xh20 $40.64 an hour
        >>> try:
        ...     lb.replay(**few, deployment="2xh1000+4xh20")
        ... except lb.UserError as error:
        ...     print(f"{error.code}: {error}")
        catalogue-unknown-name: no device named 'h1000'; did you mean h100 or h800 or h200?
    """
    messages = MessageLog(progress=progress)
    directory = None if out is None else os.fspath(out)
    request, cut_trace = checked_request(
        *(trace, dict(choices), messages, "replay()"), no_out=out is None, directory=directory
    )
    result = run(request, listener=messages, trace=cut_trace)
    if result.replayed.interrupted:
        raise KeyboardInterrupt
    result.require_sound()
    path = None if out is None else Path(out)
    return Run(result.as_run(request), path=path, result=result, notes=messages.notes)


def checked_request(
    trace: TraceLike, choices: Mapping[str, Any], listener: Listener, where: str, **others: Any
) -> tuple[ReplayRequest, Trace | None]:
    """Return the request, and the trace cut to it if one was given."""
    name, given = named(trace)
    request = request_of(ReplayRequest, choices, where, trace=name, **others)
    request.require_valid()
    return request, None if given is None else cut(given, transforms_of(request), listener)


def named(trace: TraceLike) -> tuple[str, Trace | None]:
    """Return a trace's name, and the trace itself if more than a name was given."""
    if isinstance(trace, str | os.PathLike):
        return os.fspath(trace), None
    if isinstance(trace, Trace):
        return trace.meta.name, trace
    if hasattr(trace, "to_parquet"):
        from laminabench.traces.frames import from_frame

        table = from_frame(trace)
        return table.meta.name, table
    raise UserError(
        "trace-kind",
        f"a trace is a name, a file, a Trace or a data frame, and not {type(trace).__name__}",
    )
