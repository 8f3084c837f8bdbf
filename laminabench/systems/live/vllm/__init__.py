"""Real vLLM, in an environment of its own: which choices it takes, and a request made ready for it."""

from __future__ import annotations

from collections.abc import Mapping

from laminabench.listener import Listener
from laminabench.request import ReplayRequest
from laminabench.systems.base import Prepared

TAKES = frozenset(
    {
        *("tensor_parallel", "max_num_seqs", "max_model_len", "block_size", "kv_tokens", "dtype"),
        *("gpu_memory_utilization", "enforce_eager", "runner_timeout"),
    }
)
# vLLM serves who came first; its KV grows, and it preempts where memory runs out.
ANYWAY: Mapping[str, object] = {"policy": "fifo", "admission": "grow"}
WHY_NOT = "it has one batch, and its own order, network and recovery; see --tensor-parallel, --max-num-seqs"


def prepare(request: ReplayRequest, listener: Listener) -> Prepared:
    """The request settled; a UserError if this machine cannot run it."""
    from laminabench.systems.live.vllm.prepared import prepare as prepared

    del listener
    return prepared(request)
