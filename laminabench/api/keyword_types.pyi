"""Made by ci/keywords.py from laminabench/requests."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

class ReplayKeywords(TypedDict, total=False):
    mode: Literal["closed", "open", "saturate"]
    concurrency: int
    slo_tbt_ms: float
    slo_ttft_ms: float
    policy: str
    system: Literal["lamina", "lamina-v1", "vllm", "h2m2", "afd", "openai"]
    deployment: str
    model: str | os.PathLike[str]
    backend: Literal["live", "modelled"]
    costs: str | os.PathLike[str]
    attention_kernel: Mapping[str, float | str] | str | Sequence[str]
    network: str
    batches: int | Literal["auto"]
    min_batch: int
    pipelining: Literal["fixed", "pingpong", "rotational", "serial"]
    pipeline_parallel: int
    experts: Literal["ep", "tp"]
    partition: Literal["heads", "requests"]
    overlap: bool
    stream_chunks: int
    stream_along: Literal["heads", "requests"]
    absorb: Literal["attention", "model"]
    routing: str
    expert_kernel: Literal["deepgemm-masked", "deepgemm-masked-fp4", "megamoe-fp4", "megamoe-fp8"]
    wire: Literal["bf16", "fp8"]
    kv_overcommit: float
    kv_copy: Literal["disk", "host", "none", "worker"]
    host: str
    host_async: bool
    admission: Literal["grow", "reserve"]
    prefix_sharing: bool
    kv_tokens: int
    max_num_seqs: int
    block_size: int
    gpu_memory_utilization: float
    prefill: int | str
    max_batched_tokens: int
    instances: int
    router: str
    queue: Literal["each", "global"]
    iterations: bool
    mapping: str
    board: str | os.PathLike[str]
    price: Mapping[str, float | str] | str | Sequence[str]
    power: Mapping[str, float | str] | str | Sequence[str]
    price_basis: Literal["purchase", "rent"]
    emulate: str
    slowdown: float
    oversubscribe: bool
    dtype: Literal["bf16", "fp16", "fp32"]
    kv_dtype: Literal["auto", "fp8", "int8"]
    chaos: str | Sequence[str]
    ray: str
    tensor_parallel: int
    max_model_len: int
    enforce_eager: bool
    runner_timeout: float
    metrics_port: int
    url: str
    api: Literal["chat", "completions"]
    header: str | Sequence[str]
    api_key_file: str | os.PathLike[str]
    tokenizer: str | os.PathLike[str]
    vocab: int
    timeout: float
    first_byte_timeout: float
    retries: int
    warm_up: int
    connections: int
    client_workers: int
    offline: bool
    max_rows: int
    window: str | tuple[float | None, float | None]
    scale_lengths: float
    max_prompt: int
    max_output: int
    too_long: Literal["drop", "truncate"]
    sample: int
    num_requests: int
    request_rate: float
    burstiness: float
    rate_scale: float
    seed: int

class CompareKeywords(TypedDict, total=False):
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    mode: Literal["closed", "open", "saturate"]
    costs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    eras: str | Sequence[str]
    systems: str | Sequence[str]
    deployments: Mapping[str, float | str] | str | Sequence[str]
    max_num_seqs: Mapping[str, float | str] | str | Sequence[str]
    network: str
    hosts: Mapping[str, float | str] | str | Sequence[str]
    host_async: str
    equal_cost: bool
    equal_power: bool
    tolerance: float
    devices: str | Sequence[str]
    slo_tbt_ms: float
    slo_ttft_ms: float
    base: str
    concurrency: int
    admission: Literal["grow", "reserve"]
    prefill: int | str
    max_batched_tokens: int
    instances: int
    router: str
    queue: Literal["each", "global"]
    attention_kernel: Mapping[str, float | str] | str | Sequence[str]
    price: Mapping[str, float | str] | str | Sequence[str]
    power: Mapping[str, float | str] | str | Sequence[str]
    price_basis: Literal["purchase", "rent"]
    offline: bool
    max_rows: int
    window: str | tuple[float | None, float | None]
    scale_lengths: float
    max_prompt: int
    max_output: int
    too_long: Literal["drop", "truncate"]
    sample: int
    num_requests: int
    request_rate: float
    burstiness: float
    rate_scale: float
    seed: int
    budget: float
    power_budget: float
    most_devices: int
    slo_queueing_p99_s: float

class PlanKeywords(TypedDict, total=False):
    model: str | os.PathLike[str]
    slo_ttft_ms: float
    budget: float
    power_budget: float
    devices: str | Sequence[str]
    systems: str | Sequence[str]
    most_devices: int
    costs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    mode: Literal["open", "saturate"]
    prefill: Literal["any", "colocated", "off", "pool"]
    max_batched_tokens: int
    slo_queueing_p99_s: float
    network: str
    host_async: bool
    exhaustive: bool
    price: Mapping[str, float | str] | str | Sequence[str]
    power: Mapping[str, float | str] | str | Sequence[str]
    price_basis: Literal["purchase", "rent"]
    attention_kernel: Mapping[str, float | str] | str | Sequence[str]
    offline: bool
    max_rows: int
    window: str | tuple[float | None, float | None]
    scale_lengths: float
    max_prompt: int
    max_output: int
    too_long: Literal["drop", "truncate"]
    sample: int
    num_requests: int
    request_rate: float
    burstiness: float
    rate_scale: float
    seed: int
