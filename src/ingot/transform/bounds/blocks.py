"""Products with weights in blocks with a minimum, as sums of both parts.

dot(x, levels * scale + minimum)   ->   dot(concat(x, x), concat(levels * scale, minimum))

A program sums the products with the levels and those with the minimum apart, so that its rounding is relative to the
magnitudes of both, also where they cancel in a weight. One sum of both, in any order, has at least as many roundings as
either way to compute it. The same holds for convolutions, along the channels of each group, and in loops, which are
unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from ingot import ops
from ingot.ir.node import Graph, Node, rebuild
from ingot.ir.types import f32
from ingot.ops.nn.terms import Term
from ingot.passes.core.unroll import unroll
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError


def has_minimum(node: Node) -> bool:
    """Whether the node is weights in blocks with a minimum."""
    return isinstance(node.op, ops.DequantizeBlocks) and len(node.inputs) > 1 + node.op.factors


def holds_minimum(graph: Graph) -> bool:
    """Whether weights in blocks with a minimum are in the graph or in the bodies of its ops."""
    return any(has_minimum(n) or any(map(holds_minimum, n.op.bodies)) for n in graph.nodes())


def with_parts(graph: Graph, kept: frozenset[type]) -> Graph:
    """See the module's docstring. kept: MODEL ops that are not lowered. Raises InputError for such weights in 16 bits,
    in branches, and in loops of an unknown number of iterations."""
    if not holds_minimum(graph):
        return graph
    lowered = unroll(lower_model_ops(graph, kept))
    if any(map(holds_minimum, (body for n in lowered.nodes() for body in n.op.bodies))):
        raise _refusal("branches or a loop of an unknown number of iterations")
    return lowered.with_outputs(rebuild(lowered.outputs, rule=_split))


def _split(n: Node, inputs: Sequence[Node]) -> Node:
    for side, w in enumerate(inputs):
        if not isinstance(n.op, (ops.DotGeneral, ops.Convolution)) or (parts := _parts(w)) is None:
            continue
        axes = _summed_axes(n.op, side)
        if axes is None:
            raise _refusal(f"them as operand {side} of {n.op.name}, which does not sum over them")
        groups = n.op.feature_groups if isinstance(n.op, ops.Convolution) else 1
        pair = [ops.concat(list(parts), axes[0]), _twice(inputs[1 - side], axes[1], groups)]
        return n.with_inputs(pair[::-1] if side else pair)
    return n.with_inputs(inputs) if n.inputs else n


def _summed_axes(op: ops.DotGeneral | ops.Convolution, side: int) -> tuple[int, int] | None:
    """An axis of the operand of this side that is summed over, and the other operand's; None without one."""
    if isinstance(op, ops.Convolution):
        return (op.rhs_layout.index("I"), op.lhs_layout.index("C")) if side == 1 else None
    return (op.contract[side][0], op.contract[1 - side][0]) if op.contract[side] else None


def _twice(x: Node, axis: int, groups: int) -> Node:
    """x and x again along the axis, within each group of it."""
    if groups == 1:
        return ops.concat([x, x], axis)
    outer, size, inner = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    grouped = ops.reshape(x, (*outer, groups, size // groups, *inner))
    return ops.reshape(ops.concat([grouped, grouped], axis + 1), (*outer, 2 * size, *inner))


def _parts(w: Node) -> tuple[Node, Node] | None:
    """Levels times scale, and the minimum, of weights seen through ops that rearrange them; None for others."""
    if has_minimum(w):
        op, (levels, *factors) = w.op, w.inputs
        assert isinstance(op, ops.DequantizeBlocks)
        if op.dtype != f32:
            raise _refusal(str(op.dtype))
        scale, minimum = op.parts(factors)
        return op(levels, *scale), reduce(mul, (Term(p).cast(f32) for p in minimum)).broadcast(w.shape).node
    if not (w.op.rearranges and len(w.inputs) == 1) or (parts := _parts(w.inputs[0])) is None:
        return None
    first, second = (w.with_inputs([part]) for part in parts)
    return first, second


def _refusal(got: str) -> InputError:
    return InputError(
        "numerics", expected="weights in blocks with a minimum in products and convolutions in f32", got=got
    )
