"""A fork server whose prefill workers compute nothing and send KV of generated content at a fixed rate.

python -m laminabench.bench.prefill_traffic TOKENS_PER_S
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from lamina.cluster import fork_server, prefill_worker
from lamina.convert import AttentionOp
from lamina.model.prefill import CHUNK, Deliver, Passed, PromptTokens
from lamina.operators import Attended


class MadeUpPrefill:
    """A replacement of lamina.model.Prefill that delivers the same pieces in the same order."""

    def __init__(self, tokens_per_s: float, dtype: torch.dtype, attentions: Sequence[AttentionOp]) -> None:
        self._attentions = attentions
        self._layer_s = 1 / (tokens_per_s * len(attentions))  # of a token
        first = attentions[0]
        vectors = 1 if first.latent else 2
        self._kv = torch.zeros(vectors, CHUNK, first.kv_heads, first.head_dim, dtype=dtype)
        self._due_s = 0.0

    def call(self, some: Sequence[PromptTokens], came: None, deliver: Deliver) -> Passed:  # noqa: ARG002
        """Deliver every layer when it is due."""
        count = sum(len(one.tokens) for one in some)
        for op in self._attentions:
            now = time.monotonic()
            # Delays are not caught up, or there would be bursts of traffic.
            self._due_s = max(self._due_s, now) + count * self._layer_s
            time.sleep(self._due_s - now)
            deliver(op.layer, *self._kv[:, :count])
        for run, tokens in some:
            run.done += len(tokens)
        return Passed((), None)


if __name__ == "__main__":
    rate = float(sys.argv[1])

    def made_up(_slices: object, attended: Attended, **_how: object) -> MadeUpPrefill:
        return MadeUpPrefill(rate, torch.bfloat16, attended.attentions)

    # Workers are forked from here.
    prefill_worker.Prefill = made_up  # type: ignore
    fork_server.main()
