from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

def run(
    *,
    arrival: NDArray[np.int64],
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    prefix_offsets: NDArray[np.int64],
    prefix_ids: NDArray[np.int64],
    prefix_block_tokens: int,
    mode: str,
    concurrency: int,
    batches: int,
    pipelining: str,
    layers: int,
    pools: int,
    tokens_per_pool: int,
    block_tokens: int,
    admission: str,
    max_requests: int,
    costs: dict[str, Any],
    priority: Callable[[int], int] | None,
    record_from: int,
    record_to: int,
    progress: Callable[[int], None] | None,
    check: bool,
) -> dict[str, Any]: ...
