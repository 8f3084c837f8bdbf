"""Every choice of a replay as a typed keyword, so that editors know them, and what is made of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_type_hints

import msgspec

from laminabench.requests.replay import CHOICES, OUTPUT, ReplayRequest, of_table
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

if TYPE_CHECKING:
    Called = TypeVar("Called", bound=Callable[..., Any])

Name = str | os.PathLike[str]
Named = Mapping[str, float] | Sequence[str]  # {"h100": 2.5}, or ["h100=2.5"]


class Cuts(TypedDict, total=False):
    """How a trace is cut before it is replayed."""

    offline: bool
    window: tuple[float, float] | str
    max_rows: int
    scale_lengths: float
    max_prompt: int
    max_output: int
    too_long: Literal["truncate", "drop"]
    sample: int
    num_requests: int
    request_rate: float
    burstiness: float
    rate_scale: float
    seed: int


class Prices(TypedDict, total=False):
    """What devices cost and draw, instead of the catalogue's."""

    price: Named
    power: Named
    price_basis: Literal["rent", "purchase"]


class Shared(Cuts, Prices, total=False):
    """What a comparison has in common with a replay."""

    mode: Literal["saturate", "open", "closed"]
    concurrency: int
    slo_tbt_ms: float
    slo_ttft_ms: float
    admission: Literal["reserve", "grow"]
    prefill: int | str
    max_batched_tokens: int
    instances: int
    router: str
    queue: Literal["each", "global"]


class ReplayChoices(Shared, total=False):
    """The flags of `laminabench replay`, by their names with underscores."""

    policy: str
    system: Literal["lamina", "lamina-v1", "vllm", "h2m2", "afd", "openai"]
    deployment: str
    model: Name
    backend: Literal["modelled", "live"]
    costs: Name
    network: str
    batches: int | Literal["auto"]
    min_batch: int
    pipelining: Literal["serial", "rotational", "fixed", "pingpong"]
    pipeline_parallel: int
    experts: Literal["tp", "ep"]
    partition: Literal["heads", "requests"]
    overlap: bool
    stream_chunks: int
    stream_along: Literal["requests", "heads"]
    absorb: Literal["model", "attention"]
    routing: Literal["skewed", "uniform"]
    kv_overcommit: float
    host: str
    host_async: bool
    prefix_sharing: bool
    kv_tokens: int
    max_num_seqs: int
    block_size: int
    gpu_memory_utilization: float
    iterations: bool
    mapping: str
    board: Name
    emulate: str
    slowdown: float
    oversubscribe: bool
    metrics_port: int
    dtype: Literal["bf16", "fp16", "fp32"]
    kv_dtype: Literal["auto", "fp8", "int8"]
    chaos: Sequence[str]
    ray: str
    tensor_parallel: int
    max_model_len: int
    enforce_eager: bool
    runner_timeout: float
    url: str
    api: Literal["completions", "chat"]
    header: Sequence[str]
    api_key_file: Name
    tokenizer: Name
    vocab: int
    timeout: float
    first_byte_timeout: float
    retries: int
    warm_up: int
    connections: int
    client_workers: int


# What the API says in another way: by an argument, or by a method of the answer.
SAID_OTHERWISE = ("trace", *(name for name, choice in CHOICES.items() if choice.group == OUTPUT))


def request_of(chosen: Mapping[str, Any], where: str, **others: object) -> ReplayRequest:
    """The request of these choices; a UserError names what is wrong in `where`."""
    known = [name for name in CHOICES if name not in SAID_OTHERWISE]
    for name in chosen:
        if name not in known:
            raise UserError("replay-key-unknown", f"{where}: no choice '{name}'; {nearest(name, known)}")
    made = {name: _plain(name, value) for name, value in chosen.items() if value is not None}
    return of_table({CHOICES[name].key: value for name, value in {**made, **others}.items()}, where)


def paired(values: Named | Mapping[str, object]) -> tuple[str, ...]:
    """A mapping as the flags write it, NAME=VALUE each."""
    if isinstance(values, Mapping):
        return tuple(f"{name}={value}" for name, value in values.items())
    return (values,) if isinstance(values, str) else tuple(values)


def _plain(name: str, value: Any) -> Any:
    """A value of Python's as a request has it."""
    if CHOICES[name].repeatable:
        return paired(value)
    if name == "window" and isinstance(value, tuple):
        return ":".join("" if end is None else str(end) for end in value)
    if isinstance(value, Path):
        return os.fspath(value)
    # A number of numpy's, as data frames have them.
    return value.item() if hasattr(value, "item") else value


def spelled_out(choices: type, *, but: Sequence[str] = ()) -> Callable[[Called], Called]:
    """Give a function that takes `**choices` a signature that names each: for help(), and for notebooks."""

    def decorated(function: Called) -> Called:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        defaults = {each.name: each.default for each in msgspec.structs.fields(ReplayRequest)}
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in get_type_hints(choices).items()
            if name not in but
        ]
        function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        return function

    return decorated
