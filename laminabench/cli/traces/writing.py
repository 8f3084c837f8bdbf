"""The last step of the commands that write a trace file."""

from __future__ import annotations

from pathlib import Path

from laminabench.cli.output import Output
from laminabench.present.terminal import literal
from laminabench.traces.describe import describe
from laminabench.traces.store import lost_in, save
from laminabench.traces.table import Trace


def write_trace(trace: Trace, target: Path, out: Output, **more: object) -> None:
    """Save, say what the file cannot hold, and report; `more` goes into the JSON object."""
    save(trace, target)
    if lost := lost_in(target, trace):
        out.note(lost)
    done = f"wrote {len(trace):,} requests to {literal(target)}"
    out.result(
        {**describe(trace), **more, "path": str(target)}, lambda console: console.print(done, soft_wrap=True)
    )
