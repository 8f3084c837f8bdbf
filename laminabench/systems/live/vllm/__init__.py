"""Real vLLM, in an environment of its own."""

from __future__ import annotations

from laminabench.requests.replay import LIVE_VLLM, taken_by
from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    taken_by(LIVE_VLLM),
    # vLLM serves first come, first served; its KV grows, and it preempts where memory runs out.
    {"policy": "fifo", "admission": "grow"},
    "it has one batch, and its own order, network and recovery; see --tensor-parallel, --max-num-seqs",
    CALIBRATED="cpu-vllm",
    CALIBRATION_TAKES=frozenset({"deployment"}),
    ENVIRONMENT=True,
    ONE_DEVICE=True,
)
