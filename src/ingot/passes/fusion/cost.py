"""The cost of recomputing or reading a value."""

from __future__ import annotations

from collections.abc import Iterable

from ingot import ops
from ingot.ir.dims import DimLike, estimate
from ingot.ir.node import Node, topological
from ingot.ir.types import Shape
from ingot.ops.core.base import is_contraction
from ingot.ops.core.elementwise import Elementwise
from ingot.passes.fusion.groups import is_free, is_pointwise, source_of
from ingot.passes.fusion.policy import FusionPolicy


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


def is_cheap_chain(node: Node, depth: int = 4) -> bool:
    """Whether `node` is a few plain pointwise ops on memory: cheaper to recompute than to store."""
    if node.is_leaf or (is_free(node) and not node.inputs):
        return True
    if depth == 0 or not (is_pointwise(node) or is_free(node)) or node.op.costly or isinstance(node.op, ops.Concat):
        return False
    return all(is_cheap_chain(i, depth - 1) for i in node.inputs)


def repeats_cheaply(node: Node, policy: FusionPolicy) -> bool:
    """Whether `node` is plain arithmetic, or, where each group widens what it reads, a function that is wider than the
    stored values of its size that it is computed from: storing that costs more than repeating it."""
    if not isinstance(node.op, Elementwise) or not node.op.costly:
        return isinstance(node.op, Elementwise)
    is_repeated = policy.widens_values and isinstance(node.op, ops.Logistic | ops.Exp)
    return is_repeated and _stored_bits(node.inputs[0], node.type.size, policy.max_repeated) < node.dtype.bits


def _stored_bits(node: Node, size: DimLike, depth: int) -> int:
    """The bits of an element of the widest value of `size` elements that `node` is computed from, at most `depth`
    pointwise ops back."""
    if depth == 0 or not is_pointwise(node) or isinstance(node.op, ops.Reduction):
        return node.dtype.bits
    operands = [x for x in map(source_of, node.inputs) if len(x.types) == 1 and x.type.size == size]
    return max((_stored_bits(x, size, depth - 1) for x in operands), default=0)


def outlasts_product(members: Iterable[Node], product: Node, policy: FusionPolicy) -> bool:
    """Whether `members`, and what is computed by element for them, take longer behind the main loop of a product, which
    waits for what it loads there, than in a kernel of their own: many ops, with a costly function of another value of
    the product's size (a gradient of GELU)."""
    if not is_contraction(product) or estimate(product.type.size) < policy.min_costly_epilogue_elements:
        return False
    nodes, reads_another = dict.fromkeys(members), False
    pending = [*nodes]
    while pending and len(nodes) <= policy.max_ops:
        for i in pending.pop().inputs:
            if not (is_pointwise(i) or is_free(i)):
                is_value = i is not product and len(i.types) == 1
                reads_another |= is_value and 2 * estimate(i.type.size) > estimate(product.type.size)
            elif i not in nodes:
                nodes[i] = None
                pending.append(i)
    computed = {n: n.op.work for n in nodes if isinstance(n.op, Elementwise) and not isinstance(n.op, ops.Convert)}
    if not reads_another or sum(computed.values()) <= policy.max_costly_epilogue:
        return False
    behind = {product}
    for n in topological(nodes, lambda n: [i for i in n.inputs if i in nodes]):
        behind |= {n} if not behind.isdisjoint(n.inputs) else set()
    return any(n.op.costly and n not in behind for n in computed)


def gathers_rows(node: Node) -> bool:
    """Whether `node` is a gather whose innermost dimension is contiguous in its operand: as cheap as a load."""
    op = node.op
    if not isinstance(op, ops.Gather) or not node.inputs[0].type.rank:
        return False
    last = node.inputs[0].type.rank - 1
    reads_full_rows = op.slice_sizes[last] == node.inputs[0].shape[last] and last not in op.start_index_map
    return reads_full_rows and node.type.rank - 1 in op.offset_dims
