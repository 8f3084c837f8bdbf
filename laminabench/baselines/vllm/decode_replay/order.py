"""What a replay is to be: how vLLM is set up, and which requests come when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    """The one line on stdin. Whoever writes it has checked it: this is no interface for people."""

    model: str  # a folder with a config.json
    load_format: str  # "dummy" makes weights up; "auto" reads them
    dtype: str
    tensor_parallel: int
    max_num_seqs: int
    max_model_len: int
    block_size: int | None  # None: vLLM's own
    kv_bytes: int | None  # of all workers together; None: what vLLM finds
    gpu_memory_utilization: float | None
    enforce_eager: bool
    cores: Sequence[int]  # that its threads may run on
    mode: str  # saturate, open or closed
    concurrency: int
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    arrival_s: Sequence[float]  # empty but in open mode

    @classmethod
    def parse(cls, line: str) -> Order:
        """The order on this line; ValueError if it is none."""
        given: Any = json.loads(line)
        if not isinstance(given, dict) or set(given) != set(cls.__dataclass_fields__):
            raise ValueError(f"an order has {', '.join(cls.__dataclass_fields__)} and nothing else")
        return cls(**given)

    def __len__(self) -> int:
        return len(self.prompt_tokens)
