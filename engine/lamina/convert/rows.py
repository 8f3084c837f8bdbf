"""Some rows of a weight, as a weight of their own."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """Which rows (or columns) of a weight a projection keeps."""

    def __init__(self, index: Tensor) -> None:
        self.index = index
        first, count = int(index[0]), len(index)
        self.start = first if torch.equal(index, torch.arange(first, first + count)) else None

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        if self.start is not None:
            return f"{self.start}:{self.start + len(self)}"
        ends = torch.nonzero(self.index.diff() != 1).flatten()
        first = int(ends[0]) + 1
        return f"{int(self.index[0])}:{int(self.index[0]) + first} and {len(ends)} more like it"


def take_rows(weight: Tensor, dim: int, rows: Rows) -> Tensor:
    """Those rows of a weight: a view of it where they are adjacent, else a copy."""
    if rows.start is not None:
        return weight.narrow(dim, rows.start, len(rows))
    return weight.index_select(dim, rows.index.to(weight.device))
