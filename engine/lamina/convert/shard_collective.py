"""What the ranks of a replica say to each other while they run their parts of a slice."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from lamina.convert.program import Name

# By these names generated code is given them, beside its weights.
COLLECTIVE, RANK = Name("collective"), Name("rank")


class Collective(Protocol):
    """How one rank agrees with the others. All ranks call the same methods in the same order.

    What is given is contiguous, and nobody else needs it; what is returned must outlive later calls.
    """

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, the same to the bit on each; may work in place."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' tensors side by side along the last dimension, in the order of ranks."""
        ...


def own_part(x: Tensor, rank: int, degree: int) -> Tensor:
    """A rank's heads of a value that every rank has whole."""
    heads = x.shape[1] // degree
    return x.narrow(1, rank * heads, heads).contiguous()
