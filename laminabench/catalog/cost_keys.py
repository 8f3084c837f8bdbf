"""Keys of a cost set's tables. A device comes first; each field is named in TOML as it is named here."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, get_type_hints

# Keys of formulas


class DtypeKey(NamedTuple):
    """A device, and the format of weights or of the KV cache."""

    device: str
    dtype: str


class AttentionKey(NamedTuple):
    """Attention other than of heads of 128 with a KV cache in bf16 and no window."""

    device: str
    size: int  # of a head
    kv_dtype: str
    window: int  # in tokens; 0 for none


class AllReduceKey(NamedTuple):
    """An all-reduce over devices of one node."""

    device: str
    tp: int


class CollectiveKey(NamedTuple):
    """All_gather, reduce_scatter or alltoall over devices of one node."""

    device: str
    op: str
    over: int


class DispatchKey(NamedTuple):
    """Dispatch or combine of tokens over the devices of some nodes."""

    device: str
    op: str
    nodes: int


# Keys of measurements


class GemmKey(NamedTuple):
    """A matrix product by rows."""

    device: str
    dtype: str
    n: int
    k: int


class OperatorKey(NamedTuple):
    """An element-wise operator of a layer, or what follows the last layer."""

    device: str
    name: str
    width: int


class HeadsKey(NamedTuple):
    """The heads of one worker."""

    device: str
    heads: int
    kv_heads: int
    head_dim: int


class LinesKey(NamedTuple):
    """Decode attention of one worker."""

    device: str
    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    window: int  # in tokens; 0 for none


class LatentKey(NamedTuple):
    """Decode attention of one worker over a latent KV cache."""

    device: str
    heads: int
    kv_dtype: str


class ExpertsKey(NamedTuple):
    """The routed experts of a layer, by the tokens of the whole group."""

    device: str
    dtype: str
    hidden: int
    intermediate: int
    top_k: int
    experts: int
    tp: int  # devices that each expert is split over
    ep: int  # devices that experts are distributed over


@cache
def _types(kind: Any) -> dict[str, type]:
    return get_type_hints(kind)


def to_path(key: str | tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names of the TOML tables of a key: a number is written behind the name of its field."""
    if isinstance(key, str):
        return (key,)
    fields: tuple[str, ...] = key._fields  # type: ignore[attr-defined]
    named = zip(fields, key, strict=True)
    return tuple(f"{name}{part}" if isinstance(part, int) else str(part) for name, part in named)


def from_path(kind: Any, path: tuple[str, ...]) -> Any:
    """Parse the key of a path that `to_path` wrote."""
    if kind is str:
        return path[0]
    types = _types(kind)
    parts = (
        int(part.removeprefix(name)) if types[name] is int else part
        for name, part in zip(types, path, strict=True)
    )
    return kind(*parts)
