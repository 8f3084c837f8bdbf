"""Turn operators that write in place into pure ones, where no other operator can see the difference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from lamina.convert.errors import ConversionError
from lamina.convert.spec import spec_of

_aten = torch.ops.aten

# Composite operators that never return their input. Any other composite operator may, whatever its schema
# declares: dropout in evaluation is its input, einsum may be a transpose.
_FRESH = frozenset(
    {
        *("linear", "matmul", "softmax", "log_softmax", "layer_norm", "rms_norm", "silu", "relu6", "selu"),
        *("one_hot", "where", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "square"),
    }
)


def make_pure(node: fx.Node) -> None:
    """Let later readers of the changed tensor read the pure operator's result instead."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    changed = node.args[0] if node.args else None
    name = target._schema.name.partition("::")[2]
    pure = _pure(target, name)
    if pure is None or not isinstance(changed, fx.Node) or not _owns_its_memory(changed):
        raise ConversionError("convert-writes-in-place", f"it writes into a tensor in place ({name})")
    later = [user for user in changed.users if user is not node and node < user]
    if any(_may_alias(user) for user in changed.users if user is not node and user not in later):
        raise ConversionError(
            "convert-writes-under-view", f"it writes into a tensor of which it keeps a view ({name})"
        )
    if not _keeps_its_type(node, pure, changed):
        raise ConversionError(
            "convert-writes-other-type", f"it writes numbers of another type or shape in place ({name})"
        )
    for user in later:
        user.replace_input_with(changed, node)
    node.target = pure


def _pure(target: torch._ops.OpOverload, name: str) -> torch._ops.OpOverload | None:
    """The operator that gives what `target` writes into its first argument, if that is all it writes."""
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
    return isinstance(source, fx.Node) and source.op == "call_function" and not _may_alias(source)


def _may_alias(node: fx.Node) -> bool:
    """Whether the node's result may share memory with what it is given."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if any(result.alias_info is not None for result in target._schema.returns):
        return True
    schema = target._schema
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    of_others = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    return of_others and schema.name.partition("::")[2] not in _FRESH


def _keeps_its_type(node: fx.Node, pure: torch._ops.OpOverload, changed: fx.Node) -> bool:
    """Whether the pure operator gives what fits where the other writes: no wider type, nothing broadcast."""
    wanted = _example(changed)
    try:
        arguments: Any = fx.map_arg((node.args, node.kwargs), _example)
        result = pure(*arguments[0], **arguments[1])
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return isinstance(result, Tensor) and (result.dtype, result.shape) == (wanted.dtype, wanted.shape)


def _example(node: fx.Node) -> Any:
    spec = spec_of(node)
    return 1 if spec is None else torch.empty(spec.row_shape, dtype=spec.dtype, device="meta")
