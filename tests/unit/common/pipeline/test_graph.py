"""Orders and cycles of any graph."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from omnistage_common.pipeline.graph import find_cycle, successors_of, topological_order

NODES = list("abcdef")
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=12)


@given(EDGES)
def test_a_graph_has_either_an_order_or_a_cycle(edges: list[tuple[str, str]]) -> None:
    graph = successors_of(NODES, edges)

    assert (len(topological_order(graph)) == len(NODES)) is (find_cycle(graph) == ())


@given(EDGES)
def test_in_an_order_every_edge_points_forwards(edges: list[tuple[str, str]]) -> None:
    order = topological_order(successors_of(NODES, edges))

    assert all(order.index(a) < order.index(b) for a, b in edges if a in order and b in order)


@given(EDGES)
def test_a_cycle_is_a_walk_along_edges_back_to_its_start(edges: list[tuple[str, str]]) -> None:
    cycle = find_cycle(successors_of(NODES, edges))

    assert set(itertools.pairwise(cycle)) <= set(edges)
    assert cycle == () or (cycle[0] == cycle[-1] and len(set(cycle)) == len(cycle) - 1)


def test_nodes_without_edges_keep_their_order() -> None:
    assert topological_order(successors_of(["c", "a", "b"], [])) == ("c", "a", "b")


def test_what_is_ready_first_goes_first_in_the_order_given() -> None:
    graph = successors_of(["sink", "left", "right"], [("left", "sink"), ("right", "sink")])

    assert topological_order(graph) == ("left", "right", "sink")


def test_edges_to_nowhere_are_left_out() -> None:
    assert successors_of(["a"], [("a", "x"), ("x", "a")]) == {"a": []}


def test_a_long_chain_needs_no_deep_recursion() -> None:
    nodes = [str(number) for number in range(2_000)]
    graph = successors_of(nodes, list(itertools.pairwise(nodes)))

    assert find_cycle(graph) == ()
