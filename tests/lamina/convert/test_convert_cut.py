"""Minimum cuts: their source side against brute force, and the slices' cuts against the whole graph."""

from __future__ import annotations

from itertools import combinations

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import converted, tiny
from torch import fx

from lamina.convert.fused import split_fused
from lamina.convert.meta_model import build_on_meta
from lamina.convert.normalise import normalise
from lamina.convert.partition import SINK, SOURCE, minimum_cut, partition
from lamina.convert.program import spec_of
from lamina.convert.source import open_source
from lamina.convert.trace import ATTENTION, trace

Edges = list[tuple[int, int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges]:
    nodes = draw(st.integers(2, 7))
    place = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(place, place, st.integers(0, 9)), max_size=16))
    return nodes, edges


@given(graphs())
def test_the_cut_is_the_cheapest_and_its_source_side_the_largest(graph: tuple[int, Edges]) -> None:
    nodes, edges = graph
    network = networkx.DiGraph()
    network.add_nodes_from(names := [SOURCE, SINK, *range(2, nodes)])
    for tail, head, capacity in edges:
        before = network.get_edge_data(names[tail], names[head], {"capacity": 0})["capacity"]
        network.add_edge(names[tail], names[head], capacity=before + capacity)
    cost, side = minimum_cut(network)
    sides = [{0, *chosen} for count in range(nodes - 1) for chosen in combinations(range(2, nodes), count)]
    costs = [sum(c for tail, head, c in edges if tail in one and head not in one) for one in sides]
    assert cost == min(costs)
    # Cheapest source sides are closed under union, so there is one largest.
    largest = set().union(*(one for one, price in zip(sides, costs, strict=True) if price == cost))
    assert side == {names[node] for node in largest}


@pytest.mark.long(but=["Cohere"])
@pytest.mark.parametrize("family", ["Llama", "Cohere", "GPTNeoX", "Phi"])
def test_cuts_between_neighbours_cost_what_cuts_of_the_whole_graph_do(family: str) -> None:
    source = open_source(tiny(family, num_hidden_layers=3), torch.float32)
    traced = trace(build_on_meta(source))
    normalise(traced)
    split_fused(traced.graph)
    parts = partition(traced, "carry")
    ours = parts.cut_bytes
    free = {traced.tokens, traced.positions}
    assert ours == tuple(_whole_cut(traced.graph, node, parts.constant, free) for node in parts.attentions)


def _whole_cut(graph: fx.Graph, attention: fx.Node, constant: set[fx.Node], free: set[fx.Node]) -> int:
    """The paper's cut, with every operator of the model in the network."""
    network = networkx.DiGraph()
    sources = attention.all_input_nodes
    for node in graph.nodes:
        spec = spec_of(node)
        if node in constant or node.op == "output":
            continue
        if node is not attention:
            price = 0 if node in free else 1 << 40 if spec is None else spec.bytes
            network.add_edge((node, "in"), (node, "out"), capacity=price)
        if node in sources:
            network.add_edge("source", (node, "in"))
        for argument in node.all_input_nodes:
            if argument in constant or node is attention:
                continue
            network.add_edge((argument, "out"), (node, "in"))
            if argument is not attention:
                network.add_edge((node, "in"), (argument, "in"))
    network.add_edge((attention, "out"), "out of attention")
    # What attention gives lies beyond the cut.
    for user in attention.users:
        network.add_edge((user, "in"), "sink")
    cost, _ = networkx.minimum_cut(network, "source", "sink")
    return int(cost)


def test_only_the_residual_crosses_a_llama() -> None:
    residual = 64 * 2
    tables = 2 * 16 * 2  # cos and sin of one head
    assert converted("Llama", rope="recompute", num_hidden_layers=6).cut_bytes == (residual,) * 6
    assert converted("Llama", num_hidden_layers=6).cut_bytes == (residual + tables,) * 5 + (residual,)


def test_ties_let_a_parallel_mlp_overlap_attention() -> None:
    conversion = converted("Cohere", num_hidden_layers=3)
    middle = conversion.slices[1].program.pieces
    products = {
        piece.name: sum(one.op is torch.ops.aten.linear.default for one in piece.instructions)
        for piece in middle
    }
    assert products == {"query": 2, "keyvalue": 2, "rest": 3}
    assert ATTENTION not in {one.op for piece in middle for one in piece.instructions}
