"""Measured times and the columns that explain them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laminabench.catalog.cost_terms import Float64


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured times next to the columns that explain them, as equally long arrays."""

    columns: dict[str, Float64]
    seconds: Float64

    def __getitem__(self, name: str) -> Float64:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, keep: np.ndarray) -> Samples:
        return Samples({name: column[keep] for name, column in self.columns.items()}, self.seconds[keep])


class AttentionKind(NamedTuple):
    """Kind of attention in a table, besides numbers of heads."""

    head_dim: int = 128
    kv_dtype: str = "bf16"
    window: int = 0  # 0: to all tokens


FULL = AttentionKind()
