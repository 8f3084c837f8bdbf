"""The minimum cut of a small graph: Dinic's algorithm, ties to the largest source side."""

from __future__ import annotations

from collections import deque


class Network:
    """A directed graph with capacities. Nodes are numbers; 0 is the source and 1 the sink."""

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
        """The cut's cost, and the nodes on the source's side: as many as any cut of that cost has."""
        cost = 0
        while (levels := self._levels()) is not None:
            tried = [0] * len(self._edges)
            while pushed := self._push(levels, tried):
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

    def _push(self, levels: list[int], tried: list[int]) -> int:
        """Send flow along one shortest path; 0 when none is left. No recursion: models are deep.

        `tried[node]` edges of a node lead nowhere in this phase and are not looked at again.
        """
        path: list[int] = []
        node = self.SOURCE
        while node != self.SINK:
            if tried[node] == len(self._edges[node]):
                if not path:
                    return 0
                node = self._heads[path.pop() ^ 1]
                tried[node] += 1
                continue
            edge = self._edges[node][tried[node]]
            if self._left[edge] and levels[self._heads[edge]] == levels[node] + 1:
                path.append(edge)
                node = self._heads[edge]
            else:
                tried[node] += 1
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
