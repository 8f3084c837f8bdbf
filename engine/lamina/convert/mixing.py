"""Find operators that compute over several requests at once: a request's output must be its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lamina.convert.errors import ConversionError
from lamina.convert.spec import spec_of

_REDUCTIONS = frozenset(
    {
        *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "var_mean"),
        *("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "norm", "linalg_vector_norm"),
        *("cumsum", "cumprod", "cummax", "cummin", "sort", "argsort", "topk", "median", "kthvalue"),
    }
)


def refuse_mixing(graph: fx.Graph, label: str) -> None:
    """Raise a ConversionError if numbers of different requests are added, sorted or normalised together.

    Whole numbers may be: experts are handed their tokens by sorting and counting the experts' indices.
    """
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        name = target._schema.name.partition("::")[2]
        if name in _REDUCTIONS and _over_batch(node, target):
            raise ConversionError(
                "convert-mixes-requests",
                f"{label}: it computes over all requests of a batch ({name}), so a request's output would "
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
