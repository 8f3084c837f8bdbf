"""What the clients wrote, as Runs beside what the server counted, and these Runs as all of their files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from drive import HERE, ClientError, Place
from load import Counted, Load, Seen
from verdict import Line, lines

# Of each client that writes a result, where it is.
RESULTS = {"vllm": "vllm.json", "aiperf": "aiperf", "guidellm": "guidellm.json"}
TOOLS = ("aiperf", "vllm-bench", "guidellm")


def checked(name: str, place: Place, seen: Seen, counted: Counted, load: Load) -> list[Line]:
    """A client's result as a Run, and that Run as every tool's result."""
    if name not in RESULTS:
        return []
    run = place.home / "runs" / name
    said = _laminabench("import", place.home / RESULTS[name], "--out", run, "--json")["runs"][0]
    summary = said["summary"]
    whole = summary["whole_run"]
    found = Seen(
        f"{seen.client}, imported",
        said["requests"]["completed"],
        _prompt_tokens(run),
        said["tokens_generated"],
        ("TBT, whole run", whole["tbt_ms"]["mean"]),
        None,
        summary["ttft_ms"]["mean"],
        whole["throughput_tokens_per_s"],
    )
    differences = said["differences"]
    sums = "its summary is what its requests come to" if not differences else f"NOT {'; '.join(differences)}"
    compared = Line(found.client, "numbers stated", len(said["stated"]), None, sums, ok=not differences)
    return [
        *lines(found, counted, load),
        compared,
        *(_read_back(run, tool, place, found.client) for tool in TOOLS),
    ]


def _read_back(run: Path, tool: str, place: Place, client: str) -> Line:
    """An export before the tool's own reader."""
    python = place.vllm if tool == "vllm-bench" else place.clients
    target = run.with_name(f"{run.name}.{tool}{'' if tool == 'aiperf' else '.json'}")
    exported = _laminabench("export", run, "--to", tool, "-o", target, "--json")
    what = f"as {tool} reads it"
    if python is None:
        return Line(client, what, 0, exported["tokens"], "there is no such environment")
    said = json.loads(place.run(what, [python, HERE / f"read_{tool.replace('-', '_')}.py", target]))
    ok = said == {"requests": exported["completed"], "tokens": exported["tokens"]}
    return Line(
        client, f"tokens {what}", said["tokens"], exported["tokens"], "equal" if ok else f"NOT: {said}", ok
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
    found: dict[str, Any] = json.loads(done.stdout)
    return found
