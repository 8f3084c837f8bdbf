"""Calls of the simulator, and its tables in ticks."""

from __future__ import annotations

from typing import Any

import numpy as np

from laminabench import _sim

TABLES = (
    *("first_slice", "mid_slice", "last_slice", "q_lead", "q_transfer", "kv_transfer", "out_transfer"),
    *("migration", "attention_rows", "attention_fixed"),
)


def in_ticks(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with seconds as ticks (-1 for NaN) and columns as lists; the reference's unchanged."""

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(key, inner) for key, inner in value.items()}
        if isinstance(value, np.ndarray):
            if name.endswith("_s"):
                value = np.where(np.isnan(value), -1, np.round(np.nan_to_num(value) * 1e10)).astype(np.int64)
            return value.tolist()
        return round(value * 1e10) if isinstance(value, float) else value

    ticks: dict[str, Any] = plain("", result)
    # The order of stints that end at the same boundary is unspecified.
    rows = sorted(zip(*ticks["stints"].values(), strict=True), key=lambda row: row[0])
    ticks["stints"] = dict(
        zip(ticks["stints"], ([row[i] for row in rows] for i in range(len(ticks["stints"]))), strict=True)
    )
    return ticks


# Arguments that `_sim.run` takes for each deployment separately.
OF_DEPLOYMENT = (
    *("batches", "pipelining", "own_attention", "layers", "pools", "tokens_per_pool", "block_tokens"),
    *("request_tokens", "admission", "max_requests", "min_batch", "prompt_budget", "prefix_sharing", "costs"),
)


SERVING = (
    *("host_fixed", "host_per_request", "host_async", "gap_per_request", "recompute_per_token"),
    *("request_in", "request_serial", "out", "graph_rows", "launch"),
)
LINK = ("latency", "per_token", "window", "windowed_per_token")
LIMITS = (
    "batches",
    "pools",
    "tokens_per_pool",
    "block_tokens",
    "max_requests",
    "request_tokens",
    "min_batch",
)


def _fill(bound: Any, values: dict[str, Any]) -> Any:
    """Set fields of a bound class; those that are themselves bound from dictionaries."""
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(getattr(bound, name), value)
        else:
            setattr(bound, name, value)
    return bound


def native_costs(costs: dict[str, Any]) -> _sim.Costs:
    """Return costs as the simulator takes them."""
    given = dict(costs)
    bound = _sim.Costs(len(given["first_slice"]) - 1)
    given["combine"] = np.full(len(given["first_slice"]), given["combine"])
    given["serving"] = {name: given.pop(name) for name in SERVING}
    if windowed := given.pop("windowed", None):
        given["windows"] = {"tokens": windowed["window"]} | {
            name: windowed[name] for name in ("per_token", "per_pair")
        }
    if measured := given.pop("measured", None):
        grids = {name: _sim.Grid(**grid) for name, grid in measured.items() if name != "beyond"}
        bound.measured = _fill(_sim.MeasuredAttention(), grids | {"beyond": measured["beyond"]})
    return _fill(bound, given)


def native_deployment(given: dict[str, Any]) -> _sim.Deployment:
    """Return a deployment as the simulator takes it."""
    rest = dict(given)
    bound = _sim.Deployment(rest.pop("pipelining"), rest.pop("admission"))
    rest["limits"] = {name: rest.pop(name) for name in LIMITS}
    bound.costs = native_costs(rest.pop("costs"))
    if pool := rest.pop("pool", None):
        engine = dict(pool)
        bound.pool = _sim.DeploymentPool()
        _fill(bound.pool, {"link": {name: engine.pop(name) for name in LINK}, "pulled": engine.pop("pulled")})
        bound.pool.engine = native_deployment(engine)
    return _fill(bound, rest)


def native(**given: Any) -> dict[str, Any]:
    """Call `_sim.run` with one deployment, or with `instances`: a list of their differences."""
    common = {name: value for name, value in given.items() if name not in (*OF_DEPLOYMENT, "instances")}
    each = {name: given[name] for name in OF_DEPLOYMENT}
    deployments = [native_deployment({**each, "copies": 1, **some}) for some in given.get("instances", [{}])]
    return _sim.run(deployments=deployments, **common)


def flat_costs(most: int, **given: Any) -> dict[str, Any]:
    """Return costs that are only what is given; a table may be given as one number for all sizes."""
    costs: dict[str, Any] = {
        **dict.fromkeys(TABLES, 0),
        "attention_per_token": 0.0,
        "combine": 0,
        "stream_chunks": 1,
        "stream_by_request": True,
        "chunk_overhead": 0,
        "host_async": False,
        "transfer_latency": 0,
        "device_tokens": 2**62,
        "paged_per_token": 0.0,
        "host_fixed": 0,
        "host_per_request": 0.0,
        "gap_per_request": 0.0,
        "recompute_per_token": 0.0,
        **dict.fromkeys(("request_in", "request_serial", "out", "graph_rows", "launch"), 0),
        **given,
    }
    for name in TABLES:
        costs[name] = np.broadcast_to(np.asarray(costs[name], np.int64), most + 1).copy()
    per_token = np.asarray(costs["attention_per_token"], np.float64)
    costs["attention_per_token"] = np.broadcast_to(per_token, most + 1).copy()
    return costs


def arguments(**given: Any) -> dict[str, Any]:
    """Return arguments of `native`: the given ones, and neutral defaults."""
    rows = len(given["prompt"])
    result: dict[str, Any] = {
        "arrival": np.zeros(rows, np.int64),
        "prefix_offsets": np.zeros(0, np.int64),
        "prefix_ids": np.zeros(0, np.int64),
        "prefix_block_tokens": 4,
        "mode": "saturate",
        "concurrency": 1,
        "batches": 1,
        "pipelining": "rotational",
        "own_attention": False,
        "layers": 1,
        "pools": 1,
        "tokens_per_pool": 2**40,
        "block_tokens": 1,
        "request_tokens": 0,
        "admission": "reserve",
        "max_requests": 64,
        "min_batch": 1,
        "prompt_budget": 0,
        "prefix_sharing": True,
        "router": "round-robin",
        "global_queue": False,
        "threads": 1,
        "keep_iterations": True,
        "priority": None,
        "record_from": 0,
        "record_to": 0,
        "progress": None,
        "check": False,
        **given,
    }
    result["arrival"] = np.asarray(result["arrival"], np.int64)
    result["prompt"] = np.asarray(result["prompt"], np.int32)
    result["output"] = np.asarray(result["output"], np.int32)
    most = max(result["max_requests"], result["prompt_budget"])
    result["costs"] = flat_costs(most, **result.get("costs", {}))
    return result


def random_arguments(seed: int, **fixed: Any) -> dict[str, Any]:
    """Return a deployment and a workload of some hundred requests, in memory so small that they wait."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(100, 400))
    batches = int(rng.integers(1, 6))
    prompt = rng.integers(1, 200, rows)
    output = rng.geometric(1 / 20, rows)
    block = int(rng.choice([1, 4, 16]))
    most = int(rng.integers(8, 200))
    sizes = np.arange(most + 1)
    own = [name for name in TABLES if name != "attention_rows"]
    tables = {name: rng.integers(0, 300) + rng.integers(0, 20) * sizes for name in own}
    tables["q_lead"] = np.minimum(tables["q_lead"], tables["mid_slice"])
    costs = tables | {
        "attention_per_token": rng.random(most + 1),
        "combine": int(rng.integers(0, 20)),
        "host_fixed": int(rng.integers(0, 5000)),
        "host_per_request": float(rng.random() * 50),
        "recompute_per_token": float(rng.random() * 5),
    }
    given: dict[str, Any] = {
        "arrival": np.sort(rng.integers(0, 10 ** int(rng.integers(4, 8)), rows)),
        "prompt": prompt,
        "output": output,
        "mode": str(rng.choice(["saturate", "open", "closed"])),
        "concurrency": int(rng.integers(1, 100)),
        "batches": batches,
        "pipelining": str(rng.choice(["rotational", "fixed"])),
        "layers": int(rng.integers(1, 9)),
        "pools": int(rng.integers(1, 5)),
        "tokens_per_pool": int(rng.choice([220, 500, 1000, 3000])),
        "block_tokens": block,
        "admission": str(rng.choice(["reserve", "grow"])),
        "max_requests": most,
        "costs": costs,
        "check": True,
    }
    costs["attention_rows"] = rng.integers(0, 300) + rng.integers(0, 20) * sizes
    return arguments(**(given | fixed))
