"""vLLM's attention kernel for CPUs, called directly: how long it takes for a batch that decodes.

    PYTHONPATH=baselines/vllm VLLM_PYTHON -P -m attention_kernel <LINES

A line on stdin is a batch to make ready, as JSON (`Batch`), or empty: call the kernel with it once. Each is
answered by an object on a line of stdout, {"ready": {...}} or {"seconds": t}, or at last
{"error": "...", "kind": "..."}. The end of stdin ends it. Cache, blocks and instruction set are as vLLM has
them (`vllm.v1.attention`); storing the new token and planning the batch are calls of their own there, and not
in the time.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import torch

# Between its output and that of float32 arithmetic on the same numbers, which are of 8 bits or more.
_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Batch:
    """Requests of equal length, and the heads of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    requests: int
    tokens: int  # of each
    block: int  # tokens


def prepare(batch: Batch) -> tuple[Callable[[], object], dict[str, object]]:
    """Return the kernel's call on a filled cache, and facts about it; assert that it computes attention."""
    from vllm import _custom_ops as ops
    from vllm import envs
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    dtype: torch.dtype = getattr(torch, batch.dtype)
    isa = _get_attn_isa(dtype, batch.block, batch.head_dim, "auto")
    if isa == "amx":
        # The operating system has to enable tiles, which a model's first product requests.
        assert torch.cpu._init_amx(), "this process may not use AMX"
    blocks = -(-batch.tokens // batch.block)
    cache = torch.zeros(batch.requests * blocks, batch.kv_heads, batch.block, 2 * batch.head_dim, dtype=dtype)
    # As its backend looks at it: of each block and head first all keys, then all values.
    keys, values = cache.view(len(cache), batch.kv_heads, 2 * batch.block, batch.head_dim).chunk(2, dim=2)
    table = torch.arange(len(cache), dtype=torch.int32).view(batch.requests, blocks)
    torch.manual_seed(0)
    k, v = torch.randn(2, batch.tokens, batch.kv_heads, batch.head_dim).to(dtype)
    for request in range(batch.requests):
        slots = torch.arange(batch.tokens) + request * blocks * batch.block
        ops.cpu_attn_reshape_and_cache(k, v, keys, values, slots, isa)
    q = torch.randn(batch.requests, batch.heads, batch.head_dim).to(dtype)
    out, scale = torch.empty_like(q), batch.head_dim**-0.5
    lengths = torch.full((batch.requests,), batch.tokens, dtype=torch.int32)
    starts = torch.arange(batch.requests + 1, dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=batch.requests,
        num_heads=batch.heads,
        num_kv_heads=batch.kv_heads,
        head_dim=batch.head_dim,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
    )

    def call() -> object:
        return ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table,
            softcap=0,
            scheduler_metadata=metadata,
            s_aux=None,
        )

    call()
    k, v, one = (x.transpose(0, 1).float() for x in (k, v, q[-1:]))
    expected = torch.nn.functional.scaled_dot_product_attention(one, k, v, enable_gqa=True)
    error = float((out[-1].float() - expected[:, 0]).abs().max())
    assert error <= _TOLERANCE, f"its output is {error:g} from attention's"
    return call, {"isa": isa, "threads": torch.get_num_threads(), "error": error}


def main() -> int:
    """Answer every line until there is none."""
    # vLLM, and what it loads, write to stdout as they like.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    call: Callable[[], object] | None = None
    try:
        for line in sys.stdin:
            if line.strip():
                call = None  # the memory of the batch before is free first
                call, ready = prepare(Batch(**json.loads(line)))
                _write(answers, ready=ready)
            else:
                assert call is not None, "a call before its batch"
                started = time.perf_counter()
                call()
                _write(answers, seconds=time.perf_counter() - started)
    except BrokenPipeError:
        return 1
    except Exception as error:
        traceback.print_exc()
        why = (str(error).strip() or "no reason given").splitlines()[0]
        _write(answers, error=why, kind=type(error).__name__)
        return 1
    return 0


def _write(answers: TextIO, **answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
