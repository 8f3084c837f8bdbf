"""Run a model symbolically: one decode step of B requests, as a graph of tensor operators without weights."""

from __future__ import annotations

import bisect
import gc
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from lamina.convert.errors import ConversionError, in_short
from lamina.convert.repeated_layers import Kind, expand, layer_number, repeated_kinds, replaced_layers
from lamina.convert.states import StateKind, StateSpec

# Each replacement below accepts exactly what decode attention needs and refuses anything else, so that a
# model which does more than attend causally to its own keys is never converted into one that does not.

# A length that no model has: if it occurs in the traced graph, the graph depends on the cache's length.
CACHED = 7_914_919

# Masks are evaluated at positions up to this one: a window of this size or more is the whole context.
_FARTHEST = 1 << 18
_FUTURE = 8


@torch.library.custom_op("lamina::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,  # noqa: ARG001
    v: Tensor,  # noqa: ARG001
    layer: int,
    scale: float,  # noqa: ARG001
    window: int,  # noqa: ARG001
    chunk: int,  # noqa: ARG001
    softcap: float,  # noqa: ARG001
    sinks: Tensor | None,  # noqa: ARG001
) -> Tensor:
    """Opaque operator in place of attention; it is cut out and never run."""
    raise AssertionError(f"attention {layer} was cut out, yet is run on {tuple(q.shape)}")


@attention.register_fake
def _(q: Tensor, _k: Tensor, v: Tensor, *_: object) -> Tensor:
    batch, heads, length = q.shape[:3]
    return q.new_empty(batch, length, heads, v.shape[3])


@torch.library.custom_op("lamina::stored", mutates_args=())
def stored(x: Tensor, layer: int) -> Tensor:
    """Mark the latent that a layer stores before keys and values are computed; `absorb` replaces it."""
    raise AssertionError(f"attention {layer} expands what is stored, {tuple(x.shape)}")


@stored.register_fake
def _(x: Tensor, _layer: int) -> Tensor:
    return torch.empty_like(x)


ATTENTION = torch.ops.lamina.attention.default
STORED = torch.ops.lamina.stored.default


@torch.library.custom_op("lamina::state", mutates_args=())
def read_state(tokens: Tensor, number: int, shape: list[int], dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    """Placeholder for a layer's state of each request after the previous token."""
    raise AssertionError(f"state {number} is run on {tuple(tokens.shape)}")


@read_state.register_fake
def _(tokens: Tensor, number: int, shape: list[int], dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return tokens.new_empty(tokens.shape[0], *shape, dtype=dtype)


@torch.library.custom_op("lamina::keep", mutates_args=())
def keep_state(state: Tensor, number: int) -> Tensor:
    """Placeholder for writing a layer's state after this token."""
    raise AssertionError(f"state {number} is run on {tuple(state.shape)}")


@keep_state.register_fake
def _(state: Tensor, number: int) -> Tensor:  # noqa: ARG001
    return state.new_empty(0)


@dataclass(frozen=True)
class Mask:
    """An attention mask: a window of `window` tokens, chunks of `chunk` tokens, or causal if both are 0.

    A window includes the token itself; chunks count from the first token. `window` is None for any other
    pattern, which is an error only if a layer uses the mask.
    """

    window: int | None
    chunk: int = 0

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConversionError("convert-reads-mask", f"it computes with its attention mask (its {name!r})")


class Length:
    """The cache length that a traced model receives.

    A model may add to it, check whether there is a cache, and make a tensor of that length (such as a mask
    that is never used; a used one would have a length that no model has). Added to a tensor it gives the
    positions of new tokens, which `normalise.take_positions` makes per request. It is not a number, so that
    nothing else can be computed from it.
    """

    def __init__(self, value: int) -> None:
        self._value = value

    def __add__(self, other: object) -> Length | Tensor:
        if isinstance(other, int):
            return Length(self._value + other)
        if isinstance(other, Tensor):
            return other + self._value
        return self._refuse()

    def __index__(self) -> int:
        return self._value

    __radd__ = __add__

    def __bool__(self) -> bool:
        return True

    def __gt__(self, other: object) -> bool:
        return self._is_more(other)

    __ge__ = __ne__ = __gt__

    def __lt__(self, other: object) -> bool:
        return not self._is_more(other)

    __le__ = __eq__ = __lt__
    __hash__ = None  # type: ignore[assignment]

    def _is_more(self, other: object) -> bool:
        # Any other comparison means that the model changes what it computes at some length.
        if isinstance(other, int) and other <= 1:
            return True
        return self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise ConversionError(
            "convert-depends-on-length", "what it computes depends on how long the cache is, beyond attention"
        )

    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = _refuse
    __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = _refuse
    __int__ = __float__ = _refuse


class UnknownStatesError(Exception):
    """A layer reads a recurrent state whose shape is not known yet."""


class TracedCache:
    """A KV cache for tracing: it stores nothing and records which layer stores what.

    It refuses any state except keys, values, and the convolution and recurrence states in `states`.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()  # layers with a sliding window; models read it to size masks

    def __init__(self, states: Sequence[StateSpec] = ()) -> None:
        self.layers = 0  # layers with attention so far
        self.layer_idx = -1  # of the last of them
        self.states: dict[tuple[int, str, int], int] = {
            (spec.layer, spec.kind, spec.place): number for number, spec in enumerate(states)
        }
        self.specs = states
        self.tokens: Tensor | None = None
        self.current: dict[int, Tensor] = {}  # states by number; the layer may write into them
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.expanded = False  # keys and values are computed from what was stored last

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        layer_idx = layer_number(layer_idx)
        if layer_idx <= self.layer_idx or (layer_idx != self.layers and not self.states):
            raise ConversionError(
                "convert-layer-order", f"layer {layer_idx} stores its keys where layer {self.layers} should"
            )
        self.layers += 1
        self.layer_idx = layer_idx
        self.expanded = keys.shape != values.shape and keys.shape[1] == values.shape[1] == 1
        if self.expanded:
            number = self.layers - 1
            keys, values = stored(keys, number), stored(values, number)
        self.keys, self.values = keys, values
        return keys, values

    def get_seq_length(self, *_: object) -> Length:
        return Length(CACHED)

    def get_query_offset(self, *_: object) -> int:
        return CACHED

    def get_mask_sizes(self, query_length: int, *_: object) -> tuple[int, int]:
        return CACHED + query_length, 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state(layer_idx, "conv", state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state(layer_idx, "recurrent", state_idx)

    def update_recurrent_state(
        self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        number = self.states[layer_idx, "recurrent", state_idx]
        if state.shape != self.current[number].shape:
            raise ConversionError(
                "convert-keeps-other-state", f"layer {layer_idx} keeps a state that grows with the text"
            )
        self.current[number] = state.to(self.specs[number].dtype)
        return state

    def is_recording_past(self, *_: object) -> bool:
        return False

    def _state(self, layer: int, kind: str, place: int) -> Tensor | None:
        if not self.states:
            raise UnknownStatesError
        number = self.states.get((layer, kind, place))
        if number is None:  # the layer has no state of this kind
            return None
        if number not in self.current:
            assert self.tokens is not None
            spec = self.specs[number]
            self.current[number] = read_state(self.tokens, number, list(spec.shape), spec.dtype)
        return self.current[number]

    def __getattr__(self, name: str) -> object:
        raise ConversionError(
            "convert-keeps-other-state",
            f"it keeps more between tokens than keys and values (it asks the cache for {name!r})",
        )


class ScoutingCache(TracedCache):
    """A cache without states that records which ones layers write after a first token."""

    def __init__(self) -> None:
        super().__init__()
        self.new_specs: dict[tuple[int, str, int], StateSpec] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        self.layers, self.layer_idx = self.layers + 1, layer_idx
        self.keys, self.values = keys, values
        return keys, values

    def update_conv_state(
        self, states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> Tensor:
        width = states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        self._note(layer_idx, "conv", state_idx, (*states.shape[1:-1], width), states.dtype)
        return nn.functional.pad(states, (width - states.shape[-1], 0))

    def update_recurrent_state(
        self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> Tensor:
        self._note(layer_idx, "recurrent", state_idx, tuple(state.shape[1:]), state.dtype)
        return state

    def _note(
        self,
        layer: int,
        kind: StateKind,
        place: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self.new_specs[layer, kind, place] = StateSpec(layer, kind, place, shape, dtype)

    def _state(self, *_: object) -> None:
        return None


# The cache of the trace that runs in this thread: the interface below is called from deep inside a model.
tracing: ContextVar[TracedCache] = ContextVar("tracing")


def _mask(*, mask_function: Any, attention_mask: Tensor | None, **_: object) -> Mask:
    """Recognise the mask that a model builds by evaluating it at a few positions."""
    if attention_mask is not None:
        raise ConversionError("convert-padding-mask", "it builds a padding mask of its own")
    with _disable_current_modes():
        # The first position from which the first token is masked.
        positions = range(_FARTHEST + 1)
        reach = bisect.bisect_left(positions, True, key=lambda at: not _visible(mask_function, at)[0])
        window = chunk = 0
        if 1 < reach < len(positions) and _visible(mask_function, reach).sum() == 1:
            chunk = reach
        elif reach < len(positions):
            window = reach
        probes = {0, 1, *(times * reach + one for times in (1, 2) for one in (-1, 0, 1))}
        probes |= {_FARTHEST // 3, _FARTHEST - 1, _FARTHEST}
        for position in sorted(probe for probe in probes if 0 <= probe <= _FARTHEST):
            index = torch.arange(position + _FUTURE)
            first = position // chunk * chunk if chunk else max(position - (window or position + 1) + 1, 0)
            if not torch.equal(_visible(mask_function, position), (index <= position) & (index >= first)):
                return Mask(None)
    return Mask(window, chunk)


class _Request:
    """Placeholder for a request's number: a mask may only use it to look up the left padding, which is 0."""

    @classmethod
    def __torch_function__(
        cls, function: Any, _: object, args: tuple[Any, ...] = (), __: object = None
    ) -> Tensor:
        if function is not Tensor.__getitem__ or args[0].dim() != 1 or not isinstance(args[1], cls):
            raise ConversionError("convert-mask-pattern", "its attention mask differs between requests")
        return torch.zeros((), dtype=torch.int64)


def _visible(mask_function: Any, position: int) -> Tensor:
    """Return which tokens are visible from a position, including a few later ones."""
    zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(position + _FUTURE)
    visible: Tensor = mask_function(_Request(), zero, torch.tensor(position), keys)
    return visible.broadcast_to(keys.shape)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # attention sinks
    **others: object,
) -> tuple[Tensor, None]:
    """Replace one attention operator with the opaque node, after checking its arguments."""
    cache = tracing.get()  # waits: it is a context's variable
    layer = cache.layers - 1
    where = f"attention {layer}"
    if cache.keys is None or layer_number(module.layer_idx) != cache.layer_idx:
        raise ConversionError(
            "convert-shared-keys",
            f"{where} does not store the keys it attends to (KV sharing between layers)",
        )
    if not cache.expanded and (key is not cache.keys or value is not cache.values):
        raise ConversionError(
            "convert-changes-stored-keys", f"{where} changes keys or values after they are stored"
        )
    cache.keys = cache.values = None  # a second operator on the same keys is refused
    if not isinstance(attention_mask, Mask):
        raise ConversionError("convert-no-mask", f"{where} does not say which tokens it may see")
    window = attention_mask.window
    if window is None:
        raise ConversionError(
            "convert-mask-pattern",
            f"{where} sees something else than the tokens before it or the last few of them",
        )
    chunk = attention_mask.chunk
    if sliding_window is not None and sliding_window != window:
        raise ConversionError(
            "convert-window-contradicts",
            f"{where} names a window of {sliding_window} tokens but its mask has {window}",
        )
    if getattr(module, "is_causal", True) is False or others.pop("is_causal", None) is False:
        raise ConversionError("convert-not-causal", f"{where} is not causal")
    if dropout:
        raise ConversionError("convert-drops-out", f"{where} drops out in evaluation")
    if scaling is None:
        raise ConversionError("convert-no-scale", f"{where} does not say how it scales")
    # Positions are already applied to q and k; the last two request other outputs.
    for harmless in ("position_ids", "use_cache", "cache_position"):
        others.pop(harmless, None)
    unknown = sorted(name for name, given in others.items() if given is not None and given is not False)
    if unknown:
        raise ConversionError(
            "convert-attention-arguments",
            f"{where} uses {', '.join(unknown)}, which the attention worker does not know",
        )
    _check_shapes(where, query, key, value, expanded=cache.expanded)
    if s_aux is not None and s_aux.shape != query.shape[1:2]:
        raise ConversionError("convert-sinks", f"{where} has attention sinks that are not one for each head")
    return attention(
        query, key, value, layer, float(scaling), window, chunk, float(softcap or 0.0), s_aux
    ), None


def _check_shapes(where: str, query: Tensor, key: Tensor, value: Tensor, *, expanded: bool) -> None:
    if query.dim() != 4 or query.shape[2] != 1 or key.shape[2] != 1:
        raise ConversionError("convert-not-one-token", f"{where} does not attend with one token a request")
    if (key.shape != value.shape and not expanded) or query.shape[3] != key.shape[3]:
        raise ConversionError(
            "convert-head-sizes",
            f"{where} has heads of {query.shape[3]}, {key.shape[3]} and {value.shape[3]} for q, k and v; "
            "the KV cache needs one size",
        )
    if query.shape[1] % key.shape[1]:
        raise ConversionError(
            "convert-kv-heads",
            f"{where} has {query.shape[1]} heads, not a multiple of its {key.shape[1]} KV heads",
        )


# Registering again replaces the entry. Only models built for "lamina" look it up.
AttentionInterface.register("lamina", _attend)
AttentionMaskInterface.register("lamina", _mask)


# A batch of one would be specialised to a constant; the exported range below still starts at one.
_EXAMPLE_BATCH = 2
MOST_REQUESTS = 65536


@dataclass(frozen=True)
class Traced:
    """The graph of one decode step and the meaning of its placeholders."""

    graph: fx.Graph
    tokens: fx.Node
    positions: fx.Node
    parameters: dict[fx.Node, str]  # names as in model.named_parameters()
    buffers: dict[fx.Node, str]
    literals: dict[fx.Node, Tensor]  # tensors made of numbers in the model's code
    states: tuple[StateSpec, ...] = ()


class _DecodeStep(nn.Module):
    """Module that maps one token of each request to its logits."""

    def __init__(self, model: PreTrainedModel, cache: TracedCache) -> None:
        super().__init__()
        self.model = model
        self.cache = cache

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        self.cache.tokens = tokens
        output: Any = self.model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            past_key_values=self.cache,
            use_cache=False,
        )
        if not isinstance(getattr(output, "logits", None), Tensor):
            raise ConversionError("convert-no-logits", "it gives no logits; give the causal language model")
        return output.logits[:, -1], *(
            keep_state(state, number) for number, state in self.cache.current.items()
        )


def trace(model: PreTrainedModel) -> Traced:
    """Trace `model`, which is on the meta device; a ConversionError gives the reason if it fails."""
    layers = model.config.num_hidden_layers
    kinds = repeated_kinds(model, layers)
    traced = (_trace_repeated(model, kinds) if kinds else None) or _trace_all(model)
    nodes = [node for node in traced.graph.nodes if node.target is ATTENTION]
    fewest = layers - len({spec.layer for spec in traced.states})
    if not fewest <= len(nodes) <= layers or not nodes:
        raise ConversionError(
            "convert-attention-missing",
            f"{len(nodes)} attention operators were found in {layers} layers; a model whose "
            "attention does not go through transformers' attention interface cannot be split",
        )
    return traced


def _trace_repeated(model: PreTrainedModel, kinds: Sequence[Kind]) -> Traced | None:
    """Trace one layer of each kind and copy it for the others; None if that fails."""
    cache = TracedCache()
    try:
        with replaced_layers(kinds, cache) as copies:
            exported = _export(_DecodeStep(model, cache), cache)
        traced = _read(exported, ())
        expand(traced.graph, copies, (traced.parameters, traced.buffers), model, (ATTENTION, STORED))
    except Exception:  # tracing all layers reports the reason
        return None
    return traced


def _trace_all(model: PreTrainedModel) -> Traced:
    cache = TracedCache()
    try:
        exported = _export(_DecodeStep(model, cache), cache)
    except UnknownStatesError:
        cache = TracedCache(_scout(model))
        exported = _export(_DecodeStep(model, cache), cache)
    return _read(exported, tuple(cache.specs))


def _scout(model: PreTrainedModel) -> Sequence[StateSpec]:
    """Run the model once to collect the states that layers keep besides keys and values."""
    cache = ScoutingCache()
    active = tracing.set(cache)
    tokens = torch.zeros(_EXAMPLE_BATCH, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad():
            _DecodeStep(model, cache)(tokens, tokens)
    except ConversionError:
        raise
    except Exception as error:  # whatever a model's own code raises
        raise ConversionError(
            "convert-keeps-other-state",
            f"it keeps more between tokens than keys and values, and does not say what: {in_short(error)}",
        ) from error
    finally:
        tracing.reset(active)
    if not cache.new_specs:
        raise ConversionError(
            "convert-keeps-other-state", "it keeps more between tokens than keys and values"
        )
    return tuple(cache.new_specs.values())


def _export(step: nn.Module, cache: TracedCache) -> ExportedProgram:
    example = torch.zeros(_EXAMPLE_BATCH, dtype=torch.int64, device="meta")
    batch = {0: Dim("B", min=1, max=MOST_REQUESTS)}
    active = tracing.set(cache)
    try:
        # Deprecations inside transformers and torch are not for users.
        with torch.no_grad(), warnings.catch_warnings(), _without_bookkeeping(), _Viewed():
            warnings.simplefilter("ignore")
            return export(step, (example, example.clone()), dynamic_shapes=(batch, batch), strict=False)
    except (ConversionError, UnknownStatesError):
        raise
    except Exception as error:  # whatever a model's own code raises under symbolic execution
        raise ConversionError(
            "convert-not-symbolic", f"it cannot be executed symbolically: {in_short(error)}"
        ) from error
    finally:
        tracing.reset(active)


class _Viewed(TorchFunctionMode):
    """Reshape the base of a view instead of the view.

    Joining dimensions and splitting them again, as experts do, would leave a condition on B that export
    cannot prove.
    """

    def __torch_function__(
        self, function: Any, _: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        reshapes = function in (Tensor.view, Tensor.reshape) and not kwargs
        if not reshapes or isinstance(args[1], torch.dtype):
            return function(*args, **(kwargs or {}))
        shown = getattr(args[0], "_lamina_shown", args[0])
        if not shown.is_contiguous():
            return function(*args)
        result = function(shown, *args[1:])
        result._lamina_shown = shown
        return result


@contextmanager
def _without_bookkeeping() -> Iterator[None]:
    """Turn off bookkeeping of export that is not needed here, which is 40% of the time of an 80-layer model.

    A stack trace for each node (not in every torch), code for each intermediate module, and looking for
    garbage among objects that all live until the graph is done.
    """
    traces = getattr(fx.config, "do_not_emit_stack_traces", None)
    # It logs a stack trace for errors that are reported as one sentence here.
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


def _read(exported: ExportedProgram, states: tuple[StateSpec, ...]) -> Traced:
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
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in exported.graph_signature.output_specs):
        raise ConversionError("convert-changes-buffer", "it changes a buffer while decoding")
    tokens, positions = inputs
    return Traced(exported.graph, tokens, positions, parameters, buffers, literals, states)
