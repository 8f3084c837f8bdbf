"""What those who have no model must know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from lamina.convert import Conversion
    from lamina.convert.constants import Parameter


class ModelFacts(msgspec.Struct, tag=True, frozen=True):
    """Sizes, as plain numbers that can be sent."""

    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    dtype_bytes: int
    weight_bytes: int

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
            str(conversion.dtype).removeprefix("torch."),
            conversion.dtype.itemsize,
            sum(_bytes(one) for one in weights.values()),
        )

    @property
    def token_bytes(self) -> int:
        """KV of a token, all heads of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes


def _bytes(parameter: Parameter) -> int:
    count = parameter.dtype.itemsize
    for size in parameter.shape:
        count *= size
    return count
