"""Trace one layer of each repeated kind and copy its graph for the others.

Layers are of one kind if they are built identically (classes, numbers, shapes: all but weights and the
layer's number), are called with equal arguments, and compute nothing from their number: while the first one
is traced, its number is an object that refuses every computation. If any of this fails, all layers are
traced in full. The copies equal what tracing each layer would give, which for 80 layers takes ten times as
long.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

# The attribute in which models store a layer's number.
_NUMBER = "layer_idx"
# With fewer layers the two extra operators cost more than they save.
_FEWEST = 3
_PLAIN = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)


class NotIdenticalError(Exception):
    """Layers that looked identical are not, or it cannot be determined."""


class LayerNumber:
    """Placeholder for a layer's number: it can be passed on, and refuses any computation."""

    __slots__ = ("known",)

    def __init__(self, known: int) -> None:
        self.known = known

    def _refuse(self, *_: object) -> NoReturn:
        raise NotIdenticalError("what a layer computes depends on its number")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _refuse
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = _refuse
    __int__ = __float__ = __str__ = __repr__ = __format__ = _refuse


def layer_number(number: Any) -> int:
    """Return a layer's number, whether it is an int or a LayerNumber."""
    result: int = number.known if isinstance(number, LayerNumber) else number
    return result


class Cache(Protocol):
    """The attributes of a cache that count attention operators."""

    layers: int
    layer_idx: int


@dataclass
class Kind:
    """Layers with the same structure: the first is traced, the others are copies of it."""

    number: int
    layers: nn.ModuleList
    path: str  # of the list
    members: list[int]
    # Arguments and results of the first one, flattened.
    given: list[Any] = field(default_factory=list)
    takes: TreeSpec | None = None
    made: list[Any] = field(default_factory=list)
    gives: TreeSpec | None = None
    attention: int = 0  # its first attention operator, by number
    attentions: int = 0

    def prefix(self, member: int) -> str:
        return f"{self.path}.{member}."


@dataclass(frozen=True)
class _Copy:
    kind: Kind
    member: int
    attention: int


# Read by the fake operators below, which run in the tracing thread.
_copies: ContextVar[list[_Copy]] = ContextVar("copies")


@torch.library.custom_op("lamina::edge", mutates_args=())
def edge(given: list[Tensor], kind: int) -> list[Tensor]:  # noqa: ARG001
    """Mark the start and the end of the layer that is traced."""
    raise AssertionError("the edges of a layer are for tracing only")


@edge.register_fake
def _(given: list[Tensor], kind: int) -> list[Tensor]:  # noqa: ARG001
    return [one.new_empty_strided(one.shape, one.stride()) for one in given]


@torch.library.custom_op("lamina::layer_copy", mutates_args=())
def layer_copy(given: list[Tensor], number: int) -> list[Tensor]:  # noqa: ARG001
    """Placeholder for a layer with the structure of the traced one."""
    raise AssertionError("a layer's copy is for tracing only")


@layer_copy.register_fake
def _(given: list[Tensor], number: int) -> list[Tensor]:
    copies = _copies.get()  # waits: it is a context's variable
    made = [one for one in copies[number].kind.made if isinstance(one, Tensor)]
    return [given[0].new_empty_strided(one.shape, one.stride(), dtype=one.dtype) for one in made]


_EDGE, _COPY = torch.ops.lamina.edge.default, torch.ops.lamina.layer_copy.default


def repeated_kinds(model: nn.Module, layers: int) -> list[Kind]:
    """Group the layers of a model by structure; groups that are too small are left out."""
    uses: dict[int, int] = {}
    for _, one in model.named_parameters(remove_duplicate=False):
        uses[id(one)] = uses.get(id(one), 0) + 1
    kinds: list[Kind] = []
    for path, stack in model.named_modules():
        if not isinstance(stack, nn.ModuleList) or len(stack) != layers:
            continue
        by_structure: dict[Any, list[int]] = {}
        for member, layer in enumerate(stack):
            shared = any(uses[id(one)] > 1 for one in layer.parameters())
            structure = member if shared else _structure(layer, member)
            by_structure.setdefault(structure, []).append(member)
        for members in by_structure.values():
            if len(members) >= _FEWEST:
                kinds.append(Kind(len(kinds), stack, path, members))
        return kinds  # lists inside layers are part of the layers
    return kinds


def _structure(module: nn.Module, number: int) -> tuple[object, ...]:
    """Return a key that is equal for modules which differ only in weights and number."""
    state = {**vars(module)}
    parameters, buffers, children = (state.pop(name) for name in ("_parameters", "_buffers", "_modules"))
    tensors = [
        (name, one if one is None else (tuple(one.shape), one.dtype))
        for kind in (parameters, buffers)
        for name, one in kind.items()
    ]
    own = [
        (name, "number" if name == _NUMBER and value == number else _value(value))
        for name, value in state.items()
    ]
    inside = [(name, child and _structure(child, number)) for name, child in children.items()]
    return (type(module), tuple(tensors), tuple(own), tuple(inside))


def _value(value: object) -> object:
    """Return a key that is equal for equal plain values of one type; any other value equals only itself."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_value, value))
    if isinstance(value, partial):
        return partial, id(value.func), _value(value.args), _value(value.keywords)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_value, value))
    if isinstance(value, Mapping):
        return type(value), tuple((_value(key), _value(one)) for key, one in value.items())
    return id(value)


class _Placeholder(nn.Module):
    """Module that replaces a layer with the structure of the traced one."""

    def __init__(self, kind: Kind, member: int, cache: Cache) -> None:
        super().__init__()
        # No submodule: its weights are none of the graph's.
        self.__dict__["_stands_for"] = kind.layers[member], kind, member, cache

    def __getattr__(self, name: str) -> Any:
        """Return a plain attribute of the layer: models may read its type before they call it."""
        value = getattr(self.__dict__["_stands_for"][0], name)
        if not isinstance(value, _PLAIN) or name == _NUMBER:
            raise NotIdenticalError(f"{name} of a layer is used from outside")
        return value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _, kind, member, cache = self.__dict__["_stands_for"]
        leaves, takes = tree_flatten((args, kwargs))
        if kind.takes is None or takes != kind.takes or not all(map(_same, leaves, kind.given)):
            raise NotIdenticalError("layers are called differently")
        if kind.attentions and member != cache.layers:
            raise NotIdenticalError("layers are not called in their order")
        copies = _copies.get()  # waits: it is a context's variable
        copies.append(_Copy(kind, member, cache.layers))
        made = iter(layer_copy([one for one in leaves if isinstance(one, Tensor)], len(copies) - 1))
        cache.layers += kind.attentions
        cache.layer_idx = member if kind.attentions else cache.layer_idx
        return tree_unflatten(
            [next(made) if isinstance(one, Tensor) else one for one in kind.made], kind.gives
        )


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        layouts = [(each.shape, each.stride(), each.dtype, each.device) for each in (one, other)]
        return layouts[0] == layouts[1]
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


def _traced(kind: Kind, forward: Callable[..., Any], cache: Cache) -> Callable[..., Any]:
    """Wrap the traced layer's forward between two edge operators."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if kind.takes is not None:
            raise NotIdenticalError("a layer is called more than once")
        kind.given, kind.takes = tree_flatten((args, kwargs))
        kind.attention = cache.layers
        args, kwargs = tree_unflatten(_edged(kind.given, kind), kind.takes)
        kind.made, kind.gives = tree_flatten(forward(*args, **kwargs))
        kind.attentions = cache.layers - kind.attention
        return tree_unflatten(_edged(kind.made, kind), kind.gives)

    return run


def _edged(leaves: Sequence[Any], kind: Kind) -> list[Any]:
    tensors = [one for one in leaves if isinstance(one, Tensor)]
    if not tensors:
        raise NotIdenticalError("a layer is given or gives no tensors")
    passed = iter(edge(tensors, kind.number))
    return [next(passed) if isinstance(one, Tensor) else one for one in leaves]


@contextmanager
def replaced_layers(kinds: Sequence[Kind], cache: Cache) -> Iterator[list[_Copy]]:
    """Replace all but one layer of each kind while the model is traced; yields the calls of the others."""
    copies: list[_Copy] = []
    active = _copies.set(copies)
    numbered: list[tuple[nn.Module, int]] = []
    replaced: list[tuple[nn.ModuleList, int, nn.Module]] = []
    first = [kind.layers[kind.members[0]] for kind in kinds]
    try:
        for kind, layer in zip(kinds, first, strict=True):
            for module in layer.modules():
                if vars(module).get(_NUMBER) == kind.members[0]:
                    numbered.append((module, kind.members[0]))
                    setattr(module, _NUMBER, LayerNumber(kind.members[0]))
            layer.__dict__["forward"] = _traced(kind, layer.forward, cache)
            for member in kind.members[1:]:
                replaced.append((kind.layers, member, kind.layers[member]))
                kind.layers[member] = _Placeholder(kind, member, cache)
        yield copies
    finally:
        _copies.reset(active)
        for module, number in numbered:
            setattr(module, _NUMBER, number)
        for layer in first:
            layer.__dict__.pop("forward", None)
        for layers, member, module in replaced:
            layers[member] = module


@dataclass(frozen=True)
class _Body:
    """The nodes of a traced layer: inputs, operators and outputs."""

    enter: fx.Node
    given: tuple[fx.Node, ...]
    inside: list[fx.Node]
    gives: list[fx.Node]


def expand(
    graph: fx.Graph,
    copies: Sequence[_Copy],
    tensors: Sequence[dict[fx.Node, str]],
    model: nn.Module,
    numbered: Sequence[object],
) -> None:
    """Replace each placeholder with a copy of the traced layer's nodes.

    `tensors` are the nodes of parameters and buffers, to which those of the copies are added; the fourth or
    second argument of a `numbered` operator is the number of an attention operator.
    """
    named = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    first = next(node for node in graph.nodes if node.op == "call_function")
    kinds = {one.kind.number: one.kind for one in copies}
    bodies = {number: _body(graph, kind, tensors) for number, kind in kinds.items()}
    for node in [node for node in graph.nodes if node.target is _COPY]:
        copy = copies[node.args[1]]
        body = bodies[copy.kind.number]
        known = dict(zip(body.given, node.args[0], strict=True))
        own = _own(graph, first, copy, tensors, named)
        with graph.inserting_before(node):
            for one in body.inside:
                known[one] = graph.node_copy(one, lambda used: known[used] if used in known else own(used))  # noqa: B023
                if one.target in numbered:
                    _renumber(known[one], copy.attention - copy.kind.attention)
        _replace(graph, node, [known.get(one, one) for one in body.gives])
    for body in bodies.values():  # the first edge passes its inputs through
        _replace(graph, body.enter, list(body.enter.args[0]))  # type: ignore[arg-type]


def _body(graph: fx.Graph, kind: Kind, tensors: Sequence[dict[fx.Node, str]]) -> _Body:
    enter, leave = (node for node in graph.nodes if node.target is _EDGE and node.args[1] == kind.number)
    entered, gives = list(enter.args[0]), list(leave.args[0])
    inside: list[fx.Node] = []
    node = enter.next
    while node is not leave:
        inside.append(node)
        node = node.next
    taken = {one for one in inside if one.target is operator.getitem and one.args[0] is enter}
    inside = [one for one in inside if one not in taken]
    here = {*inside, *taken, leave}
    prefix = kind.prefix(kind.members[0])
    for one in inside:
        if one.op != "call_function" or any(user not in here for user in one.users):
            raise NotIdenticalError("values inside a layer are used outside it")
        for used in one.all_input_nodes:
            name = next((names[used] for names in tensors if used in names), prefix)
            free = used.op == "placeholder" or isinstance(used.meta.get("val"), torch.SymInt)
            if used not in here and not (free and name.startswith(prefix)):
                raise NotIdenticalError("a layer uses what it is not given")
    places = {one.args[1]: one for one in taken}
    given = tuple(places.get(number, before) for number, before in enumerate(entered))
    _replace_getitems(leave, gives)
    graph.erase_node(leave)
    return _Body(enter, given, inside, gives)


def _own(
    graph: fx.Graph,
    first: fx.Node,
    copy: _Copy,
    tensors: Sequence[dict[fx.Node, str]],
    named: Mapping[str, Tensor],
) -> Callable[[fx.Node], fx.Node]:
    """Return the mapping from an outer node to what a copy uses instead: its own weight, or the same node."""
    of_first, own = copy.kind.prefix(copy.kind.members[0]), copy.kind.prefix(copy.member)
    made: dict[fx.Node, fx.Node] = {}

    def find(used: fx.Node) -> fx.Node:
        for names in tensors:
            if used in names and used not in made:
                name = own + names[used].removeprefix(of_first)
                with graph.inserting_before(first):
                    node = graph.placeholder("p_" + name.replace(".", "_"))
                node.meta["val"] = named[name]
                names[node], made[used] = name, node
        return made.get(used, used)

    return find


def _renumber(node: fx.Node, by: int) -> None:
    """Add `by` to the attention number of an operator."""
    place = 3 if len(node.args) > 3 else 1
    number = node.args[place]
    assert isinstance(number, int)
    node.update_arg(place, number + by)


def _replace(graph: fx.Graph, node: fx.Node, by: Sequence[fx.Node]) -> None:
    _replace_getitems(node, by)
    graph.erase_node(node)


def _replace_getitems(node: fx.Node, by: Sequence[fx.Node]) -> None:
    for user in list(node.users):
        place = user.args[1]
        assert user.target is operator.getitem
        assert isinstance(place, int)
        user.replace_all_uses_with(by[place])
        user.graph.erase_node(user)
