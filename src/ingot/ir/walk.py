"""Traversal of nodes and their operands: topological order, and rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol, Self, TypeVar


class _Node(Protocol):
    @property
    def inputs(self) -> Sequence[Self]: ...
    def with_inputs(self, inputs: Sequence[Self]) -> Self: ...


N = TypeVar("N", bound=_Node)
_inputs: Callable[[Any], Any] = attrgetter("inputs")


def _with_inputs(node: N, inputs: Sequence[N]) -> N:
    return node.with_inputs(inputs)


def rebuild(
    roots: Iterable[N],
    images: dict[N, N] | None = None,
    rule: Callable[[N, Sequence[N]], N] = _with_inputs,
) -> tuple[N, ...]:
    """Rebuild `roots`: a node with an image becomes that, any other one `rule(node, images of its inputs)`.

    The new images are added to `images`.
    """
    roots = tuple(roots)
    images = {} if images is None else images
    for n in topological(roots):
        if n not in images:
            images[n] = rule(n, [images[i] for i in n.inputs])
    return tuple(images[r] for r in roots)


def topological(roots: Iterable[N], operands: Callable[[N], Sequence[N]] = _inputs) -> list[N]:
    """`roots` and all their transitive operands, each once, operands before users, in a deterministic order."""
    order: list[N] = []
    done: set[N] = set()
    stack: list[N | None] = [*reversed(list(roots))]  # None is above a node whose operands are done
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
        elif node not in done and (pending := [i for i in operands(node) if i not in done]):
            stack += (node, None, *pending[::-1])
            continue
        if node not in done:
            done.add(node)
            order.append(node)
    return order
