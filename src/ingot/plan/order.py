"""The order in which a graph's values are made, where it matters how long they live.

dw1 = f(x1, g1); dw2 = f(x2, g2); g1 = h(g2)   ->   g2, dw2, g1, dw1: x2 and g2 are gone before dw1 is there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.ir.node import Node, topological


def shortest_lives(roots: Sequence[Node], needs: Callable[[Node], Sequence[Node]]) -> list[Node]:
    """`roots` and all they need, each once, operands first. Results that need less come first, so that what only they
    read is gone early; of a node's operands the one that needs most, as the others would have to wait for it.

    Sethi and Ullman's rule for registers ("The generation of optimal code for arithmetic expressions", 1970), with the
    number of nodes in the place of registers.
    """
    behind: dict[Node, int] = {}  # sets of nodes, as bits
    for i, node in enumerate(topological(roots, needs)):
        own = 1 << i
        for n in needs(node):
            own |= behind[n]
        behind[node] = own
    weight = {node: found.bit_count() for node, found in behind.items()}
    first = sorted(roots, key=lambda n: weight[n])
    return topological(first, lambda n: sorted(needs(n), key=lambda i: -weight[i]))
