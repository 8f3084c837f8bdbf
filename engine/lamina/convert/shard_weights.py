"""The weights of one rank: its shares of what is split, and what every rank has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lamina.convert.constants import BoundConstants, Constant
from lamina.convert.program import Name
from lamina.convert.shard_places import WeightPart


class RankWeights:
    """One rank's weights, each made once however many slices use it.

    A share has memory of its own, so that the whole weight can go. What a rank has whole is the caller's
    tensor, as when nothing is split, unless that is a view of more.
    """

    def __init__(
        self,
        constants: Mapping[Name, Constant],
        tensors: Mapping[str, Tensor],
        device: torch.device,
        rank: int,
        degree: int,
        whole: set[Name],
    ) -> None:
        self._constants, self._tensors, self._device = constants, tensors, device
        self._rank, self._degree = rank, degree
        self._whole = whole  # those that some slice needs whole
        self._made: dict[tuple[Name, WeightPart], Tensor] = {}

    def take(self, name: Name, part: WeightPart) -> Tensor:
        """What this rank holds of a constant."""
        key = (name, part)
        if key not in self._made:
            self._made[key] = self._make(name, part)
        return self._made[key]

    def _make(self, name: Name, part: WeightPart) -> Tensor:
        if part.kind == "whole":
            whole = self._found(name)
            return whole if whole.untyped_storage().nbytes() <= whole.nbytes else whole.clone()
        if part.kind == "first":
            whole = self._found(name)
            return whole.clone() if self._rank == 0 else torch.zeros_like(whole)
        if name in self._whole and part.dim == 0 and len(part.blocks) == 1:
            # A table of tokens that is the last product's weight, too: its share is rows of the table.
            return self._share(self.take(name, WeightPart("whole")), part)
        return self._share(self._found(name), part).clone()

    def _share(self, whole: Tensor, part: WeightPart) -> Tensor:
        shares: list[Tensor] = []
        start = 0
        for block in part.blocks:
            size = block // self._degree
            shares.append(whole.narrow(part.dim, start + self._rank * size, size))
            start += block
        return shares[0] if len(shares) == 1 else torch.cat(shares, part.dim)

    def _found(self, name: Name) -> Tensor:
        # Not kept: a whole weight, moved or computed, must not outlive the taking of a share of it.
        found: Tensor = BoundConstants(self._constants, self._tensors, self._device)[name]
        return found
