"""Names of a graph: what is there twice, order, cycles; it knows nothing of stages.

All functions are deterministic: equal input gives equal output, whatever the hash seed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

__all__ = ["duplicates", "find_cycle", "successors_of", "topological_order"]

NodeT = TypeVar("NodeT", bound=str)


def duplicates(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Position and name of each name that was there before."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield index, name
        seen.add(name)


def successors_of(
    nodes: Sequence[NodeT], edges: Sequence[tuple[NodeT, NodeT]]
) -> dict[NodeT, list[NodeT]]:
    """Node -> nodes its edges lead to, in the order of the edges; unknown ends are left out."""
    found: dict[NodeT, list[NodeT]] = {node: [] for node in nodes}
    for tail, head in edges:
        if tail in found and head in found and head not in found[tail]:
            found[tail].append(head)
    return found


def find_cycle(successors: Mapping[NodeT, Sequence[NodeT]]) -> tuple[NodeT, ...]:
    """The first cycle, as a walk that ends where it began; empty when there is none."""
    finished: set[NodeT] = set()
    for start in successors:
        walk: list[NodeT] = []
        pending = [iter((start,))]
        while pending:
            node = next(pending[-1], None)
            if node is None:
                pending.pop()
                if walk:
                    finished.add(walk.pop())
            elif node in walk:
                return (*walk[walk.index(node) :], node)
            elif node not in finished:
                walk.append(node)
                pending.append(iter(successors[node]))
    return ()


def topological_order(successors: Mapping[NodeT, Sequence[NodeT]]) -> tuple[NodeT, ...]:
    """The nodes, each after all that lead to it; otherwise in the order they were given.

    Nodes on a cycle, and those behind one, are left out.
    """
    waiting = dict.fromkeys(successors, 0)
    for heads in successors.values():
        for head in heads:
            waiting[head] += 1
    order: list[NodeT] = []
    while True:
        ready = next((node for node, count in waiting.items() if count == 0), None)
        if ready is None:
            return tuple(order)
        del waiting[ready]
        order.append(ready)
        for head in successors[ready]:
            waiting[head] -= 1
