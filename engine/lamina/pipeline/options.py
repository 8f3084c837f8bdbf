"""Options of an engine, checked before anything is loaded, and its model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import torch

from lamina import gpu
from lamina.errors import CodedError
from lamina.kv import MOST_OVERCOMMIT, ArenaShape
from lamina.kv.stored import KV_DTYPES, KvDtype
from lamina.model import load_original
from lamina.model.load import LoadFormat
from lamina.model.prefill import CHUNK, MOST_SCORES, SCORE_BYTES
from lamina.operators import Absorb, Sight

if TYPE_CHECKING:
    from lamina.convert import Conversion
    from lamina.convert.constants import Parameter

# Memory that a prompt may take without a check of free memory.
SMALL_BYTES = 64 << 20
# Requests that decode meanwhile wait no longer than this.
PROMPT_TOKENS = CHUNK
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LOAD_FORMATS = get_args(LoadFormat)


class EngineError(CodedError, ValueError):
    """An engine cannot be built or continue; the message says why and what to do."""


@dataclass(frozen=True)
class CoreOptions:
    """Options of a core; KV memory is given in tokens or bytes, by default a quarter of free memory."""

    dtype: torch.dtype | None = None
    load_format: LoadFormat = "safetensors"
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    overcommit: float = 0.0
    decode_only: bool = False
    prompt_tokens: int = PROMPT_TOKENS  # per iteration of a batch, at most
    rope: str = "carry"
    absorb: Absorb = "model"  # workers that multiply queries and outputs of latent KV
    backend: str = "python"
    overlap: bool = False
    threads: int = 0
    device: str = "cpu"  # or "cuda"
    kv_dtype: KvDtype = "auto"  # type of numbers in arenas; auto: the model's

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise EngineError(
                "engine-dtype-unknown", f"dtype is {self.dtype!r}: known are {', '.join(map(str, DTYPES))}"
            )
        if self.load_format not in LOAD_FORMATS:
            raise EngineError(
                "engine-load-format-unknown",
                f"load_format '{self.load_format}': known are {', '.join(LOAD_FORMATS)}",
            )
        if self.kv_tokens is not None and self.kv_bytes is not None:
            raise EngineError(
                "engine-kv-twice", "the KV memory is given in tokens and in bytes: give one of the two"
            )
        for name in ("kv_tokens", "kv_bytes"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if not 0 <= self.overcommit <= MOST_OVERCOMMIT:
            raise EngineError(
                "engine-overcommit-invalid",
                f"overcommit {self.overcommit} is no share: give 0 to {MOST_OVERCOMMIT:g}",
            )
        require_count("prompt_tokens", self.prompt_tokens)
        require_count("threads", self.threads, least=0)
        try:
            torch.device(self.device)
        except RuntimeError as error:
            raise EngineError("engine-device-unknown", f"device '{self.device}': give cpu or cuda") from error
        if self.kv_dtype not in KV_DTYPES:
            raise EngineError(
                "engine-kv-dtype-unknown", f"kv_dtype '{self.kv_dtype}': known are {', '.join(KV_DTYPES)}"
            )
        if self.on_gpu:
            require_kv_for_gpu(self.kv_dtype)

    @property
    def on_gpu(self) -> bool:
        return gpu.is_gpu(self.device)

    @property
    def place(self) -> torch.device:
        """The device of weights, arena and computation."""
        return gpu.tensors_on(self.device)


def require_kv_for_gpu(kv_dtype: KvDtype) -> None:
    """Raise EngineError if the GPU kernels cannot read this type."""
    if kv_dtype != "auto":
        raise EngineError(
            "engine-kv-dtype-gpu",
            f"kv_dtype {kv_dtype}: attention on a GPU reads KV in the model's dtype only: take auto, or put "
            "attention on CPUs",
        )


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise EngineError unless the value is a whole number, and not too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise EngineError("engine-count-invalid", f"{name} is {value!r}: give a whole number from {least}")


def original_of(model: Any, conversion: Conversion, options: CoreOptions) -> Any:
    """Return the model object itself, or load the one that the folder or config describes."""
    if isinstance(model, torch.nn.Module):
        if model.dtype != conversion.dtype:
            raise EngineError(
                "model-dtype-differs", f"the model is {model.dtype}, not {conversion.dtype}: convert it first"
            )
        place = next(model.parameters()).device
        if place.type != options.place.type:
            raise EngineError(
                "model-device-differs",
                f"the model is on {place} and the engine on {options.device}: move one",
            )
        return model
    folder = Path(model) if isinstance(model, str | os.PathLike) else None
    if folder and not folder.is_dir():
        folder = None
    loaded = load_original(conversion.config, folder, conversion.dtype, options.load_format)
    return loaded.to(options.place)


class ModelFacts(msgspec.Struct, tag=True, frozen=True):
    """Sizes, as plain numbers that can be sent."""

    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int
    dtype: str
    dtype_bytes: int
    weight_bytes: int
    state_bytes: int = 0  # of recurrent layers, per sequence
    absorbing_bytes: int = 0  # of the matrices that attention workers absorb
    sights: tuple[Sight, ...] = ()  # by layer; empty: all tokens are visible
    kv_dtype: KvDtype = "auto"  # chosen by the engine's options

    @staticmethod
    def of(conversion: Conversion) -> ModelFacts:
        from lamina.convert.constants import Parameter

        first = conversion.attentions[0]
        weights = {one.name: one for one in conversion.constants.values() if isinstance(one, Parameter)}
        return ModelFacts(
            conversion.vocab_size,
            conversion.max_positions,
            conversion.eos_token_ids,
            len(conversion.attentions),
            first.heads,
            first.kv_heads,
            first.head_dim,
            first.latent,
            str(conversion.dtype).removeprefix("torch."),
            conversion.dtype.itemsize,
            sum(_bytes(one) for one in weights.values()),
            conversion.state_bytes,
            sum(op.absorbing_numbers for op in conversion.attentions) * conversion.dtype.itemsize,
            tuple(op.sight for op in conversion.attentions),
        )

    @property
    def token_bytes(self) -> int:
        """KV of a token, all heads of all layers."""
        return self.kv_shape.token_bytes

    def prompt_bytes(self, tokens: int) -> int:
        """Return the bytes to compute a prompt: all K and V, a layer's again per query head, and scores."""
        layer = 2 * self.heads * self.head_dim * self.dtype_bytes
        stored = tokens * (self.layers * self.kv_shape.arriving_bytes + layer)
        return stored + SCORE_BYTES * min(self.heads * CHUNK * tokens, MOST_SCORES)

    def refusal(self, tokens: int, free_bytes: Callable[[], int]) -> str | None:
        """Return why a prompt of this many tokens does not fit in free memory, or None if it does."""
        needed = self.prompt_bytes(tokens)
        if needed <= SMALL_BYTES or needed <= (free := free_bytes()):
            return None
        return (
            f"a prompt of {tokens:,} tokens takes {needed / 1e9:,.1f} GB while it is computed, and "
            f"{free / 1e9:,.1f} GB are free: take a shorter one, or fewer KV tokens"
        )

    @property
    def kv_shape(self) -> ArenaShape:
        """The shape of an arena with all heads."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        sizes = self.layers, self.kv_heads, self.head_dim
        return ArenaShape(*sizes, dtype, self.latent, self.sights, self.kv_dtype)


def _bytes(parameter: Parameter) -> int:
    count = parameter.dtype.itemsize
    for size in parameter.shape:
        count *= size
    return count
