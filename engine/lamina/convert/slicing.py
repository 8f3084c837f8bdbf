"""Slices of a partitioned graph: the instruction order of each and the context between them.

Within a slice, q and its dependencies come first, then k and v, then the rest: q can be sent while k and v
are computed, and attention over earlier tokens runs during the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from lamina.convert.codegen import Code, describe_spec, slice_source
from lamina.convert.errors import ConversionError
from lamina.convert.normalise import KEEP_STATE, READ_STATE, op_name
from lamina.convert.partition import Partition
from lamina.convert.program import (
    BATCH,
    STATES,
    Instruction,
    Name,
    Piece,
    Program,
    Spec,
    States,
    Value,
    known_spec,
    make_spec,
    spec_of,
)
from lamina.convert.slices import Carried, Slice, SliceClass
from lamina.convert.trace import Traced

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
ATTENDED = Name("attended")


Classified = tuple[tuple[Slice, ...], tuple[SliceClass, ...]]


def slices_of(traced: Traced, logits: fx.Node, parts: Partition) -> Classified:
    """Return slices and their classes; context is in the order of its first use by the next slice."""
    order = {node: number for number, node in enumerate(traced.graph.nodes)}
    last = len(parts.attentions)
    members: list[set[fx.Node]] = [set() for _ in range(last + 1)]
    for node, index in parts.slice_of.items():
        if node.op == "call_function":
            members[index].add(node)
    slices: list[Slice] = []
    following: list[fx.Node] = [logits]
    for index in range(last, -1, -1):
        builder = _Builder(traced, parts, order, members[index], index)
        one, following = builder.build(following)
        slices.append(one)
    return _classify(slices[::-1])


def _classify(slices: list[Slice]) -> Classified:
    """Group slices by their generated source, the operators it calls, and the shapes of inputs."""
    groups: dict[tuple[str, ...], list[int]] = {}
    codes: list[Code] = []
    for one in slices:
        code = slice_source(one.program)
        codes.append(code)
        attended = () if one.program.attended is None else (one.program.attended,)
        given = [describe_spec(value.spec) for value in (*one.program.context, *attended)]
        groups.setdefault((code.text, *sorted(code.operators), *given), []).append(one.index)
    classes = tuple(
        SliceClass(number, slices[members[0]].program, codes[members[0]], tuple(members))
        for number, members in enumerate(groups.values())
    )
    class_of = {member: kind.index for kind in classes for member in kind.members}
    return tuple(replace(one, class_index=class_of[one.index]) for one in slices), classes


class _Builder:
    """A writer of one slice's program."""

    def __init__(
        self, traced: Traced, parts: Partition, order: dict[fx.Node, int], members: set[fx.Node], index: int
    ) -> None:
        self._traced, self._parts, self._order, self._index = traced, parts, order, index
        self._members = members
        self._attended = parts.attentions[index - 1] if index else None
        self._inputs: dict[fx.Node, None] = {}
        self._weights: dict[fx.Node, Name] = {}
        self._names: dict[fx.Node, Name] = {}
        self._counts: dict[str, int] = {}
        self._specs: dict[Name, Spec] = {}
        self._code: list[Instruction] = []
        self._state_writes = [node for node in members if node.target is KEEP_STATE]
        self._states = sorted(_number(node) for node in members if node.target is READ_STATE)
        if self._states != sorted(map(_number, self._state_writes)):
            raise ConversionError(
                "convert-state-across-attention",
                "what a layer keeps between tokens depends on an attention operator inside the layer",
            )

    def build(self, following: list[fx.Node]) -> tuple[Slice, list[fx.Node]]:
        """Return the slice that computes the values of `following`, and the values it needs as inputs."""
        pieces: list[Piece] = []
        if self._attended is None:  # both are inputs of the first slice, used or not
            self._name(self._traced.tokens)
            self._name(self._traced.positions)
        if self._index < len(self._parts.attentions):
            query, key, value = self._parts.attentions[self._index].args[:3]
            # One tensor if values are part of keys.
            stored = [key] if value is key else [key, value]
            pieces.append(self._piece("query", [query], send=True))
            pieces.append(self._piece("keyvalue", stored, send=True))
            pieces.append(self._piece("rest", following, send=False))
        else:
            pieces.append(self._piece("logits", following, send=False))
        # Named by position, so that slices with the same structure have equal programs.
        given = list(self._inputs)
        context = tuple(Value(self._names[node], known_spec(node)) for node in given)
        attended = None
        if self._attended is not None:
            attended = Value(ATTENDED, _row_spec(known_spec(self._attended), 1))
            self._specs[ATTENDED] = attended.spec
        weights = tuple(Value(name, known_spec(node)) for node, name in self._weights.items())
        for value_ in (*context, *weights):
            self._specs[value_.name] = value_.spec
        bound = (STATES,) if self._states else ()
        program = Program(context, attended, weights, tuple(pieces), self._specs, bound)
        carried = tuple(self._carried(node) for node in following) if len(pieces) > 1 else ()
        named = tuple(Name(node.name) for node in self._weights)
        return Slice(self._index, program, named, carried, tuple(self._states)), given

    def _carried(self, node: fx.Node) -> Carried:
        free = node in {self._traced.tokens, self._traced.positions}
        spec = known_spec(node)
        return Carried(node.name, "input" if free else op_name(node), spec, 0 if free else spec.bytes)

    def _piece(self, name: str, requested: list[Any], *, send: bool) -> Piece:
        self._code = []
        # States are written while attention runs.
        for node in self._missing(requested if send else [*requested, *self._state_writes]):
            self._write(node)
        gives = tuple(self._sent(node) if send else self._name(node) for node in requested)
        return Piece(name, tuple(self._code), gives)

    def _missing(self, requested: list[fx.Node]) -> list[fx.Node]:
        """Return the nodes that must still run in this slice for `requested`, in the model's order."""
        missing: set[fx.Node] = set()
        stack = list(requested)
        while stack:
            node = stack.pop()
            sized = "size" in node.meta  # a size, which every piece computes itself
            if node in missing or (node in self._names and not sized):
                continue
            if node in self._members or node in self._parts.repeated:
                missing.add(node)
                stack += node.all_input_nodes
                if spec_of(node) is None and not sized:  # members of a tuple are taken immediately
                    missing.update(user for user in node.users if user in self._members)
        return self._by_first_use(sorted(missing, key=self._order.__getitem__))

    def _by_first_use(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """Move repeated nodes, which the graph has once for all slices, just before their first user."""
        inside = set(nodes)
        placed: dict[fx.Node, None] = {}
        for node in [*(one for one in nodes if one not in self._parts.repeated), *nodes]:
            stack = [node]
            while stack:
                before = [
                    one
                    for one in stack[-1].all_input_nodes
                    if one in inside and one in self._parts.repeated and one not in placed
                ]
                if before:
                    stack.append(before[0])
                else:
                    placed.setdefault(stack.pop())
        return list(placed)

    def _write(self, node: fx.Node) -> None:
        if "size" in node.meta and node.target is _aten.sym_size.int:
            source = self._name(self._traced.tokens) if self._attended is None else ATTENDED
            self._emit(node, node.target, (source, 0), {})
            return
        if node.target in (READ_STATE, KEEP_STATE):
            self._write_state(node)
            return
        direct = node.target in _RESHAPES and node.args[1][0] == -1  # type: ignore[index]
        given: Any = fx.map_arg((node.args, node.kwargs), lambda used: self._name(used, direct=direct))  # type: ignore[arg-type]
        self._emit(node, node.target, given[0], dict(given[1]))

    def _write_state(self, node: fx.Node) -> None:
        place = self._states.index(_number(node))
        if node.target is READ_STATE:
            self._emit(node, States.read, (STATES, place), {})
        else:
            state = node.args[0]
            assert isinstance(state, fx.Node)
            self._emit(node, States.write, (STATES, place, self._name(state)), {})

    def _emit(self, node: fx.Node, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        name = self._fresh(op_name(node))
        spec = spec_of(node)
        self._append(name, op, args, kwargs, spec)
        self._names[node] = name

    def _append(
        self, name: Name, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], spec: Spec | None
    ) -> None:
        self._code.append(Instruction(name, op, args, kwargs, spec))
        if spec is not None:
            self._specs[name] = spec

    def _fresh(self, stem: str) -> Name:
        self._counts[stem] = self._counts.get(stem, 0) + 1
        return Name(f"{stem}_{self._counts[stem]}")

    def _name(self, node: fx.Node, *, direct: bool = False) -> Name:
        """Return the name of a value or weight; the first use makes it an input of the slice."""
        if node is self._attended and direct:
            return ATTENDED  # [B, heads, head_dim] has the same elements in the same order
        if node in self._names:
            return self._names[node]
        if node is self._attended:
            spec, name = known_spec(node), self._fresh("unsqueeze")
            self._append(name, _aten.unsqueeze.default, (ATTENDED, 1), {}, spec)
        elif node in self._parts.constant:
            label = self._fresh(_weight_label(node, self._traced))
            name = self._weights[node] = Name(label.removesuffix("_1"))
        else:
            known = {self._traced.tokens: "tokens", self._traced.positions: "positions"}
            name = Name(known[node]) if node in known else self._fresh("context")
            self._inputs[node] = None
        self._names[node] = name
        return name

    def _sent(self, node: fx.Node) -> Name:
        """Write q, k or v as it is sent: [B, heads, head_dim], contiguous."""
        full = known_spec(node)
        spec = _row_spec(full, 2)
        flat, sent = self._fresh("squeeze"), self._fresh("contiguous")
        self._append(flat, _aten.squeeze.dim, (self._name(node), 2), {}, spec)
        self._append(sent, _aten.contiguous.default, (flat,), {}, spec)
        return sent


def _number(node: fx.Node) -> int:
    """Return the number of the state that a node reads or writes."""
    number = node.args[1]
    assert isinstance(number, int)
    return number


def _row_spec(spec: Spec, dim: int) -> Spec:
    assert spec.dims[0] == BATCH
    assert spec.dims[dim] == 1
    return make_spec(spec.dims[:dim] + spec.dims[dim + 1 :], spec.dtype)


def _weight_label(node: fx.Node, traced: Traced) -> str:
    """Return a weight's name without its layer: `self_attn_q_proj_weight`."""
    source = node
    while source.op != "placeholder" and source.all_input_nodes:
        source = source.all_input_nodes[0]
    named = traced.parameters.get(source) or traced.buffers.get(source) or source.name
    parts = named.split(".")
    numbers = [position for position, part in enumerate(parts) if part.isdigit()]
    label = "_".join(parts[numbers[-1] + 1 :] if numbers else parts)
    return label if source is node else f"{label}_{op_name(node)}"
