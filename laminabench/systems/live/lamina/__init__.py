"""The reference engine on this machine: which choices it takes, and a request made ready for it."""

from __future__ import annotations

from collections.abc import Mapping

from laminabench.listener import Listener
from laminabench.request import ReplayRequest
from laminabench.systems.base import Prepared

TAKES = frozenset(
    {
        *("batches", "pipelining", "pipeline_parallel", "partition", "overlap", "stream_chunks"),
        *("stream_along", "admission", "kv_tokens", "max_num_seqs", "network", "policy", "prefill"),
        *("oversubscribe", "ray", "dtype", "chaos", "timeline", "timeline_window"),
    }
)
ANYWAY: Mapping[str, object] = {"kv_overcommit": 1.0}
WHY_NOT = "times are the clock's, and every worker has its memory to itself, see --kv-tokens"


def prepare(request: ReplayRequest, listener: Listener) -> Prepared:
    """The request settled; a UserError if this machine cannot run it."""
    from laminabench.systems.live.lamina.prepared import prepare as prepared

    del listener
    return prepared(request)
