"""Client results as Runs, compared with the server's counters, and exported again to all their formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from drive import HERE, ClientError, Place
from load import Counted, Load, Reported
from verdict import Line, lines

# Of each client that writes a result, where it is.
RESULTS = {"vllm": "vllm.json", "aiperf": "aiperf", "guidellm": "guidellm.json"}
TOOLS = ("aiperf", "vllm-bench", "guidellm")


def checked(name: str, place: Place, report: Reported, counted: Counted, load: Load) -> list[Line]:
    """Return a client's result as a Run, and that Run as every tool's result."""
    if name not in RESULTS:
        return []
    run = place.home / "runs" / name
    imported = _laminabench("import", place.home / RESULTS[name], "--out", run, "--json")["runs"][0]
    summary = imported["summary"]
    whole_run = summary["whole_run"]
    read = Reported(
        f"{report.client}, imported",
        imported["requests"]["completed"],
        _prompt_tokens(run),
        imported["tokens_generated"],
        ("TBT, whole run", whole_run["tbt_ms"]["mean"]),
        None,
        summary["ttft_ms"]["mean"],
        whole_run["throughput_tokens_per_s"],
    )
    differences = imported["differences"]
    sums = "its summary is what its requests come to" if not differences else f"NOT {'; '.join(differences)}"
    compared = Line(read.client, "numbers stated", len(imported["stated"]), None, sums, ok=not differences)
    return [
        *lines(read, counted, load),
        compared,
        *(_read_back(run, tool, place, read.client) for tool in TOOLS),
    ]


def _read_back(run: Path, tool: str, place: Place, client: str) -> Line:
    """Return an export before the tool's own reader."""
    python = place.vllm if tool == "vllm-bench" else place.clients
    target = run.with_name(f"{run.name}.{tool}{'' if tool == 'aiperf' else '.json'}")
    exported = _laminabench("export", run, "--to", tool, "-o", target, "--json")
    what = f"as {tool} reads it"
    if python is None:
        return Line(client, what, 0, exported["tokens"], "there is no such environment")
    values = json.loads(place.run(what, [python, HERE / f"read_{tool.replace('-', '_')}.py", target]))
    ok = values == {"requests": exported["completed"], "tokens": exported["tokens"]}
    return Line(
        client,
        f"tokens {what}",
        values["tokens"],
        exported["tokens"],
        "equal" if ok else f"NOT: {values}",
        ok,
    )


def _prompt_tokens(run: Path) -> int:
    # Of laminabench's own environment, which runs this.
    import pyarrow.parquet as pq

    return int(sum(pq.read_table(run / "requests.parquet")["prompt_tokens"].to_pylist()))


def _laminabench(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "laminabench", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClientError(f"laminabench {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
