"""The cost of recomputing or reading a value."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Node
from ingot.ir.types import Shape
from ingot.passes.fusion.groups import is_free, is_pointwise, source_of


def long_dims(shape: Shape) -> list[int]:
    """The dimensions that are not of size 1."""
    return [d for d, size in enumerate(shape) if size != 1]


def is_row_transpose(node: Node) -> bool:
    """Whether `node` is a transpose whose innermost dimension is strided in memory: computing along it would gather."""
    return isinstance(node.op, ops.Transpose) and node.op.permutation[-1] != node.type.rank - 1


def reads_leaves(node: Node) -> bool:
    return all(i.is_leaf or is_free(i) for i in node.inputs)


def is_cheap(node: Node) -> bool:
    """Whether `node` is plain arithmetic on leaves: any loop may recompute it."""
    return is_pointwise(node) and not node.op.costly and reads_leaves(node)


def widens_table(node: Node) -> bool:
    """Whether `node` converts a constant, which is stored in few bytes so that it takes no memory in others."""
    if not isinstance(node.op, ops.Convert):
        return False
    source = source_of(node.inputs[0])
    return source.constant is not None or widens_table(source)


def widens_in_function(node: Node) -> bool:
    """Whether `node` is a function of a leaf of 16 bits with a wider value: storing that costs more than repeating it."""
    if not isinstance(node.op, ops.Logistic | ops.Exp) or not isinstance(node.inputs[0].op, ops.Convert):
        return False
    (source,) = node.inputs[0].inputs
    return source.is_leaf and source.dtype.bits < node.dtype.bits


def gathers_rows(node: Node) -> bool:
    """Whether `node` is a gather whose innermost dimension is contiguous in its operand: as cheap as a load."""
    op = node.op
    if not isinstance(op, ops.Gather) or not node.inputs[0].type.rank:
        return False
    last = node.inputs[0].type.rank - 1
    reads_full_rows = op.slice_sizes[last] == node.inputs[0].shape[last] and last not in op.start_index_map
    return reads_full_rows and node.type.rank - 1 in op.offset_dims
