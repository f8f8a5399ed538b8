"""Slices of one value sink below what is done to each of them alike, so that a joined product has one epilogue.

relu(y[:, :p] + a), relu(y[:, p:] + b)   ->   slices of relu(y + [a b])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import replace_nodes
from ingot.ir.types import Shape
from ingot.ops.core.base import Category, category
from ingot.passes.constants import is_constant
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class _Cut:
    """The slices of a value that are the whole of it, in order along an axis."""

    value: Node
    axis: int
    slices: tuple[Node, ...]


def sink_slices(graph: Graph) -> Graph:
    """op(y[:p], bcast(a)), op(y[p:], bcast(b))   ->   slices of op(y, bcast([a b])), from operands to readers"""
    while slices := _sunk_slices(graph):
        graph = replace_nodes(graph, slices)
    return graph


def _sunk_slices(graph: Graph) -> dict[Node, Node]:
    """Readers of slices, and the slices that replace them."""
    uses, sunk = graph.uses(), dict[Node, Node]()
    for y in graph.nodes():
        cut = _cut_of(y, uses.get(y, ()))
        if cut is None:
            continue
        for readers in _alike(cut, uses):
            operands = [_joined(cut, column) for column in zip(*(n.inputs for n in readers), strict=True)]
            if all(operands) and sunk.keys().isdisjoint(readers):
                whole = readers[0].op(*filter(None, operands), loc=readers[0].loc)
                sunk |= {n: s.op(whole, loc=n.loc) for n, s in zip(readers, cut.slices, strict=True)}
    return sunk


def _cut_of(y: Node, readers: Sequence[Node]) -> _Cut | None:
    slices = [n for n in readers if isinstance(n.op, ops.Slice)]
    for axis, size in enumerate(y.shape if len(slices) > 1 else ()):
        along = [n for n in slices if _is_along(n.op, axis, y.shape)]  # type: ignore[arg-type]
        next_part = {n.op.start[axis]: n for n in along}  # type: ignore[attr-defined]
        parts: list[Node] = []
        position: DimLike = 0
        while position != size and position in next_part and len(parts) < len(along):
            parts.append(next_part[position])
            position = position + parts[-1].shape[axis]
        if position == size and len(parts) > 1:
            return _Cut(y, axis, tuple(parts))
    return None


def _is_along(op: ops.Slice, axis: int, shape: Shape) -> bool:
    """Whether a slice takes a part of one axis."""
    whole = (d == axis or (op.start[d] == 0 and op.limit[d] == size) for d, size in enumerate(shape))
    return op.strides[axis] == 1 and all(whole)


def _alike(cut: _Cut, uses: Mapping[Node, Sequence[Node]]) -> Iterator[list[Node]]:
    """Elementwise readers of the slices, one of each, with the same op."""
    for first in uses.get(cut.slices[0], ()):
        if category(first.op) is not Category.ELEMENTWISE or len(first.types) != 1:
            continue
        at = first.inputs.index(cut.slices[0])
        readers = [first]
        for s in cut.slices[1:]:
            readers += [n for n in uses.get(s, ()) if n.op == first.op and n.inputs[at] is s and n not in readers][:1]
        if len(readers) == len(cut.slices):
            yield readers


def _joined(cut: _Cut, operands: Sequence[Node]) -> Node | None:
    """The value of which `operands` are the same slices: the one that is cut, another one, or constants end to end."""
    first = operands[0]
    if isinstance(first.op, ops.Slice):
        whole = first.inputs[0]
        same = all(x.op == s.op and x.inputs[0] is whole for x, s in zip(operands, cut.slices, strict=True))
        return whole if same and whole.shape == cut.value.shape else None
    if not all(isinstance(x.op, ops.BroadcastInDim) and is_constant(x) for x in operands):
        return None
    dims = first.op.dims  # type: ignore[attr-defined]
    sources = [x.inputs[0] for x in operands]
    if any(x.op.dims != dims or s.dtype != sources[0].dtype for x, s in zip(operands, sources, strict=True)):  # type: ignore[attr-defined]
        return None
    axis = dims.index(cut.axis) if cut.axis in dims else None
    if axis is None or all(s.shape[axis] == 1 for s in sources):
        whole = sources[0] if len(set(sources)) == 1 else None
    else:
        is_full = all(s.shape[axis] == x.shape[cut.axis] for s, x in zip(sources, operands, strict=True))
        whole = ops.Concat(axis)(*sources) if is_full else None
    return whole and ops.BroadcastInDim(cut.value.shape, dims)(whole)
