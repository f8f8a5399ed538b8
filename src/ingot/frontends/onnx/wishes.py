"""Inputs whose values a model's sizes, ranks or axes depend on.

A row that needs an operand's elements at import wishes for them. If the operand is computed from small integer inputs,
the import starts again with symbols for their elements (`shape.0`), which each call's data sets: sizes stay dynamic.
Where numbers are needed (axes, modes, a rank), or symbols were not enough, the values themselves must be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot import ops
from ingot.frontends.onnx.symbolic import MAX_ELEMENTS
from ingot.ir.dims import DimLike, is_computed, symbol, symbols_of
from ingot.ir.node import Const, Input, Node, size_elements, topological
from ingot.ir.verify import attribute_dims
from ingot.support.dataclass import dataclass


def element_symbols(size: DimLike) -> frozenset[str]:
    """The symbols of a size that are elements of an input."""
    return frozenset(name for name in symbols_of(size) if "." in name)


@dataclass(slots=True)
class Wishes:
    """inputs: of the graph. sizes: whether an example must give their sizes. elements: inputs whose elements must be
    symbols. values: inputs whose values must be known. captured: an input of a body's graph -> its outer value."""

    inputs: dict[str, Node] = field(default_factory=dict)
    captured: dict[Node, Node] = field(default_factory=dict)
    sizes: bool = False
    elements: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    def add(self, node: Node, exact: bool, max_elements: int = MAX_ELEMENTS) -> bool:
        """Wish for the inputs that `node` is computed from, if all of them have at most `max_elements` elements, or are
        vectors of open size; returns whether they do. A few sizes computed from such a vector are left to the run."""
        roots = self._roots(node)
        has_open = any(not isinstance(n.type.size, int) for n in roots)
        if not exact and has_open and isinstance(node.type.size, int):
            return False
        if not roots or not all(_is_small(n, max_elements) for n in roots):
            return False
        are_symbols_enough = not exact and all(map(_can_be_symbols, roots))
        (self.elements if are_symbols_enough else self.values).update(
            n.op.label for n in roots if isinstance(n.op, Input)
        )
        return True

    def comes_from_sizes(self, node: Node) -> bool:
        """Whether the inputs' sizes alone determine a value."""
        nodes = topological((node,))
        names = [s for n in nodes for d in attribute_dims(n.op) for s in symbols_of(d)]
        return not any(isinstance(n.op, Input) or n.op.bodies for n in nodes) and not any(
            "." in name or is_computed(name) for name in names
        )

    def _roots(self, node: Node) -> set[Node]:
        """The graph's inputs that a value is computed from; none where a loop changes it."""
        sources = {s: n for n in self.inputs.values() for d in size_elements(n) for s in symbols_of(d)}
        roots: set[Node] = set()
        stack, visited = [node], {node}
        while stack:
            n = stack.pop()
            symbols = [s for d in attribute_dims(n.op) for s in element_symbols(d)]
            if not sources.keys() >= set(symbols):
                return set()  # known only at run time
            needs = [*n.inputs, *(sources[s] for s in symbols)]
            if isinstance(n.op, Input):
                needs = [self.captured[n]] if n in self.captured else []
                if not needs and self.inputs.get(n.op.label) is not n:
                    return set()
                roots |= set() if needs else {n}
            stack += [other for other in needs if other not in visited]
            visited.update(needs)
        return roots


def _is_small(node: Node, max_elements: int) -> bool:
    size = node.type.size
    return len(node.shape) <= 1 < max_elements if not isinstance(size, int) else size <= max_elements


def _can_be_symbols(node: Node) -> bool:
    """Whether symbols for the elements are possible, and not yet tried."""
    return node.dtype.is_integer and isinstance(node.type.size, int) and not size_elements(node)


def sizes_of_test(node: Node, outcome: bool, example: Mapping[str, int]) -> list[DimLike]:
    """Sizes that are not negative exactly where a test of sizes has this outcome: from a comparison's operands; for
    other tests, sizes that fix all symbols to the example's."""
    op = node.op
    if isinstance(op, ops.Not):
        return sizes_of_test(node.inputs[0], not outcome, example)
    if isinstance(op, ops.Reshape):
        return sizes_of_test(node.inputs[0], outcome, example)
    a, b = (_size(n) for n in node.inputs) if isinstance(op, ops.Compare) else (None, None)
    if a is None or b is None or not isinstance(op, ops.Compare):
        names = {s for n in topological((node,)) for d in attribute_dims(n.op) for s in symbols_of(d)}
        pairs = [(symbol(name), example[name]) for name in sorted(names)]
        return [difference for one, other in pairs for difference in (one - other, other - one)]
    direction = op.direction if outcome else _OPPOSITE_DIRECTION[op.direction]
    if direction in ("GT", "GE"):
        a, b, direction = b, a, {"GT": "LT", "GE": "LE"}[direction]
    if direction == "EQ":
        return [a - b, b - a]
    if direction == "NE":
        return [(a - b) * (a - b) - 1]
    return [b - a - (direction == "LT")]


_OPPOSITE_DIRECTION = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


def _size(node: Node) -> DimLike | None:
    """The value of an integer scalar as a size; None if it is not one."""
    if not node.dtype.is_integer or node.type.size != 1:
        return None
    if isinstance(node.op, ops.DimValue):
        return node.op.dim
    if isinstance(node.op, Const):
        return int(node.op.value.reshape(-1)[0])
    return _size(node.inputs[0]) if isinstance(node.op, ops.Reshape | ops.Convert | ops.BroadcastInDim) else None
