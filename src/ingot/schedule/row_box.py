"""The box that all reductions of a row group share, and the dimension along which vectors run."""

from __future__ import annotations

from ingot.ir.layout import identity_axes
from ingot.ir.node import Graph, Node
from ingot.ir.types import Shape
from ingot.ops import Reduction, reduced_dims
from ingot.ops.core.base import Category, category
from ingot.ops.core.shape import View
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Rows:
    """The shape of a row group: the full box, its reduced dimensions, and the dimension along which vectors run."""

    shape: Shape
    reduced: tuple[int, ...]
    axis: int

    @property
    def kept_dims(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.reduced)

    @property
    def kept_shape(self) -> Shape:
        return tuple(self.shape[d] for d in self.kept_dims)

    @property
    def horizontal(self) -> bool:
        """Whether vectors run along a reduced dimension."""
        return self.axis in self.reduced


def reduction(node: Node) -> Reduction:
    op = node.op
    assert isinstance(op, Reduction)
    return op


def reductions_of(body: Graph) -> list[Node]:
    return [n for n in body.nodes() if isinstance(n.op, Reduction)]


def reduces_columns(node: Node) -> bool:
    """Whether a reduction keeps the innermost dimension of its operand, and with it its columns."""
    sized = [d for d, n in enumerate(node.inputs[0].shape) if n != 1]
    return bool(sized) and sized[-1] not in reduced_dims(node)


def rows_of(body: Graph) -> Rows | None:
    """The row shape that all reductions of the group share; None if there are no reductions or they differ."""
    reductions = reductions_of(body)
    if not reductions:
        return None
    shape, reduced = reductions[0].inputs[0].shape, reduced_dims(reductions[0])
    if any(n.inputs[0].shape != shape or reduced_dims(n) != reduced for n in reductions):
        return None
    sized = [d for d in range(len(shape)) if shape[d] != 1]
    axis = sized[-1] if sized else len(shape) - 1
    return Rows(shape, reduced, axis)


def moved_rows(body: Graph, rows: Rows) -> set[Node]:
    """The values that are read at other rows than the one visited: operands of gathers, and of views that move elements
    along kept dimensions, with what they are computed from. Results of reductions are not among them."""
    moved: set[Node] = set()
    for n in reversed(body.nodes()):
        if isinstance(n.op, Reduction) or (n not in moved and _keeps_rows(n, rows)):
            continue
        moved.update(x for x in n.inputs if not isinstance(x.op, Reduction))
    return moved


def _keeps_rows(node: Node, rows: Rows) -> bool:
    """Whether a node reads the elements of its operands at its own row."""
    if not isinstance(node.op, View):
        return node.is_leaf or category(node.op) is Category.ELEMENTWISE
    x = node.inputs[0].shape
    axes = identity_axes(node.op.index_map(x, node.shape), x, node.shape)
    return len(x) == len(rows.shape) and all(axes[d] == d or x[d] == 1 for d in rows.kept_dims)


__all__ = ["Rows", "moved_rows", "reduces_columns", "reduction", "reductions_of", "rows_of"]
