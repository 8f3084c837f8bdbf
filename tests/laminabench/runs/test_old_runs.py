"""Runs that older versions wrote are read: what they lack is not known, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laminabench.runs.manifest import Manifest
from laminabench.runs.read import read_manifest, read_run
from laminabench.runs.summary import ClientSummary, EngineSummary
from laminabench.runs.write import write_run
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.json import to_json
from laminabench.workflows.compare.recorded import recorded

# Before energy, the 99.9th percentile, requests that fail, boards and Runs that end early.
FIRST = """{
  "format": "laminabench-run", "format_version": 1,
  "laminabench": {"version": "0.1.0", "commit": null},
  "command": "laminabench replay --trace few.csv", "seed": 0,
  "trace": {"name": "few", "source": "file", "sha256": "abab", "origin": "few.csv", "license": "",
    "citation": "", "tokenizer": "", "has_arrivals": true, "block_tokens": 512, "notes": [], "requests": 9},
  "transforms": {"num_requests": null, "window": [0.0, null]},
  "workload": {"mode": "saturate", "concurrency": null, "policy": "fifo", "slo_tbt_ms": 100.0},
  "system": "lamina",
  "deployment": {"name": "2xh100+4xh20", "dop": [2, 4], "usd_per_hour": 40.64,
    "devices": [{"device": "h100", "count": 2,
      "price": {"usd": 11.06, "basis": "rent", "source": "s", "date": "d"}}]},
  "model": {"name": "llama3-70b", "layers": 80},
  "backend": "modelled",
  "coefficients": [{"term": "gemm", "device": "h100", "set": "vllm-0.14", "coefficients": {"a": 1e-06}}],
  "host": {"platform": "Linux", "python": "3.11.7", "cpu": null, "cores": 2},
  "wall_s": 0.5,
  "summary": {"throughput_tokens_per_s": 1000.0, "mean_batch": 8.0, "mean_batches": [8.0],
    "tbt_ms": {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 2.0, "max": 3.0},
    "slo": {"tbt_ms": 100.0, "token_attainment": 1.0, "request_attainment": 1.0,
      "goodput_tokens_per_s": 1000.0},
    "cost": {"usd_per_hour": 40.64, "usd_per_million_tokens": 11.3, "tokens_per_usd": 88582.7},
    "requests": {"completed": 9, "rejected": 0, "unfinished": 0},
    "tokens_generated": 90, "duration_s": 1.0,
    "window": {"start_s": 0.0, "end_s": 1.0, "kind": "queue_never_empty"},
    "time_shares": {"model": 0.5, "attention": 0.2, "network": 0.1, "host": 0.1, "waiting": 0.1,
      "overlapped": 0.0},
    "preemptions": 0}
}"""
# Of a server, as the second version says it, with a key that no version had.
SECOND = {
    "format_version": 2,
    "system": "openai",
    "backend": "live",
    "deployment": {"name": "a url", "usd_per_hour": None, "power_w": None, "devices": [], "url": "http://a"},
    "model": {"name": "served"},
    "coefficients": [],
    "partial": {"why": "the server is gone", "at_s": 0.7},
    "of_another_version": [1, {"two": 2}],
}
OF_A_CLIENT = {
    "preemptions": None,
    "lateness_ms": None,
    "attempts": {"sent": 9, "retried": 0, "failed": 0, "by_error": {}, "by_status": {"200": 9}},
}


@pytest.fixture
def written(tmp_path: Path, manifest_of: Callable[..., Manifest]) -> Path:
    """A Run of today."""
    flat = np.full(9, 1e-3)
    trace = Trace(np.zeros(9), np.full(9, 5, np.int32), np.full(9, 10, np.int32), TraceMeta("few"))
    spec = Spec(1, Timing(flat, flat, flat, flat, flat * 1e-3), 500, 8)
    write_run(tmp_path / "run", simulate(trace, spec, Offered()), trace, manifest_of(trace))
    return tmp_path / "run"


def made_old(directory: Path, **changes: object) -> Path:
    """With the tables and totals that it has, and an older version's words about them."""
    path = directory / "run.json"
    ours = json.loads(path.read_text())
    old = json.loads(FIRST) | {name: ours[name] for name in ("totals", "tables")} | changes
    path.write_text(json.dumps(old))
    return directory


def test_what_the_first_version_wrote(written: Path) -> None:
    manifest = read_run(made_old(written)).manifest
    assert (manifest.deployment.power_w, manifest.partial) == (None, None)
    assert manifest.summary.energy.rated_w is None
    assert manifest.summary.tbt_ms.p99_9 is None
    assert manifest.summary.requests.failed == 0
    assert isinstance(manifest.summary, EngineSummary)
    assert not manifest.summary.memory
    reported, again = json.loads(FIRST)["summary"], to_json(manifest.summary)
    assert {name: again[name] for name in ("slo", "cost", "window", "time_shares")} == {
        name: reported[name] for name in ("slo", "cost", "window", "time_shares")
    }
    assert recorded(written, None).estimates["joules_per_token"].value is None


def test_what_the_second_version_wrote_of_a_server(written: Path) -> None:
    summary = json.loads(FIRST)["summary"] | OF_A_CLIENT
    manifest = read_manifest(made_old(written, **SECOND, summary=summary))
    assert manifest.partial is not None
    assert manifest.partial.ended == "ended after 0.7 s: the server is gone"
    assert isinstance(manifest.summary, ClientSummary)
    assert manifest.summary.lateness_ms is None
    assert manifest.summary.attempts.by_status == {"200": 9}
    assert not manifest.summary.itl_ms
