"""Emulated models: shapes without weights, and slices that wait for a cost set's times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lamina.convert.conversion import Conversion
from lamina.convert.program import Name, Program, Value, make_spec
from lamina.convert.slices import BoundSlice, Context, Slice
from lamina.emulation import MOMENT, EmulatedDevice, Emulation, latest, moments
from lamina.operators import AttentionOp

Pieces: TypeAlias = dict[str, Callable[..., Any]]
VOCAB = 2
LONGEST = 1 << 40  # tokens


def emulated(model: Emulation) -> Conversion:
    """Return the conversion of an emulated model, without weights or programs."""
    context = Value(Name("context"), make_spec(("B",), MOMENT))
    program = Program((context,), None, (), (), {})
    return Conversion(
        slices=tuple(Slice(number, program, (), ()) for number in range(model.layers + 1)),
        classes=(),
        attentions=tuple(
            AttentionOp(layer, model.heads, model.heads, 1, 1.0, 0, 0.0) for layer in range(model.layers)
        ),
        cut_bytes=(),
        constants={},
        tables={},
        states=(),
        vocab_size=VOCAB,
        max_positions=LONGEST,
        dtype=MOMENT,
        rope="carry",
        eos_token_ids=(),
        config=None,
    )


def slices_on(device: EmulatedDevice) -> list[BoundSlice]:
    """Return a rank's slices: context carries the time it is ready, and all tokens are 0."""
    model = device.model

    def first(context: Context, _: Tensor | None) -> tuple[Tensor, Any]:
        device.until_free()
        rows = len(context[0])
        return sent(rows, device.run(device.now(), int(model.first_slice[rows])))

    def middle(context: Context, attended: Tensor | None) -> tuple[Tensor, Any]:
        assert attended is not None
        rows = len(attended)
        return sent(rows, device.run(latest(*context, attended), int(model.mid_slice[rows])))

    def sent(rows: int, ends: int) -> tuple[Tensor, Any]:
        leaves = ends - int(model.q_lead[rows])
        return moments(rows, heads, leaves + int(model.q_transfer[rows])), (rows, ends)

    def keyvalue(state: tuple[int, int]) -> tuple[Any, ...]:
        rows, ends = state
        kv = moments(rows, heads, ends + int(model.kv_transfer[rows]))
        return kv, kv, state

    def rest(state: tuple[int, int]) -> Context:
        rows, ends = state
        return (moments(rows, 1, ends + int(model.migration[rows])).view(rows),)

    def logits(context: Context, attended: Tensor | None) -> Tensor:
        assert attended is not None
        rows = len(attended)
        device.run(latest(*context, attended), int(model.last_slice[rows]))
        device.end_iteration()
        return torch.zeros(rows, VOCAB)

    heads = model.heads // model.ranks
    between: Pieces = {"keyvalue": keyvalue, "rest": rest}
    pieces: list[Pieces] = [{"query": query, **between} for query in (first, *[middle] * (model.layers - 1))]
    return [BoundSlice(number, "", (), each) for number, each in enumerate([*pieces, {"logits": logits}])]
