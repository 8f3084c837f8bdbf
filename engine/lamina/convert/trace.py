"""Run a model symbolically: one decode step of B requests, as a graph of tensor operators without weights."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from transformers import PreTrainedModel

from lamina.convert.attention import TracedCache, tracing
from lamina.convert.errors import ConversionError, in_short

# One would be specialised to a constant; the exported range below still starts at one.
_EXAMPLE_BATCH = 2
MOST_REQUESTS = 65536


@dataclass(frozen=True)
class Traced:
    """The graph of one decode step, and what its placeholders stand for."""

    graph: fx.Graph
    tokens: fx.Node
    positions: fx.Node
    parameters: dict[fx.Node, str]  # by the name in model.named_parameters()
    buffers: dict[fx.Node, str]
    literals: dict[fx.Node, Tensor]  # tensors made from numbers in the model's code


class _DecodeStep(nn.Module):
    """One token of each request in, its logits out; the cache is held elsewhere."""

    def __init__(self, model: PreTrainedModel, cache: TracedCache) -> None:
        super().__init__()
        self.model = model
        self.cache = cache

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        output: Any = self.model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            past_key_values=self.cache,
            use_cache=False,
        )
        if not isinstance(getattr(output, "logits", None), Tensor):
            raise ConversionError("convert-no-logits", "it gives no logits; give the causal language model")
        logits: Tensor = output.logits[:, -1]
        return logits


def trace(model: PreTrainedModel) -> Traced:
    """The graph of `model`, which is on the meta device; a ConversionError says why it has none."""
    cache = TracedCache()
    exported = _export(_DecodeStep(model, cache), cache)
    traced = _read(exported)
    layers = model.config.num_hidden_layers
    nodes = [node for node in traced.graph.nodes if node.target is torch.ops.lamina.attention.default]
    if len(nodes) != layers:
        raise ConversionError(
            "convert-attention-missing",
            f"{len(nodes)} attention operators were found in {layers} layers; a model whose "
            "attention does not go through transformers' attention interface cannot be split",
        )
    return traced


def _export(step: nn.Module, cache: TracedCache) -> ExportedProgram:
    example = torch.zeros(_EXAMPLE_BATCH, dtype=torch.int64, device="meta")
    batch = {0: Dim("B", min=1, max=MOST_REQUESTS)}
    active = tracing.set(cache)
    try:
        # Deprecations inside transformers and torch do not concern users.
        with torch.no_grad(), warnings.catch_warnings(), _without_bookkeeping():
            warnings.simplefilter("ignore")
            return export(step, (example, example.clone()), dynamic_shapes=(batch, batch), strict=False)
    except ConversionError:
        raise
    except Exception as error:  # whatever a model's own code raises under symbolic execution
        raise ConversionError(
            "convert-not-symbolic", f"it cannot be executed symbolically: {in_short(error)}"
        ) from error
    finally:
        tracing.reset(active)


@contextmanager
def _without_bookkeeping() -> Iterator[None]:
    """Turn off bookkeeping of export that is not needed here, which is 40% of the time of an 80-layer model.

    A stack trace for each node (not in every torch), code for each intermediate module, and looking for
    garbage among objects that all live until the graph is done.
    """
    traces = getattr(fx.config, "do_not_emit_stack_traces", None)
    # It prints a stack trace for what we turn into a sentence.
    loud = logging.getLogger("torch._subclasses.fake_tensor")
    was_off = loud.disabled
    collects = gc.isenabled()
    try:
        gc.disable()
        loud.disabled = True
        if traces is not None:
            fx.config.do_not_emit_stack_traces = True
        with _use_lazy_graph_module(True):
            yield
    finally:
        if collects:
            gc.enable()
        loud.disabled = was_off
        if traces is not None:
            fx.config.do_not_emit_stack_traces = traces


def _read(exported: ExportedProgram) -> Traced:
    parameters: dict[fx.Node, str] = {}
    buffers: dict[fx.Node, str] = {}
    literals: dict[fx.Node, Tensor] = {}
    inputs: list[fx.Node] = []
    placeholders = (node for node in exported.graph.nodes if node.op == "placeholder")
    for node, spec in zip(placeholders, exported.graph_signature.input_specs, strict=True):
        target = str(spec.target).removeprefix("model.")
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(node)
        elif spec.kind == InputKind.PARAMETER:
            parameters[node] = target
        elif spec.kind == InputKind.BUFFER:
            buffers[node] = target
        else:
            literal = exported.constants[str(spec.target)]
            if not isinstance(literal, Tensor) or literal.is_meta:
                raise ConversionError(
                    "convert-unknown-value", f"it uses {target}, whose value is unknown without its weights"
                )
            literals[node] = literal
    if len(exported.graph_signature.output_specs) != 1:
        raise ConversionError("convert-changes-buffer", "it changes a buffer while decoding")
    tokens, positions = inputs
    return Traced(exported.graph, tokens, positions, parameters, buffers, literals)
