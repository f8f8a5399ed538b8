"""An execution order of a graph that keeps lifetimes short.

dw1 = f(x1, g1); dw2 = f(x2, g2); g1 = h(g2)   ->   g2, dw2, g1, dw1: x2 and g2 are dead before dw1 is computed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from ingot.ir.node import Node, topological


def shortest_lifetimes(roots: Sequence[Node], needs: Callable[[Node], Sequence[Node]]) -> list[Node]:
    """A topological order of `roots` and everything they need.

    Roots with fewer ancestors come first, so that values which only they read die early. Of a node's operands, the one
    with the most ancestors comes first, as the others would stay live while it is computed: Sethi and Ullman's rule for
    registers ("The generation of optimal code for arithmetic expressions", 1970), with numbers of nodes for numbers of
    registers.
    """
    ancestors: dict[Node, int] = {}  # sets of nodes, as bits
    for i, node in enumerate(topological(roots, needs)):
        bits = 1 << i
        for n in needs(node):
            bits |= ancestors[n]
        ancestors[node] = bits
    weight = {node: node_bits.bit_count() for node, node_bits in ancestors.items()}
    ordered_roots = sorted(roots, key=lambda n: weight[n])
    return topological(ordered_roots, lambda n: sorted(needs(n), key=lambda i: -weight[i]))


def results_of_inputs_first(
    order: Sequence[Node], needs: Callable[[Node], Sequence[Node]], is_result: Callable[[Node], bool]
) -> list[Node]:
    """A topological order like `order`, but results that need inputs alone come first. They extend no lifetime, and the
    kernels of many of them (copies of weights in another type) can share a launch.

    y = f(x), b = copy(a), z = g(y), d = copy(c)   ->   b = copy(a), d = copy(c), y = f(x), z = g(y)
    """
    inputs = [n for n in order if n.is_leaf]
    first = [n for n in order if not n.is_leaf and is_result(n) and all(i.is_leaf for i in needs(n))]
    return list(dict.fromkeys((*inputs, *first, *order)))


def overlap_exchanges(
    order: Sequence[Node], needs: Callable[[Node], Sequence[Node]], is_exchange: Callable[[Node], bool]
) -> list[Node]:
    """A topological order like `order`, but what waits for an exchange with other devices comes behind what does not,
    until the next exchange begins: the device has something to compute meanwhile.

    s = sum(a), f(s), b, t = sum(b), g(t)   ->   s = sum(a), b, t = sum(b), f(s), g(t)
    """
    position = {n: i for i, n in enumerate(order)}
    unmet = {n: {*needs(n)} & position.keys() for n in order}
    readers: dict[Node, list[Node]] = {}
    for n, needed in unmet.items():
        for x in needed:
            readers.setdefault(x, []).append(n)
    ready = [i for i, n in enumerate(order) if not unmet[n]]
    under_way: Node | None = None
    result: list[Node] = []

    def end(n: Node) -> None:
        for reader in readers.get(n, ()):
            unmet[reader].discard(n)
            if not unmet[reader]:
                heappush(ready, position[reader])

    while ready or under_way is not None:
        n = order[heappop(ready)] if ready else None
        if n is not None:
            result.append(n)
        if under_way is not None and (n is None or is_exchange(n)):
            end(under_way)
            under_way = None
        if n is not None and is_exchange(n):
            under_way = n
        elif n is not None:
            end(n)
    return result
