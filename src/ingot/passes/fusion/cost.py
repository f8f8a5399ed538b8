"""What a value costs to compute again or to read."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.types import Shape
from ingot.passes.fusion.groups import (
    is_free,
    is_pointwise,
)


def sized(shape: Shape) -> list[int]:
    """The dimensions that are not of size 1."""
    return [d for d, size in enumerate(shape) if size != 1]


def turns_rows(node: Node) -> bool:
    """A transposition whose innermost dimension lies apart in memory: computing along it would gather."""
    return isinstance(node.op, ops.Transpose) and node.op.permutation[-1] != node.type.rank - 1


def reads_leaves(node: Node) -> bool:
    return all(i.is_leaf or is_free(i) for i in node.inputs)


def is_cheap(node: Node) -> bool:
    """Plain arithmetic on leaves alone: any loop may compute it again."""
    return is_pointwise(node) and not node.op.costly and reads_leaves(node)


def gathers_rows(node: Node) -> bool:
    """A gather whose innermost dimension lies in memory as its operand's: as cheap to read as any value."""
    op = node.op
    if not isinstance(op, ops.Gather) or not node.inputs[0].type.rank:
        return False
    last = node.inputs[0].type.rank - 1
    whole = op.slice_sizes[last] == node.inputs[0].shape[last] and last not in op.start_index_map
    return whole and node.type.rank - 1 in op.offset_dims
