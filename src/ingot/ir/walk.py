"""Walks over nodes and what they need: in an order, and built anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingot.ir.node import Node

_inputs: Callable[[Node], Sequence[Node]] = attrgetter("inputs")


def _with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    return node.with_inputs(inputs)


def rebuilt(
    roots: Iterable[Node],
    images: dict[Node, Node] | None = None,
    rule: Callable[[Node, Sequence[Node]], Node] = _with_inputs,
) -> tuple[Node, ...]:
    """`roots` where nodes that have an image are replaced by it, and the others by `rule(node, images of its inputs)`.

    `images` takes in what is made.
    """
    roots = tuple(roots)
    images = {} if images is None else images
    for n in topological(roots):
        if n not in images:
            images[n] = rule(n, [images[i] for i in n.inputs])
    return tuple(images[r] for r in roots)


def topological(roots: Iterable[Node], operands: Callable[[Node], Sequence[Node]] = _inputs) -> list[Node]:
    """`roots` and all they need, each once, operands before users; the order is deterministic."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        needs = () if expanded else operands(node)
        if not needs:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend((i, False) for i in reversed(needs) if i not in done)
    return order
