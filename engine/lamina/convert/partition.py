"""Partition of operators into slices: one minimum weighted cut per attention operator.

Attention i splits the graph into its inputs (source), its dependents (sink), and other operators, which the
cut places. Every later attention depends on attention i, so all that follows it is on the sink's side at any
cost: only operators that depend on no later attention are in the network, and all cuts together take linear
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx
from networkx.algorithms.flow import edmonds_karp
from torch import fx

from lamina.convert.errors import ConversionError
from lamina.convert.program import reachable, spec_of
from lamina.convert.trace import ATTENTION, Traced

# A tuple of tensors does not cross a cut; its members may.
_NEVER_CUT = 1 << 40
# Nodes of the network: these, and both ends of each operator.
SOURCE, SINK = "source", "sink"
_IN, _OUT = False, True


@dataclass(frozen=True)
class Partition:
    """The slice of every node; constant and repeated nodes belong to none."""

    slice_of: dict[fx.Node, int]  # operators, and both inputs in slice 0
    attentions: tuple[fx.Node, ...]
    cut_bytes: tuple[int, ...]  # for one request, of the context saved around each attention
    constant: set[fx.Node]  # depends on weights only: computed once, when weights are bound
    repeated: set[fx.Node]  # cheap, inputs known to all workers: computed in each slice that needs it


def levels_of(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return, for each node, how many attention operators precede it."""
    levels: dict[fx.Node, int] = {}
    for node in graph.nodes:
        before = max((levels[argument] for argument in node.all_input_nodes), default=0)
        levels[node] = int(node.args[3]) + 1 if node.target is ATTENTION else before
    return levels


def partition(traced: Traced, rope: str) -> Partition:
    """Cut the graph at every attention operator."""
    levels = levels_of(traced.graph)
    constant, repeated = _classify(traced, rope)
    attentions = tuple(node for node in traced.graph.nodes if node.target is ATTENTION)
    for layer, node in enumerate(attentions):
        if max(levels[argument] for argument in node.all_input_nodes) != layer or node.args[3] != layer:
            raise ConversionError(
                "convert-attention-order", f"attention {layer} does not follow from the one before it"
            )
    waiting: list[list[fx.Node]] = [[] for _ in range(len(attentions) + 1)]
    for node in traced.graph.nodes:
        if (
            node.op == "call_function"
            and node not in constant
            and node not in repeated
            and node.target is not ATTENTION
        ):
            waiting[levels[node]].append(node)
    slice_of = {traced.tokens: 0, traced.positions: 0}
    uses = _Uses(traced, repeated, slice_of)
    carried = [traced.tokens, traced.positions]
    left: list[fx.Node] = []
    costs: list[int] = []
    for layer, attention in enumerate(attentions):
        candidates = left + waiting[layer]
        cut = _cut(attention, carried, candidates, uses)
        costs.append(cut.cost)
        slice_of.update((node, layer) for node in candidates if node in cut.taken)
        left = [node for node in candidates if node not in cut.taken]
        carried = [*cut.crossing, attention]
    slice_of.update((node, len(attentions)) for node in left + waiting[-1])
    return Partition(slice_of, attentions, tuple(costs), constant, repeated)


def _classify(traced: Traced, rope: str) -> tuple[set[fx.Node], set[fx.Node]]:
    constant: set[fx.Node] = {*traced.parameters, *traced.buffers, *traced.literals}
    # Tables made of positions alone, without learned positions, which look up a weight.
    known = set(constant) - set(traced.parameters)
    if rope == "recompute":
        known.add(traced.positions)
    repeated: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        arguments = node.all_input_nodes
        sized = "size" in node.meta
        if not sized and all(argument in constant for argument in arguments):
            constant.add(node)
            if all(argument in known for argument in arguments):
                known.add(node)
        elif sized or all(argument in known for argument in arguments):
            repeated.add(node)
            known.add(node)
    return constant, repeated


@dataclass(frozen=True)
class _Cut:
    """One minimum cut: its cost, the candidates before it, and the values that cross it."""

    cost: int
    taken: set[fx.Node]
    crossing: list[fx.Node]


def _cut(attention: fx.Node, carried: list[fx.Node], candidates: list[fx.Node], uses: _Uses) -> _Cut:
    """Compute the minimum cut around one attention operator among candidates it does not depend on."""
    inside = set(candidates)
    needed = set(reachable(attention, lambda node: [one for one in node.all_input_nodes if one in inside]))
    free = inside - needed
    # A value costs its bytes once for any number of users: the edge between the two ends of its node.
    network = networkx.DiGraph()
    network.add_nodes_from((SOURCE, SINK))
    values = [*carried, *candidates]
    for node in values:
        entry = (node, _IN) if node in free else SOURCE
        network.add_edge(entry, (node, _OUT), capacity=uses.bytes(node))
        for user in uses.of(node):
            if user in free:
                # A user on the source's side forces its inputs there; on the sink's side it costs the value.
                network.add_edge((node, _OUT), (user, _IN))
                network.add_edge((user, _IN), entry)
            elif user not in needed:
                network.add_edge((node, _OUT), SINK)
    cost, side = minimum_cut(network)
    taken = {node for node in candidates if node in needed or (node, _IN) in side}
    crossing = [
        node
        for node in values
        if (node in taken or node not in inside) and any(user not in taken for user in uses.of(node))
    ]
    return _Cut(cost, taken, crossing)


class _Uses:
    """Users of values, without attention, repeated and constant nodes, and the bytes of values."""

    def __init__(self, traced: Traced, repeated: set[fx.Node], placed: dict[fx.Node, int]) -> None:
        self._repeated = repeated
        self._placed = placed  # grows as operators are assigned to slices
        self._inputs = {traced.tokens, traced.positions}

    def of(self, node: fx.Node) -> list[fx.Node]:
        return [
            user
            for user in node.users
            if user.op == "call_function"
            and user.target is not ATTENTION
            and user not in self._repeated
            and user not in self._placed
        ]

    def bytes(self, node: fx.Node) -> int:
        if node in self._inputs:
            return 0  # every worker knows which tokens it runs
        spec = spec_of(node)
        return _NEVER_CUT if spec is None else spec.bytes


def minimum_cut(network: Any) -> tuple[int, set[Any]]:
    """Return the cut's cost and the nodes on the source's side, the most of any cut of that cost."""
    residual = edmonds_karp(network, SOURCE, SINK)
    residual.remove_edges_from(
        [(tail, head) for tail, head, edge in residual.edges(data=True) if edge["flow"] == edge["capacity"]]
    )
    beyond = {SINK, *networkx.ancestors(residual, SINK)}
    return residual.graph["flow_value"], set(network) - beyond
