"""Whether a folder's weights can be loaded at all, found out before anything is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What safetensors calls the number formats that a slice can compute with.
DTYPES = {"F32", "F16", "BF16", "F64"}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class CheckpointError(ValueError):
    """Weights that cannot be loaded; the message says which file, why and what to do."""


def require_sound(folder: Path) -> None:
    """Raise CheckpointError unless the folder has whole safetensors files of a number format we compute with.

    Only their headers are read. Pickled weights are refused: loading them runs whatever is in them.
    """
    for shard, tensors in _shards(folder).items():
        header = _header(shard)
        missing = sorted(tensors - header.keys())
        if missing:
            raise CheckpointError(
                f"{shard}: has no tensor '{missing[0]}', which {INDEX} says it has; fetch the file again"
            )
        for name, facts in header.items():
            if facts["dtype"] not in DTYPES:
                raise CheckpointError(
                    f"{shard}: '{name}' is {facts['dtype']}; weights must be float32, float16 or bfloat16 "
                    "(a quantised model is not supported)"
                )


def _shards(folder: Path) -> dict[Path, set[str]]:
    """The weight files, each with the tensors that the index promises in it."""
    index = folder / INDEX
    if index.exists():
        try:
            places: Mapping[str, str] = json.loads(index.read_text())["weight_map"]
            shards: dict[Path, set[str]] = {}
            for tensor, file in places.items():
                shards.setdefault(folder / file, set()).add(tensor)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{index}: is no index of safetensors ({error}); fetch the file again"
            ) from error
    else:
        shards = {folder / WEIGHTS: set()}
    absent = sorted(shard.name for shard in shards if not shard.is_file())
    if not absent:
        return shards
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles and not index.exists():
        raise CheckpointError(
            f"{folder}: has {pickles[0]} but no {WEIGHTS}; pickled weights can run code and are not loaded: "
            "save the model with safe_serialization=True"
        )
    if len(shards) > 1:
        raise CheckpointError(
            f"{folder}: {absent[0]} is missing ({len(absent)} of {len(shards)} shards are); fetch it again"
        )
    raise CheckpointError(
        f"{folder}: has no {absent[0]}; give a folder with safetensors weights, or --load-format dummy"
    )


def _header(shard: Path) -> dict[str, dict[str, Any]]:
    """What a safetensors file says is in it, checked against its length."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{shard}: is cut off in its header at {size:,} bytes; fetch it again")
        try:
            header: dict[str, dict[str, Any]] = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((int(facts["data_offsets"][1]) for facts in header.values()), default=0)
            for facts in header.values():
                math.prod(facts["shape"])
                str(facts["dtype"])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{shard}: is no safetensors file ({error}); fetch it again") from error
    if size != 8 + length + end:
        raise CheckpointError(
            f"{shard}: has {size:,} bytes of {8 + length + end:,}; it is cut off or damaged: fetch it again"
        )
    return header
