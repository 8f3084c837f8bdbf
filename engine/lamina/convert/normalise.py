"""Normalisation of a traced graph: no checks, no-ops, duplicates or in-place writes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, fx

from lamina.convert.errors import ConversionError
from lamina.convert.latent import absorb
from lamina.convert.program import BATCH, annotate, known_spec, make_spec, spec_of
from lamina.convert.trace import CACHED, Traced
from lamina.operators import Absorb

_aten = torch.ops.aten
READ_STATE, KEEP_STATE = torch.ops.lamina.state.default, torch.ops.lamina.keep.default

_CHECKS = frozenset({"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size"})
_CASTS = frozenset({"to", "_to_copy", "type_as"})
_IDENTITIES = frozenset({"alias", "detach", "detach_", "lift_fresh", "lift_fresh_copy"})
_REDUCTIONS = frozenset(
    {
        *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "var_mean"),
        *("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "norm", "linalg_vector_norm"),
        *("cumsum", "cumprod", "cummax", "cummin", "sort", "argsort", "topk", "median", "kthvalue"),
    }
)
# torch.export's name of a size that depends on values.
_UNKNOWN_SIZE = re.compile(r"\bu\d+\b")
# Composite operators that never return their input. Others may, whatever their schema declares: dropout in
# evaluation returns its input, einsum may be a transpose.
_FRESH = frozenset(
    {
        *("linear", "matmul", "softmax", "log_softmax", "layer_norm", "rms_norm", "silu", "relu6", "selu"),
        *("one_hot", "where", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "square"),
    }
)
_RESHAPES = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)


def normalise(traced: Traced, absorbing: Absorb = "model") -> fx.Node:
    """Rewrite the graph in place and return the logits' node; a ConversionError names what it cannot be."""
    graph = traced.graph
    for node in graph.nodes:
        annotate(node)
    absorb(graph, absorbing)
    # In-place writes first, before equal tensors are merged.
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if op_name(node) in _CHECKS:
            graph.erase_node(node)
            continue
        _refuse(node)
        copies = True in node.args or True in node.kwargs.values()
        if op_name(node) == "to" and not copies and (itself := _same_value(node)):
            node.replace_all_uses_with(itself)  # not a copy: both share memory
            graph.erase_node(node)
            continue
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            _make_pure(node)
    take_positions(traced)
    batch = _batch_size(traced)
    first_of: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node is batch:
            continue
        _canonical(node, batch)
        same = batch if node.meta.get("size") == BATCH else _same_value(node)
        same = same or first_of.setdefault(_key(node), node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    logits = graph.output_node().args[0][0]  # type: ignore[index]
    assert isinstance(logits, fx.Node)
    _erase_unused(graph)
    _refuse_mixing(graph)
    if any(
        CACHED <= number <= CACHED + 1
        for node in graph.nodes
        for number in _numbers((node.args, node.kwargs))
    ):
        raise ConversionError(
            "convert-depends-on-length", "what it computes depends on how long the cache is, beyond attention"
        )
    return logits


def op_name(node: fx.Node) -> str:
    """Return the operator's bare name: `linear` for aten.linear.default."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return getattr(target, "__name__", str(target))


def _batch_size(traced: Traced) -> fx.Node:
    with traced.graph.inserting_after(traced.positions):
        node = traced.graph.call_function(_aten.sym_size.int, (traced.tokens, 0))
    node.meta["size"] = BATCH
    return node


def _refuse(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if torch.Tag.nondeterministic_seeded in target.tags and not _inactive_dropout(node):
            raise ConversionError(
                "convert-random", f"it draws random numbers ({op_name(node)}) while decoding"
            )
        spec = spec_of(node)
        if spec is not None and any(_UNKNOWN_SIZE.search(str(dim)) for dim in spec.dims):
            raise ConversionError(
                "convert-sizes-depend-on-values", f"{op_name(node)} makes sizes depend on values"
            )
    elif not callable(target):
        raise ConversionError("convert-not-operator", f"{node.name} is not an operator")


def _inactive_dropout(node: fx.Node) -> bool:
    return op_name(node) == "dropout" and (node.args[2] is False or node.args[1] in (0, 0.0))


def _canonical(node: fx.Node, batch: fx.Node) -> None:
    """Rewrite a node in canonical form, without device or the example's batch size."""
    name, spec = op_name(node), spec_of(node)
    if name in _CASTS and spec is not None:
        node.target, node.args, node.kwargs = _aten.to.dtype, (node.args[0], spec.dtype), {}
    elif node.target in _RESHAPES and spec is not None:
        node.args = (node.args[0], _sizes(spec.dims, node.args[1]))
    elif name == "expand" and spec is not None:
        node.args = (node.args[0], _expanded(node, batch))
        node.kwargs = {}
    elif node.target is _aten.histc.default:
        # CPUs have no kernel for integers; counts in floats are exact.
        _count_in_floats(node)
    elif name == "grouped_mm_fallback":
        # transformers' loop over experts, chosen while tracing only; torch's own operator computes the same.
        node.target = _aten._grouped_mm.default
    if "pin_memory" in node.kwargs:
        node.kwargs = {key: value for key, value in node.kwargs.items() if key != "pin_memory"}


def _sizes(dims: tuple[int | str, ...], written: Any) -> list[Any]:
    """Return the sizes of a reshape with -1 for the one dimension that grows with the batch."""
    if sum(isinstance(dim, str) for dim in dims) > 1:
        return list(written)
    return [dim if isinstance(dim, int) else -1 for dim in dims]


def _expanded(node: fx.Node, batch: fx.Node) -> list[Any]:
    spec, given = known_spec(node), known_spec(node.args[0])
    old = (None,) * (len(spec.dims) - len(given.dims)) + given.dims
    written = list(node.args[1])  # type: ignore[arg-type]
    result: list[Any] = []
    for before, after, size in zip(old, spec.dims, written, strict=True):
        if before == after:
            result.append(-1)
        elif isinstance(after, int):
            result.append(after)
        else:
            result.append(batch if after == BATCH else size)
    return result


def _count_in_floats(node: fx.Node) -> None:
    source, spec = node.args[0], known_spec(node.args[0])
    if spec.dtype.is_floating_point:
        return
    with node.graph.inserting_before(node):
        floats = node.graph.call_function(_aten.to.dtype, (source, torch.float32))
    floats.meta["spec"] = type(spec)(spec.dims, torch.float32, spec.bytes // spec.dtype.itemsize * 4)
    node.args = (floats, *node.args[1:])


def _same_value(node: fx.Node) -> fx.Node | None:
    """Return the input that this node passes through unchanged, if it does."""
    name = op_name(node)
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source, spec = node.args[0], spec_of(node)
    given = spec_of(source)
    if spec is None or given is None:
        return None
    same_shape = spec.dims == given.dims
    if name == "copy" and isinstance(node.args[1], fx.Node) and known_spec(node.args[1]) == spec:
        return node.args[1]  # overwrites everything
    if name in _IDENTITIES or (name == "dropout" and _inactive_dropout(node)):
        return source
    if not same_shape or spec.dtype != given.dtype:
        return None
    if name == "to" or node.target in _RESHAPES:
        return source
    if name in {"expand", "slice"}:
        return source if name != "slice" or (len(node.args) < 5 or node.args[4] == 1) else None
    plain = not node.kwargs and spec.dtype.is_floating_point  # division may round
    if name in {"mul", "div"} and plain and node.args[1] in (1, 1.0):
        return source
    return None


def _key(node: fx.Node) -> Any:
    """Return a key that is equal for nodes that compute the same; 1, 1.0 and True differ."""
    return (node.target, _frozen(node.args), _frozen(tuple(sorted(node.kwargs.items()))))


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value if isinstance(value, fx.Node) else (type(value), str(value))


def _numbers(value: Any) -> list[int]:
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in _numbers(item)]
    if isinstance(value, dict):
        return _numbers(list(value.values()))
    return [value] if isinstance(value, int) else []


def _erase_unused(graph: fx.Graph) -> None:
    # Not fx's own function, which keeps impure operators; none of these is impure any more.
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


def _refuse_mixing(graph: fx.Graph) -> None:
    """Raise a ConversionError if elements of different requests are added, sorted or normalised together.

    Integers may be: experts receive their tokens by sorting and counting the experts' indices.
    """
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        name = op_name(node)
        if name in _REDUCTIONS and _over_batch(node, target):
            raise ConversionError(
                "convert-mixes-requests",
                f"it computes over all requests of a batch ({name}), so a request's output would "
                "depend on its neighbours",
            )


def _over_batch(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    source = node.args[0] if node.args else None
    spec = spec_of(source) if isinstance(source, fx.Node) else None
    if spec is None or not spec.dtype.is_floating_point:
        return False
    names = [argument.name for argument in target._schema.arguments]
    if "other" in names:  # the larger of two tensors
        return False
    chosen: Any = None
    if "dim" in names:
        place = names.index("dim")
        default = target._schema.arguments[place].default_value
        chosen = node.args[place] if place < len(node.args) else node.kwargs.get("dim", default)
    dims = [chosen] if isinstance(chosen, int) else list(chosen or range(len(spec.dims)))
    return any(isinstance(spec.dims[dim], str) for dim in dims)


# Views of a part, and the operators that return the full tensor with that part replaced.
_PARTS = {"select": _aten.select_scatter.default, "slice": _aten.slice_scatter.default}


def _make_pure(node: fx.Node) -> None:
    """Replace an in-place operator with its pure variant, whose result later users read."""
    target, name = node.target, op_name(node)
    assert isinstance(target, torch._ops.OpOverload)
    changed = node.args[0] if node.args else None
    if name == "copy_" and isinstance(changed, fx.Node) and op_name(changed) in _PARTS:
        changed = _write_part(node, changed)
    pure = _pure(target, name)
    if pure is None or not isinstance(changed, fx.Node) or not _owns_its_memory(changed):
        raise ConversionError("convert-writes-in-place", f"it writes into a tensor in place ({name})")
    later = [user for user in changed.users if user is not node and node < user]
    if any(_may_alias(user) for user in changed.users if user is not node and user not in later):
        raise ConversionError(
            "convert-writes-under-view", f"it writes into a tensor of which it keeps a view ({name})"
        )
    if not _preserves_type(node, pure, changed):
        raise ConversionError(
            "convert-writes-other-type", f"it writes numbers of another type or shape in place ({name})"
        )
    for user in later:
        user.replace_input_with(changed, node)
    node.target = pure


def _write_part(node: fx.Node, part: fx.Node) -> fx.Node:
    """Rewrite a copy into a part of a tensor as a copy into the full tensor, which is returned."""
    graph, written = node.graph, node.args[1]
    if isinstance(written, fx.Node) and known_spec(written) != known_spec(part):
        raise ConversionError("convert-writes-in-place", "it writes into a part of a tensor in place")
    while op_name(part) in _PARTS and isinstance(whole := part.args[0], fx.Node):
        with graph.inserting_before(node):
            written = graph.call_function(_PARTS[op_name(part)], (whole, written, *part.args[1:]))
        written.meta["spec"] = known_spec(whole)
        node.replace_input_with(part, whole)
        if not part.users:
            graph.erase_node(part)
        part = whole
    node.args = (part, written)
    node.meta["spec"] = known_spec(part)
    return part


def _pure(target: torch._ops.OpOverload, name: str) -> torch._ops.OpOverload | None:
    """Return the pure operator for `target`, if `target` writes only into its first argument."""
    written = [
        place
        for place, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written != [0] or not name.endswith("_"):
        return None
    pure = getattr(getattr(_aten, name.removesuffix("_"), None), target._overloadname, None)
    if pure is None or target.namespace != "aten":
        return None
    assert isinstance(pure, torch._ops.OpOverload)
    assert not pure._schema.is_mutable
    return pure


def _owns_its_memory(node: fx.Node) -> bool:
    source = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
    if not isinstance(source, fx.Node) or source.op != "call_function":
        return False
    if not _may_alias(source):
        return True
    # A view owns its memory if it is the only user of its base.
    return len(source.all_input_nodes) == 1 and all(
        len(given.users) == 1 and _owns_its_memory(given) for given in source.all_input_nodes
    )


def _may_alias(node: fx.Node) -> bool:
    """Return whether the node's result may share memory with its inputs."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if any(result.alias_info is not None for result in target._schema.returns):
        return not _casts(node)
    schema = target._schema
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    of_others = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    return of_others and op_name(node) not in _FRESH


def _casts(node: fx.Node) -> bool:
    """Return whether a node changes the type, which copies whatever its schema allows."""
    source = node.args[0]
    specs = spec_of(node), spec_of(source) if isinstance(source, fx.Node) else None
    return op_name(node) == "to" and None not in specs and specs[0].dtype != specs[1].dtype  # type: ignore[union-attr]


def _preserves_type(node: fx.Node, pure: torch._ops.OpOverload, changed: fx.Node) -> bool:
    """Return whether the pure operator's result has the type and shape of the tensor that is written."""
    expected = _example(changed)
    try:
        arguments: Any = fx.map_arg((node.args, node.kwargs), _example)
        result = pure(*arguments[0], **arguments[1])
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return isinstance(result, Tensor) and (result.dtype, result.shape) == (expected.dtype, expected.shape)


def _example(node: fx.Node) -> Any:
    spec = spec_of(node)
    return 1 if spec is None else torch.empty(spec.row_shape, dtype=spec.dtype, device="meta")


def take_positions(traced: Traced) -> None:
    """Replace `arange(1) + length`, and values computed from it, with each request's own position.

    In the trace all requests have one length: a tensor of one element that is combined with numbers only and
    finally expanded over the batch. Anything else is refused.
    """
    own: dict[fx.Node, fx.Node] = {}
    expanded: dict[fx.Node, fx.Node] = {}
    for node in list(traced.graph.nodes):
        if _is_position(node):
            own[node] = traced.positions
        elif any(used in own for used in node.all_input_nodes):
            given = own.get(node.all_input_nodes[0])
            if given and node.target is _aten.expand.default and spec_of(node) == known_spec(given):
                expanded[node] = given
            else:
                _widen(node, own)
                own[node] = node
    for node, given in expanded.items():
        node.replace_all_uses_with(given)


def _is_position(node: fx.Node) -> bool:
    if node.target is not _aten.add.Tensor or CACHED not in node.args or node.kwargs:
        return False
    start = next(one for one in node.args if one != CACHED)
    return isinstance(start, fx.Node) and start.target is _aten.arange.default and start.args == (1,)


def _widen(node: fx.Node, own: dict[fx.Node, fx.Node]) -> None:
    """Give a node one element per request."""
    spec, target = spec_of(node), node.target
    pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    known = pointwise or target is _aten.to.dtype or target in _RESHAPES
    if spec is None or not known or {*spec.dims} != {1} or not own.keys() >= {*node.all_input_nodes}:
        raise ConversionError(
            "convert-depends-on-length", "what it computes depends on how long the cache is, beyond attention"
        )
    if target in _RESHAPES:
        node.args = (node.args[0], [-1, *spec.dims[1:]])
    node.args = fx.map_arg(node.args, own.__getitem__)
    node.meta["spec"] = make_spec((BATCH, *spec.dims[1:]), spec.dtype)
