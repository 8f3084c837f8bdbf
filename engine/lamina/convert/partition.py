"""Partition of operators into slices: one minimum weighted cut per attention operator.

Attention i splits the graph into its inputs (source), its dependents (sink), and other operators, which the
cut places. Every later attention depends on attention i, so all that follows it is on the sink's side at any
cost: only operators that depend on no later attention are in the network, and all cuts together take linear
time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import fx

from lamina.convert.errors import ConversionError
from lamina.convert.program import reachable, spec_of
from lamina.convert.trace import ATTENTION, Traced

# A tuple of tensors does not cross a cut; its members may.
_NEVER_CUT = 1 << 40


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
    network = Network()
    # A value costs its bytes once for any number of users: the edge between the two ends of its node.
    free = {node: (network.add_node(), network.add_node()) for node in candidates if node not in needed}
    values = [*carried, *candidates]
    ceiling = 1 + sum(uses.bytes(node) for node in values)
    for node in values:
        entry, exit_ = free[node] if node in free else (Network.SOURCE, network.add_node())
        network.add_edge(entry, exit_, uses.bytes(node))
        for user in uses.of(node):
            if user in free:
                # A user on the source's side forces its inputs there; on the sink's side it costs the value.
                network.add_edge(exit_, free[user][0], ceiling)
                network.add_edge(free[user][0], entry, ceiling)
            elif user not in needed:
                network.add_edge(exit_, Network.SINK, ceiling)
    cost, side = network.minimum_cut()
    taken = {node for node in candidates if node in needed or free[node][0] in side}
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


class Network:
    """A directed graph with capacities. Nodes are numbers; 0 is the source and 1 the sink.

    Its minimum cut is found by Dinic's algorithm, ties to the largest source side.
    """

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        # Edge 2i and its reverse 2i + 1 lie side by side, so that one is the other's number ^ 1.
        self._heads: list[int] = []
        self._left: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def add_node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        for node, other, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges[node].append(len(self._heads))
            self._heads.append(other)
            self._left.append(left)

    def minimum_cut(self) -> tuple[int, set[int]]:
        """Return the cut's cost and the nodes on the source's side, the most of any cut of that cost."""
        cost = 0
        while (levels := self._levels()) is not None:
            next_edge = [0] * len(self._edges)
            while pushed := self._push(levels, next_edge):
                cost += pushed
        beyond = self._reaching_sink()
        return cost, {node for node in range(len(self._edges)) if node not in beyond}

    def _levels(self) -> list[int] | None:
        levels = [-1] * len(self._edges)
        levels[self.SOURCE] = 0
        queue = deque([self.SOURCE])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                head = self._heads[edge]
                if self._left[edge] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels if levels[self.SINK] >= 0 else None

    def _push(self, levels: list[int], next_edge: list[int]) -> int:
        """Send flow along one shortest path; 0 when none is left. No recursion: models are deep.

        Edges of a node before `next_edge[node]` are exhausted in this phase.
        """
        path: list[int] = []
        node = self.SOURCE
        while node != self.SINK:
            if next_edge[node] == len(self._edges[node]):
                if not path:
                    return 0
                node = self._heads[path.pop() ^ 1]
                next_edge[node] += 1
                continue
            edge = self._edges[node][next_edge[node]]
            if self._left[edge] and levels[self._heads[edge]] == levels[node] + 1:
                path.append(edge)
                node = self._heads[edge]
            else:
                next_edge[node] += 1
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return flow

    def _reaching_sink(self) -> set[int]:
        reaching = {self.SINK}
        queue = deque(reaching)
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                tail = self._heads[edge]
                if self._left[edge ^ 1] and tail not in reaching:
                    reaching.add(tail)
                    queue.append(tail)
        return reaching
