"""What is printed of boards' memories is what the summary has."""

from __future__ import annotations

from laminabench.present.replay import _memory_lines
from laminabench.runs.summary import Amounts, HbmBytes, MeanAndMax, Memory

GB = 1_000_000_000


def test_three_lines_say_it() -> None:
    memory = Memory(
        hbm_capacity_bytes=96 * GB,
        hbm_share=MeanAndMax(mean=0.71, max=0.76),
        hbm_bytes=HbmBytes(
            kv=MeanAndMax(mean=55 * GB, max=60 * GB),
            qkv=MeanAndMax(mean=10 * GB, max=0),
            fc=MeanAndMax(mean=6 * GB, max=0),
        ),
        lpddr_bytes=MeanAndMax(mean=230 * GB, max=240 * GB),
        wasted_bytes=MeanAndMax(mean=0.75 * GB, max=GB),
        mapping_changes=1234,
        changes_per_iteration=0.1,
        moved_bytes=Amounts(total=4000 * GB, per_iteration=0.39 * GB, max=4_200_000_000),
        compacted_bytes=Amounts(total=30 * GB, per_iteration=0.003 * GB, max=GB),
        moving_s=1.0,
        moving_share=0.021,
        hideable_share=0.25,
        hbm_busy_share=0.6,
        lpddr_busy_share=0.9,
    )
    assert dict(_memory_lines(memory)) == {
        "memory": "HBM 71.0% in use, 76.0% at most: 55 GB KV, 10 GB QKV weights, 6 GB FC weights; "
        "LPDDR 230 GB; 0.75 GB empty in pages",
        "busy": "HBM side 60.0%, LPDDR side 90.0% of the iterations' time",
        "moved": "4,000 GB in 1,234 changes of mapping, 0.39 GB an iteration, 4.2 GB at most; "
        "30 GB of KV copied together; that takes 2.1% of the time, 25.0% of that could pass while LPDDR is "
        "idle",
    }


def test_of_nothing_nothing_is_said() -> None:
    nothing, none_moved = MeanAndMax(mean=None, max=None), Amounts(total=0, per_iteration=None, max=None)
    memory = Memory(
        hbm_capacity_bytes=None,
        hbm_share=nothing,
        hbm_bytes=HbmBytes(kv=nothing, qkv=nothing, fc=nothing),
        lpddr_bytes=nothing,
        wasted_bytes=nothing,
        mapping_changes=0,
        changes_per_iteration=None,
        moved_bytes=none_moved,
        compacted_bytes=none_moved,
        moving_s=0.0,
        moving_share=None,
        hideable_share=None,
        hbm_busy_share=None,
        lpddr_busy_share=None,
    )
    assert dict(_memory_lines(memory))["memory"].startswith("HBM - in use, - at most: - KV")
