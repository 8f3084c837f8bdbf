"""Export of a Run as a file, or a folder of files, that another tool reads."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET

from laminabench.interchange.benchmark import Table
from laminabench.interchange.calls import Calls, calls_of
from laminabench.interchange.run_info import RunInfo, mark_of
from laminabench.interchange.tools import TOOLS
from laminabench.runs.manifest import NUMBERS
from laminabench.runs.read import Run
from laminabench.runs.replace import replacing_directory, require_replaceable
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.json import as_number


def exported(run: Run, tool: str) -> tuple[dict[str, list[Table]], Calls]:
    """Return the files, each a list of lines by name or suffix, and the calls in them."""
    calls = calls_of(run)
    if not calls.done.any():
        raise UserError(
            "export-nothing-done",
            f"no request of {run.directory} was answered, so there is nothing to summarise",
        )
    began_s = 0.0 if run.outcome.calls is None else _first_sent(run)
    duration_s = max(calls.end_s, run.outcome.end_s - began_s)
    return TOOLS[tool].export(calls, RunInfo(run.directory.resolve().name, run.manifest, duration_s)), calls


def _first_sent(run: Run) -> float:
    assert run.outcome.calls is not None
    sent_s = run.outcome.calls["sent_s"]
    return float(np.nanmin(sent_s))


def target_of(run: Run, tool: str, target: Path | None) -> Path:
    """Return the target's path; numbers that were not measured are marked in its name."""
    mark = mark_of(run.manifest)
    suffix = "" if TOOLS[tool].folder else ".json"
    if target is None:
        name = run.directory.resolve().name
        return Path(f"{name}{f'-{mark}' if mark else ''}.{tool}{suffix}")
    if target.name and mark.lower() not in target.name.lower():
        return target.with_name(f"{target.stem}-{mark}{target.suffix}")
    return target


def write(files: dict[str, list[Table]], target: Path, *, folder: bool) -> int:
    """Write all files or none; return the number of bytes."""
    # NaN and infinity become null.
    encode = msgspec.json.Encoder(enc_hook=as_number).encode_lines
    texts = {name: encode(lines) for name, lines in files.items()}
    if folder:
        require_replaceable(target, lambda: _is_ours(target, set(texts)), "an export of a Run")
        with replacing_directory(target) as temporary_folder:
            for name, text in texts.items():
                (temporary_folder / name).write_bytes(text)
    else:
        (text,) = texts.values()
        with replacing(target) as temporary:
            temporary.write_bytes(text)
    return sum(map(len, texts.values()))


def _is_ours(target: Path, names: set[str]) -> bool:
    """Return whether a folder has exactly an export's files, with our mark in them."""
    if {path.name for path in target.iterdir()} != names:
        return False
    return any(
        "laminabench_version" in (target / name).read_text(encoding="utf-8", errors="replace")
        for name in names
    )


def notes_of(run: Run, tool: str) -> list[str]:
    """Return what to know of a Run before its numbers are compared with the tool's own."""
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
            "some tokens of this Run were split evenly over pieces: gaps between single tokens are a guess"
        )
    return notes
