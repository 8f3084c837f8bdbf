"""What a reader should know of a Run in another tool's words."""

from __future__ import annotations

from msgspec import UNSET

from laminabench.runs.manifest import NUMBERS
from laminabench.runs.read import Run


def of_export(run: Run, tool: str) -> list[str]:
    """Before anybody compares the numbers with the tool's own."""
    notes = []
    manifest, calls = run.manifest, run.outcome.calls
    if manifest.backend != "live":
        notes.append(
            f"this Run is {NUMBERS[manifest.backend]}: the file says so in its name and in its labels"
        )
    if calls is None and manifest.summary.ttft_ms is UNSET:
        notes.append(
            "prompts were not computed in this Run: what the file calls TTFT is waiting for a place and one "
            "iteration"
        )
    if manifest.workload.mode == "saturate":
        notes.append(
            "all requests came at the start of this Run: TTFT and latency have the queue's length in them"
        )
    if manifest.partial:
        notes.append(f"this Run is {manifest.partial.sentence}")
    if tool == "guidellm":
        notes.append("guidellm's file has when the first and the last token came, not those between")
    if calls is not None and calls["even"].any():
        notes.append(
            "some tokens of this Run were dealt evenly over pieces: gaps between single tokens are a guess"
        )
    return notes
