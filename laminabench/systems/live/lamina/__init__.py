"""The reference engine on this machine: a replay by real clocks, and `laminabench serve`."""

from __future__ import annotations

from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    frozenset(
        {
            *("batches", "pipelining", "pipeline_parallel", "experts", "partition", "overlap", "absorb"),
            *(
                "min_batch",
                "stream_chunks",
                "stream_along",
                "admission",
                "kv_tokens",
                "kv_overcommit",
                "max_num_seqs",
                "max_batched_tokens",
                "network",
                "policy",
                "prefill",
            ),
            *("slo_ttft_ms", "oversubscribe", "ray", "dtype", "chaos", "timeline", "timeline_window"),
            *("kv_dtype", "instances", "router", "queue", "metrics_port", "emulate"),
        }
    ),
    {},
    "times are the clock's, and every worker has its memory to itself, see --kv-tokens",
    CALIBRATED="cpu-core",
    CALIBRATION_TAKES=frozenset({"ray", "device"}),
)
