"""Products with weights in blocks with a minimum, as sums of both parts.

dot(x, levels * scale + minimum)   ->   dot(concat(x, x), concat(levels * scale, minimum))

A program sums the products with the levels and those with the minimum apart, so that its rounding is relative to the
magnitudes of both, also where they cancel in a weight. One sum of both, in any order, has at least as many roundings as
either way to compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from ingot import ops
from ingot.ir.node import Graph, Node, rebuild
from ingot.ir.types import f32
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError


def has_minimum(node: Node) -> bool:
    """Whether the node is weights in blocks with a minimum."""
    return isinstance(node.op, ops.DequantizeBlocks) and len(node.inputs) > 1 + node.op.factors


def with_parts(graph: Graph, kept: frozenset[type]) -> Graph:
    """See the module's docstring. kept: MODEL ops that are not lowered. Raises InputError for such weights in bfloat16,
    in convolutions and in loops."""
    if not any(map(has_minimum, graph.nodes())):
        return graph
    lowered = lower_model_ops(graph, kept)
    if any(n.op.bodies for n in lowered.nodes()):
        raise _refusal("a model with loops")
    return lowered.with_outputs(rebuild(lowered.outputs, rule=_split))


def _split(n: Node, inputs: Sequence[Node]) -> Node:
    for side, w in enumerate(inputs):
        parts = _parts(w)
        if parts is None or not isinstance(n.op, (ops.DotGeneral, ops.Convolution)):
            continue
        if isinstance(n.op, ops.Convolution) or not n.op.contract[side]:
            raise _refusal("a convolution")
        other = inputs[1 - side]
        axes = n.op.contract[side][0], n.op.contract[1 - side][0]
        pair = [ops.concat(list(parts), axes[0]), ops.concat([other, other], axes[1])]
        return n.with_inputs(pair[::-1] if side else pair)
    return n.with_inputs(inputs) if n.inputs else n


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
    return InputError("numerics", expected="weights in blocks with a minimum in products of matrices in f32", got=got)
