"""Nodes get their places in the user's model after they were made: builders do not pass it on."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.ir.node import Node


def next_id() -> int:
    """Nodes made from here on have greater ids."""
    return next(Node._ids)


def locate(nodes: Iterable[Node], first: int, loc: str) -> None:
    """Give `nodes`, and what they were made from since `first`, the place `loc` where they have none."""
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
