"""The graph with what programs of narrower types round, for bounds that include it.

dot(x, levels)                     ->   dot(rounded_to_bytes(x), levels)                            int8 activations
dot(x, w)                          ->   dot(convert(x), convert(w))                                 16 bits
dot(x', convert(levels))           ->   dot(x', w) + unknown * dot(|x'|, |convert(w) - w|)
dot(x, levels * scale + minimum)   ->   dot(concat(x, x), concat(levels * scale, minimum))

A program sums the products with the levels and those with the minimum apart, so that its rounding is relative to the
magnitudes of both, also where they cancel in a weight. One sum of both, in any order, has at least as many roundings as
either way to compute it. In a program of 16 bits, a product of a few rows multiplies levels, one of many rows weights
in 16 bits: each such weight may be rounded or not. The same holds for convolutions, along the channels of each group,
and in loops, which are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from operator import mul

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node, Op, const, rebuild
from ingot.ir.types import DType, f32
from ingot.ops.nn.terms import Term
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.dtypes.precision import STORED, excess, lower_precision
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.unroll import unroll
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError
from ingot.transform.bounds.canonical import model_rules
from ingot.transform.bounds.forms import Hinge, RoundedToBytes, Unknown

_ROUND_UP = 1 + 2.0**-20


@cache
def _kept_ops() -> frozenset[type[Op]]:
    """MODEL ops that are not lowered."""
    return frozenset(rule.root for rule in model_rules())


def at_activations(graph: Graph, activations: str) -> Graph:
    """The graph with the rounding that a program with activations="int8" may do: of each value that a constant of
    levels multiplies, along all that is summed. Programs round in shorter blocks, or not at all, which such bounds
    include."""
    if activations == "float32":
        return graph
    # before constants are folded, which hides levels
    lowered = lower_model_ops(graph, _kept_ops())
    return lowered.with_outputs(_rounded_to_bytes(lowered, set(lowered.inputs), set()))


def _rounded_to_bytes(graph: Graph, varying: set[Node], levels: set[Node]) -> Sequence[Node]:
    """The outputs. varying: the inputs that are not constants. levels: those that are constants made of integers."""
    for n in graph.nodes():
        if n in varying or any(x in varying for x in n.inputs):
            varying.add(n)
        elif any(type_.dtype.is_integer for type_ in n.types) or any(x in levels for x in n.inputs):
            levels.add(n)

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(n.op, (ops.While, ops.Case)):
            return Node.make(_with_rounded_bodies(n, varying, levels), inputs, n.loc)
        if not isinstance(n.op, (ops.DotGeneral, ops.Convolution)) or n.dtype != f32:
            return n.with_inputs(inputs) if n.inputs else n
        sides = zip(n.inputs, n.inputs[::-1], inputs, strict=True)
        return n.with_inputs(
            [
                RoundedToBytes(_summed_dims(n, side))(x) if old in varying and other in levels else x
                for side, (old, other, x) in enumerate(sides)
            ]
        )

    return rebuild(graph.outputs, rule=image)


def _with_rounded_bodies(n: Node, varying: set[Node], levels: set[Node]) -> Op:
    """What a body reads is a constant in it if it is one outside and no iteration changes it."""

    def rounded(body: Graph, operands: Sequence[Node]) -> Graph:
        outer_values = dict(zip(body.inputs, operands, strict=True))
        constants = {x for x, outer in outer_values.items() if outer not in varying and x not in changed}
        inner_levels = {x for x in constants if outer_values[x] in levels}
        return body.with_outputs(_rounded_to_bytes(body, set(body.inputs) - constants, inner_levels))

    op = n.op
    if isinstance(op, ops.Case):
        changed: set[Node] = set()
        return replace(op, branches=tuple(rounded(branch, n.inputs[1:]) for branch in op.branches))
    assert isinstance(op, ops.While)
    changed = {x for x, after in zip(op.body.inputs, op.body.results, strict=True) if x is not after}
    return replace(op, body=rounded(op.body, n.inputs))


def _summed_dims(n: Node, side: int) -> tuple[int, ...]:
    """At least the dimensions of an operand that a contraction sums over."""
    op, rank = n.op, len(n.inputs[side].shape)
    if isinstance(op, ops.DotGeneral):
        return tuple(op.contract[side])
    assert isinstance(op, ops.Convolution)
    return tuple(d for d in range(rank) if side or d != op.lhs_layout.index("N"))


def at_precision(graph: Graph, precision: str) -> Graph:
    """The graph with the conversions that a program of this precision makes: of weights, and of the values that they
    multiply. Whether other users of such a value read it rounded is up to the program; here all do, because the bounds
    of the rounded value include the value itself. Loops are unrolled. Raises InputError for a weight that overflows in
    the type, and for products in loops of an unknown number of iterations."""
    if precision == "float32":
        return graph
    unlowered = _kept_ops() | {ops.Recurrent}
    wide = unroll(lower_model_ops(fold_batch_norm(fold_constants(graph)), unlowered))
    if any(map(_has_products, (body for n in wide.nodes() for body in n.op.bodies))):
        raise InputError("precision", expected="float32 for open loops with products", got=precision)
    # weights in levels are narrowed as others are; `in_parts` tells them from these
    weights = {n: const(value_of(n), loc=n.loc) for n in wide.nodes() if _is_weight(n)}
    wide = wide.with_outputs(rebuild(wide.outputs, weights))
    lowered = lower_precision(wide, precision)
    _check_ranges(wide, STORED[precision])
    lowered = lowered.with_outputs(rebuild(lowered.outputs, {value: n for n, value in weights.items()}))
    rounded_dtypes: dict[Node, DType] = {}
    for n in lowered.nodes():
        if isinstance(n.op, ops.Convert) and n.dtype.bits == 16 and n.inputs[0].dtype == f32:
            source = n.inputs[0]
            while source.op.rearranges and len(source.inputs) == 1:
                source = source.inputs[0]
            if source not in weights:
                rounded_dtypes[source] = n.dtype

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        copy = n.with_inputs(inputs)
        return ops.cast(ops.cast(copy, rounded_dtypes[n]), f32) if n in rounded_dtypes and n.dtype == f32 else copy

    return lowered.with_outputs(rebuild(lowered.outputs, rule=image))


def _has_products(graph: Graph) -> bool:
    """Whether the graph or a body of its ops has a product or a convolution."""
    is_product = (ops.DotGeneral, ops.Convolution)
    return any(isinstance(n.op, is_product) or any(map(_has_products, n.op.bodies)) for n in graph.nodes())


def _is_weight(n: Node) -> bool:
    return isinstance(n.op, ops.WEIGHT_FORMS) and n.dtype == f32 and all(map(is_constant, n.inputs))


def _check_ranges(graph: Graph, dtype: DType) -> None:
    """Which products a program leaves in f32 for a weight that is too large depends on what it merges."""
    for weight in {n.inputs[i] for n in graph.nodes() for i in n.op.stored_weights}:
        largest = excess(value_of(weight), dtype) if weight.dtype == f32 and is_constant(weight) else None
        if largest is not None:
            fix = "take float32 or bfloat16"
            what = f"weights in the range of {dtype}"
            raise InputError("bounds", expected=what, got=largest, where=weight.loc, fix=fix)


# --- weights in levels


def in_parts(graph: Graph) -> Graph:
    """The graph with products of weights in levels as programs compute them: see the module's docstring. Raises
    InputError for weights with a minimum in loops of an unknown number of iterations."""
    if not any(_holds(graph, is_split) for is_split in (_has_minimum, _is_narrowed)):
        return graph
    lowered = unroll(lower_model_ops(graph, _kept_ops()))
    if any(_holds(body, _has_minimum) for n in lowered.nodes() for body in n.op.bodies):
        raise _refusal("a loop of an unknown number of iterations")
    return lowered.with_outputs(rebuild(lowered.outputs, rule=_split))


def _holds(graph: Graph, is_split: Callable[[Node], bool]) -> bool:
    """Whether the graph or a body of its ops has a node of this kind."""
    return any(is_split(n) or any(_holds(body, is_split) for body in n.op.bodies) for n in graph.nodes())


def _has_minimum(node: Node) -> bool:
    """Whether the node is weights in blocks with a minimum."""
    return isinstance(node.op, ops.DequantizeBlocks) and len(node.inputs) > 1 + node.op.factors


def _is_narrowed(node: Node) -> bool:
    """Whether the node is weights in levels that are rounded to 16 bits."""
    return isinstance(node.op, ops.Convert) and node.dtype.bits == 16 and _levels_of(node.inputs[0]) is not None


def _levels_of(w: Node) -> Node | None:
    """The weight form below ops that rearrange it; None for others."""
    while w.op.rearranges and len(w.inputs) == 1:
        (w,) = w.inputs
    return w if isinstance(w.op, ops.WEIGHT_FORMS) and w.dtype == f32 else None


def _split(n: Node, inputs: Sequence[Node]) -> Node:
    for side, stored in enumerate(inputs):
        is_narrow = _is_narrowed(stored)
        w = stored.inputs[0] if is_narrow else stored
        if not isinstance(n.op, (ops.DotGeneral, ops.Convolution)) or (parts := _parts(w)) is None:
            continue
        if len(parts) == 1 and not is_narrow:
            continue
        x, product = ops.cast(inputs[1 - side], f32), partial(_product, n.op, side)
        total = product(x, w)
        if len(parts) > 1:
            axes = _summed_axes(n.op, side)
            if axes is None:
                raise _refusal(f"them as operand {side} of {n.op.name}, which does not sum over them")
            groups = n.op.feature_groups if isinstance(n.op, ops.Convolution) else 1
            total = product(_twice(x, axes[1], groups), ops.concat(list(parts), axes[0]))
        if not is_narrow:
            return total
        exact = value_of(w)
        distance = np.abs(exact.astype(stored.dtype.numpy).astype(np.float64) - exact) * _ROUND_UP
        radius = product(Hinge(-1.0, 1.0)(x), const(distance.astype(np.float32)))
        return ops.Add()(total, ops.Mul()(Unknown()(radius), radius))
    return n.with_inputs(inputs) if n.inputs else n


def _product(op: Op, side: int, x: Node, w: Node) -> Node:
    """side: of w."""
    return op(*((x, w) if side else (w, x)))


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


def _parts(w: Node) -> tuple[Node, ...] | None:
    """Levels times scale, and the minimum if there is one, of weights seen through ops that rearrange them; None for
    others."""
    if _has_minimum(w):
        op, (levels, *factors) = w.op, w.inputs
        assert isinstance(op, ops.DequantizeBlocks)
        scale, minimum = op.parts(factors)
        return op(levels, *scale), reduce(mul, (Term(p).cast(f32) for p in minimum)).broadcast(w.shape).node
    if isinstance(w.op, ops.WEIGHT_FORMS):
        return (w,)
    if not (w.op.rearranges and len(w.inputs) == 1) or (parts := _parts(w.inputs[0])) is None:
        return None
    return tuple(w.with_inputs([part]) for part in parts)


def _refusal(got: str) -> InputError:
    return InputError("numerics", expected="weights in blocks with a minimum in products and convolutions", got=got)
