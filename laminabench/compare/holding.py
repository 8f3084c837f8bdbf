"""Which requests every system could hold: the one that rejects a request has an easier load."""

from __future__ import annotations

import numpy as np

from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace


def longest_held(name: str, setup: Setup) -> int:
    """Tokens of the longest request that fits, a block to spare; a UserError if not even the model does."""
    spec = system(name).build(setup).spec
    return spec.tokens_per_pool // spec.block_tokens * spec.block_tokens - spec.block_tokens


def without_longer(trace: Trace, longest: int) -> Trace:
    """The requests that have at most so many tokens in the end."""
    lengths = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    fitting = np.flatnonzero(lengths <= longest)
    return trace if len(fitting) == len(trace) else trace.take(fitting)
