"""Generated source: the same numbers as the traced operators, and fit to be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import converted, seeded, tiny
from torch import Tensor

from lamina.convert import BoundSlice, Conversion, convert
from lamina.convert.codegen import piece_source
from lamina.convert.program import Instruction, Name, Program

_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _interpret(program: Program, values: dict[Name, Any]) -> None:
    """Run the traced operators themselves, one by one."""

    def filled(value: Any) -> Any:
        if isinstance(value, Name):
            return values[value]
        if isinstance(value, (list, tuple)):
            return [filled(item) for item in value]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def run(one: Instruction) -> Any:
        return one.op(*(filled(arg) for arg in one.args), **{key: filled(v) for key, v in one.kwargs.items()})

    for piece in program.pieces:
        for one in piece.instructions:
            values[one.result] = run(one)


def _inputs(program: Program, batch: int) -> dict[Name, Tensor]:
    values: dict[Name, Tensor] = {}
    for value in (*program.context, *((program.attended,) if program.attended else ())):
        sizes = [batch if size == "B" else int(size) for size in value.spec.dims]
        values[value.name] = torch.randn(sizes) if value.spec.dtype.is_floating_point else torch.arange(batch)
    return values


def _run(bound: BoundSlice, program: Program, values: dict[Name, Tensor]) -> list[Tensor]:
    context = tuple(values[value.name] for value in program.context)
    attended = None if program.attended is None else values[program.attended.name]
    if bound.pieces == ("logits",):
        return [bound.logits(context, attended)]
    q, state = bound.query(context, attended)
    k, v, state = bound.keyvalue(state)
    return [q, k, v, *bound.rest(state)]


@pytest.mark.long(but=["GPT2-*"])
@pytest.mark.parametrize("rope", ["carry", "recompute"])  # one after the other: their graph is traced once
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {}),
        ("GPT2", {}),
        ("Gemma2", {"head_dim": 16}),
        ("Qwen3Moe", _MOE),
        ("StableLm", {"qk_layernorm": True}),
    ],
)
def test_source_computes_bit_for_bit_what_was_traced(family: str, changes: dict[str, Any], rope: str) -> None:
    model = seeded(tiny(family, **changes))
    conversion: Conversion = convert(model, rope=rope)
    with torch.no_grad():
        for one, bound in zip(conversion.slices, conversion.bind(model), strict=True):
            for batch in (1, 3):
                values: dict[Name, Any] = dict(_inputs(one.program, batch))
                ours = _run(bound, one.program, values)
                weights = [value.name for value in one.program.weights]
                values.update(zip(weights, bound.weights, strict=True))
                _interpret(one.program, values)
                expected = [values[name] for piece in one.program.pieces for name in piece.gives]
                for got, required in zip(ours, expected, strict=True):
                    assert torch.equal(got, required)


def test_source_is_python_that_names_weights() -> None:
    model = seeded(tiny("Llama", num_hidden_layers=3))
    conversion = convert(model)
    middle = conversion.bind(model)[1]
    compile(middle.source, "<test>", "exec")
    assert "linear_1 = linear(reshape_1, self_attn_o_proj_weight)" in middle.source
    assert "# mlp_up_proj_weight: float32[96, 64]" in middle.source
    order = [middle.source.index(f"def {name}(") for name in ("query", "keyvalue", "rest")]
    assert order == sorted(order)
    assert "torch.ops" not in middle.source


def test_values_are_dropped_after_their_last_use() -> None:
    # On a GPU a batch of a thousand makes each of these tens of megabytes.
    source = converted("Llama").classes[1].source
    gate = next(
        line.split(" = ")[0].strip() for line in source.splitlines() if "mlp_gate_proj_weight)" in line
    )
    assert any(line.strip().startswith("del ") and gate in line for line in source.splitlines())


def test_a_piece_alone_takes_weights_as_arguments() -> None:
    program = converted("OPT", torch.float32).classes[-1].program
    piece = program.pieces[0]
    made = {one.result for one in piece.instructions}
    takes = list(dict.fromkeys(name for one in piece.instructions for name in one.uses() if name not in made))
    run = piece_source(piece, program, takes, piece.gives).function("run", "<test>")
    arguments = [
        torch.randn([3 if size == "B" else int(size) for size in program.specs[n].dims]) for n in takes
    ]
    (logits,) = run(*arguments)
    assert logits.shape == (3, 99)
