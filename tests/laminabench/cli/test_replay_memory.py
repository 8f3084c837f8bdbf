"""What is printed of boards' memories is what the summary has."""

from __future__ import annotations

from typing import Any

from laminabench.cli.replay_memory import memory_lines

GB = 1e9


def spread(mean: float | None, most: float | None) -> dict[str, float | None]:
    return {"mean": mean, "max": most}


def test_three_lines_say_it() -> None:
    memory: dict[str, Any] = {
        "hbm_share": spread(0.71, 0.76),
        "hbm_bytes": {"kv": spread(55 * GB, 60 * GB), "qkv": spread(10 * GB, 0), "fc": spread(6 * GB, 0)},
        "lpddr_bytes": spread(230 * GB, 240 * GB),
        "wasted_bytes": spread(0.75 * GB, GB),
        "mapping_changes": 1234,
        "moved_bytes": {"total": 4000 * GB, "per_iteration": 0.39 * GB, "max": 4.2 * GB},
        "compacted_bytes": {"total": 30 * GB, "per_iteration": 0.003 * GB, "max": GB},
        "moving_share": 0.021,
        "hideable_share": 0.25,
        "hbm_busy_share": 0.6,
        "lpddr_busy_share": 0.9,
    }
    assert dict(memory_lines(memory)) == {
        "memory": "HBM 71.0% in use, 76.0% at most: 55 GB KV, 10 GB QKV weights, 6 GB FC weights; "
        "LPDDR 230 GB; 0.75 GB empty in pages",
        "busy": "HBM side 60.0%, LPDDR side 90.0% of the iterations' time",
        "moved": "4,000 GB in 1,234 changes of mapping, 0.39 GB an iteration, 4.2 GB at most; "
        "30 GB of KV copied together; that takes 2.1% of the time, 25.0% of that could pass while LPDDR is "
        "idle",
    }


def test_of_nothing_nothing_is_said() -> None:
    nothing, none_moved = spread(None, None), {"total": 0, "per_iteration": None, "max": None}
    memory: dict[str, Any] = {
        "hbm_bytes": dict.fromkeys(("kv", "qkv", "fc"), nothing),
        **dict.fromkeys(("hbm_share", "lpddr_bytes", "wasted_bytes"), nothing),
        **dict.fromkeys(("moving_share", "hideable_share", "hbm_busy_share", "lpddr_busy_share")),
        "mapping_changes": 0,
        **dict.fromkeys(("moved_bytes", "compacted_bytes"), none_moved),
    }
    assert dict(memory_lines(memory))["memory"].startswith("HBM - in use, - at most: - KV")
