"""Real vLLM, in an environment of its own."""

from __future__ import annotations

from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    frozenset(
        {
            *("tensor_parallel", "max_num_seqs", "max_model_len", "block_size", "kv_tokens", "dtype"),
            *("gpu_memory_utilization", "enforce_eager", "runner_timeout", "metrics_port"),
            *("prefill", "max_batched_tokens", "slo_ttft_ms", "prefix_sharing"),
        }
    ),
    # vLLM serves who came first; its KV grows, and it preempts where memory runs out.
    {"policy": "fifo", "admission": "grow"},
    "it has one batch, and its own order, network and recovery; see --tensor-parallel, --max-num-seqs",
    CALIBRATED="cpu-vllm",
    CALIBRATION_TAKES=frozenset({"deployment"}),
    ENVIRONMENT=True,
    ONE_DEVICE=True,
)
