"""Inputs whose values a model's sizes, ranks or axes depend on.

A row that needs an operand's elements at import wishes for them. If the operand comes from small integer inputs, the
import starts again with symbols for their elements (`shape.0`), told by each call's data: sizes stay dynamic. Where
numbers are needed (axes, modes, a rank), or symbols did not do, the values themselves have to be known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingot.frontends.onnx.symbolic import LIMIT
from ingot.ir.dims import DimLike, symbols_of
from ingot.ir.node import Input, Node, elements_of
from ingot.ir.verify import attribute_dims


def told_symbols(size: DimLike) -> frozenset[str]:
    """The symbols of a size that data tells."""
    return frozenset(name for name in symbols_of(size) if "." in name)


@dataclass(slots=True)
class Wishes:
    """inputs: the graph's. elements: inputs whose elements are to be symbols. values: whose values are to be known.
    captured: what a body's graph calls an outer value -> that value."""

    inputs: dict[str, Node] = field(default_factory=dict)
    captured: dict[Node, Node] = field(default_factory=dict)
    elements: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    def add(self, node: Node, exact: bool) -> bool:
        """Wish for the inputs that `node` comes from, if all of them are small enough to be asked for; whether so."""
        roots = self._roots(node)
        if not roots or not all(map(_is_small, roots)):
            return False
        symbols_do = not exact and all(map(_may_tell, roots))
        (self.elements if symbols_do else self.values).update(n.op.label for n in roots if isinstance(n.op, Input))
        return True

    def _roots(self, node: Node) -> set[Node]:
        """The graph's inputs that a value comes from; none where a loop changes it."""
        tellers = {s: n for n in self.inputs.values() for d in elements_of(n) for s in symbols_of(d)}
        found: set[Node] = set()
        stack, seen = [node], {node}
        while stack:
            n = stack.pop()
            told = [s for d in attribute_dims(n.op) for s in told_symbols(d)]
            if not tellers.keys() >= set(told):
                return set()  # the run finds it
            needs = [*n.inputs, *(tellers[s] for s in told)]
            if isinstance(n.op, Input):
                needs = [self.captured[n]] if n in self.captured else []
                if not needs and self.inputs.get(n.op.label) is not n:
                    return set()
                found |= set() if needs else {n}
            stack += [other for other in needs if other not in seen]
            seen.update(needs)
        return found


def _is_small(node: Node) -> bool:
    size = node.type.size
    return len(node.shape) <= 1 if not isinstance(size, int) else size <= LIMIT


def _may_tell(node: Node) -> bool:
    """Whether symbols for the elements are possible, and not yet tried."""
    return node.dtype.is_integer and isinstance(node.type.size, int) and not elements_of(node)
