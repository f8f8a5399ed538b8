"""Source locations in the user's model, given to nodes after they are built: builders do not pass locations on."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.ir.node import Node


def next_id() -> int:
    """An id; nodes built later have greater ones."""
    return next(Node._ids)


def locate(nodes: Iterable[Node], first: int, loc: str) -> None:
    """Set `loc` on `nodes` and on their ancestors built after id `first`, where they have no location."""
    stack = list(nodes)
    visited: set[Node] = set()
    while stack:
        node = stack.pop()
        if node.id <= first or node.loc == loc or node in visited:
            continue
        visited.add(node)
        if not node.loc:
            node.loc = loc
        stack.extend(node.inputs)
