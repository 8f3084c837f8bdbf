"""A small sweep, plan and validation as their commands write them, with hostile names."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from laminabench.util.json import json_safe
from laminabench.workflows.plan.stored import write_plan
from laminabench.workflows.sweep.rows import TABLE, row, write
from laminabench.workflows.sweep.store import opened
from laminabench.workflows.validate.stored import VALIDATION, marked

# A name that becomes markup wherever it is not escaped.
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2> %{x} <b>bold"
COUNTS, NETWORKS, BATCHES = (2, 3, 4), ("fhbn", HOSTILE), (1, 2)
GRID = list(itertools.product(COUNTS, NETWORKS, BATCHES))
FLAGS = ["--trace", "azure-conv", "--deployment", "2xh100+2xh20"]


def throughput(count: int, network: str, batches: int) -> float:
    """Return a point's throughput."""
    return 1000.0 * count + 100 * batches + 10 * NETWORKS.index(network)


def keep_sweep(folder: Path, *, finished: bool = True) -> Path:
    """Write a sweep in which every point with three attention workers and two batches failed."""
    identity = {
        "laminabench": "1",
        "vary": ["attention-workers=2..4", f"network=fhbn,{HOSTILE}", "batches=1,2"],
        "flags": FLAGS,
        "points": "x",
    }
    manifest = {
        "identity": identity,
        "points": len(GRID),
        "finished": None,
        "command": f"laminabench sweep --trace '{HOSTILE}'",
        "costs": {"vllm-0.14": {"title": "t"}},
    }
    keys = [str(index) for index in range(len(GRID))]
    rows = [
        row(
            {"attention-workers": count, "network": network, "batches": batches},
            _result(count, network, batches),
        )
        for count, network, batches in GRID
    ]
    with opened(folder, manifest, keys) as store:
        for key, each in list(zip(keys, rows, strict=True))[: None if finished else 5]:
            store.put(key, each)
        if finished:
            write(rows, folder / TABLE)
            store.describe({**manifest, "finished": len(GRID)})
    return folder


def _result(count: int, network: str, batches: int) -> dict[str, Any]:
    head = {"backend": "modelled", "system": "lamina", "deployment": f"2xh100+{count}xh20"}
    if (count, batches) == (3, 2):
        return {**head, "error": f"3 do not split: {HOSTILE}"}
    rate = throughput(count, network, batches)
    return {
        **head,
        "throughput_tokens_per_s": rate,
        "mean_batch": 10.0 * count,
        "tbt_ms": {"p50": 20.0 + count, "p99": 30.0 + count},
        "slo": {"token_attainment": 0.9},
        "cost": {"usd_per_million_tokens": 1e5 / rate},
    }


# candidate, system, devices, tokens/s, TBT p99
CANDIDATES = (
    ("vllm 4xh100", "vllm", {"h100": 4}, 7000.0, 46.0),
    ("lamina 2xh100+4xh20, 2 batches", "lamina", {"h100": 2, "h20": 4}, 7500.0, 60.0),
    ("lamina 4xh100+4xh20, 3 batches", "lamina", {"h100": 4, "h20": 4}, 12000.0, 62.0),
    ("vllm 8xh20", "vllm", {"h20": 8}, 6000.0, 55.0),
    (f"afd {HOSTILE}", "afd", {"h100": 1, "h20": 2}, 3000.0, 40.0),
    ("vllm 2xh20", "vllm", {"h20": 2}, 2500.0, 130.0),
    ("vllm 1xh100", "vllm", {"h100": 1}, 900.0, 30.0),
)
PRICES = {"h100": 11.06, "h20": 4.63}
LIMIT_MS = 100.0


def keep_plan(folder: Path) -> Path:
    facts = {
        "backend": "modelled",
        "trace": {"name": HOSTILE, "source": "profile", "sha256": "0", "requests": 300},
        "model": "llama3-70b",
        "mode": "saturate",
        "slo_tbt_p99_ms": LIMIT_MS,
        "budget_usd_per_hour": 81.28,
        "devices": [
            {"name": name, "price": {"usd": usd, "basis": "rent", "source": "made up", "date": "2026"}}
            for name, usd in PRICES.items()
        ],
        "answers": [
            {
                "costs": "vllm-0.14",
                "replayed": [_candidate(*each) for each in CANDIDATES],
                "prices": [],
                "search": {"considered": 20, "counts": {"does_not_fit": 8, "dearer": 5, "replayed": 7}},
            }
        ],
    }
    write_plan(folder, facts)
    return folder


def _candidate(name: str, system: str, devices: dict[str, int], rate: float, tbt_ms: float) -> dict[str, Any]:
    gains = {"throughput_gain": 0.05, "tbt_p99_gain": -0.01}
    binds = [
        {"resource": "KV memory", **gains},
        {"resource": "host time", "throughput_gain": 0.01, "tbt_p99_gain": 0},
    ]
    return {
        "candidate": name,
        "system": system,
        "deployment": name,
        "devices": devices,
        "tokens_per_s": rate,
        "mean_batch": 100.0,
        "tbt_p50_ms": tbt_ms - 2,
        "tbt_p99_ms": tbt_ms,
        "token_attainment": 0.99,
        "keeps_up": True,
        "assumed_devices": ["h20"] if "h20" in devices else [],
        "binds": binds if tbt_ms <= LIMIT_MS else None,
    }


def keep_validation(folder: Path) -> Path:
    errors = {"mean": -3.5, "p50": 0.5, "p90": 1.0, "p99": -2.5, "by_request": 4.0}
    result = {
        "recorded": [
            {
                "recording": HOSTILE,
                "costs": "vllm-0.19",
                "constants": "nothing",
                "gap_ms": 0.0,
                "errors_percent": dict.fromkeys(("ttft", "latency", "tpot"), errors),
                "missed": ["ttft"],
                "others": {"another": {"ttft": [1.5], "latency": [2.5], "tpot": [0.5, 0.6, 0.7, 0.8]}},
            }
        ],
        "published": [
            {
                "model": "llama3-8b",
                "deployment": "1xh200",
                "costs": "vidur-2024",
                "measured_ms": 833.4,
                "predicted_ms": 935.16,
                "error_percent": 12.21,
                "why_not": "",
            }
        ],
        "serving": {
            "groups": [
                {
                    "device": "h200",
                    "what": what,
                    "versions": ["0.10"],
                    "off": off,
                    "errors": {
                        metric: {"points": 3, "median": 4.25, "mean": -1.5, "worst": 9.75}
                        for metric in ("tpot", "ttft")
                    },
                    "target": None if off else 7.0,
                    "missed": False,
                }
                for what, off in (("gpt-oss-120b", ""), ("llama", "nobody knows"))
            ]
        },
        "twin": [
            {
                "twin": "--trace azure-conv",
                "deployment": "1xcpu-core",
                "load": "azure-conv",
                "measured": {"tokens/s": {"value": 100.0, "interval": [95.0, 105.0]}},
                "predicted": {"tokens/s": 104.0},
                "errors_percent": {"tokens/s": 4.0},
                "missed": [],
            }
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json_safe(marked(result, f"laminabench validate -o '{HOSTILE}'")))
    (folder / VALIDATION.file).write_text(text)
    return folder


def keep_all(root: Path) -> Path:
    """Write one of each, and a sweep that is under way."""
    keep_sweep(root / "sweeps" / "one")
    keep_sweep(root / "sweeps" / "half", finished=False)
    keep_plan(root / "plans" / "one")
    keep_validation(root / "validation")
    return root
