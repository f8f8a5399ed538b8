"""Algebraic simplification: the identities, and rules about shapes that their notation cannot express.

reshape(reshape(x)), transpose(transpose(x)), slice(slice(x)), broadcast(broadcast(x))   ->  one of them, or x
convert(convert(x))  ->  convert(x)                 where the first loses nothing
concat(slice(x, 0:2), slice(x, 2:4))  ->  x         slice(concat(a, b))  ->  slice(a)
add(broadcast(a), broadcast(b))  ->  broadcast(add(a, b))
(x - a) + b  ->  x + (b - a)                        of integers, a and b constants
x / 8.0  ->  x * 0.125                              where the reciprocal is exact
compare(iota, 0)  ->  true                          and more about positions: see affine.py
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Graph, Node, rebuild, splat_of
from ingot.ir.rewrite import Rule, RuleSet, rewrite, rules
from ingot.ir.types import DType, Shape, f8e8m0fnu, truncation_type
from ingot.ops.core.elementwise import Elementwise
from ingot.passes.constants import is_constant
from ingot.passes.core.gelu import GELU
from ingot.passes.core.identities import FAST_MATH, IDENTITIES, rule_set
from ingot.passes.core.positions.attention_masks import mask_rules
from ingot.passes.core.positions.rules import Positions
from ingot.passes.view_chains import VIEW_CHAINS


def simplify(graph: Graph, *, fast_math: bool = False) -> Graph:
    """x * 1 -> x, transpose(transpose(x)) -> x, slice(concat(a, b)) -> a, ...: see the module's table.

    Exact but for NaN payloads, the sign of a zero that is a sum of one element, and `ulps` where an identity says so;
    `fast_math` adds the rules that ignore NaN, infinities, signs of zero and rounding.
    """
    positions = Positions()
    return rewrite(graph, _rules(fast_math) + positions.rules() + mask_rules(positions))


@cache
def _rules(fast_math: bool) -> RuleSet:
    return SHAPES + VIEW_CHAINS + GELU + rule_set(IDENTITIES) + (rule_set(FAST_MATH) if fast_math else RuleSet())


# --- windows


def _reduce_window(n: Node) -> Node | None:
    """Remove window positions that always read padding: a window of 2^62 on 5 elements keeps 9."""
    op = n.op
    assert isinstance(op, ops.ReduceWindow)
    narrowed = op.narrowed(n.inputs[0].type)
    return None if narrowed == op else narrowed(*n.inputs)


# --- reshape, transpose, broadcast


def _reshape(n: Node) -> Node | None:
    """reshape to the same shape -> x; reshape(reshape(x)) -> reshape(x); reshape(broadcast(scalar)) -> broadcast"""
    (x,) = n.inputs
    if x.shape == n.shape:
        return x
    if isinstance(x.op, ops.Reshape):
        return ops.Reshape(n.shape)(x.inputs[0])
    if isinstance(x.op, ops.BroadcastInDim) and not x.op.dims:
        return ops.BroadcastInDim(n.shape, ())(x.inputs[0])
    return None


def _transpose(n: Node) -> Node | None:
    """transpose by 0, 1, 2... -> x; transpose(transpose(x)) -> transpose(x); of a broadcast or iota -> another one;
    transpose of dimensions of size 1 -> reshape"""
    (x,) = n.inputs
    perm = _permutation(n)
    if perm == tuple(range(len(perm))):
        return x
    op = x.op.absorb_transpose(perm) if isinstance(x.op, ops.CoreOp) else None
    if op is not None:
        return op(*x.inputs)
    long = [d for d in perm if x.shape[d] != 1]
    return ops.Reshape(n.shape)(x) if long == sorted(long) else None


def _permutation(n: Node) -> tuple[int, ...]:
    assert isinstance(n.op, ops.Transpose)
    return n.op.permutation


def _broadcast(n: Node) -> Node | None:
    """broadcast(broadcast(x)) -> broadcast(x); broadcast that repeats nothing -> reshape or transpose of x"""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.BroadcastInDim)
    if isinstance(x.op, ops.BroadcastInDim):
        return ops.BroadcastInDim(op.shape, tuple(op.dims[d] for d in x.op.dims))(x.inputs[0])
    if isinstance(x.op, ops.Reshape):
        axes = _inserted(x.inputs[0].shape, x.shape)
        if axes is not None:
            return ops.BroadcastInDim(op.shape, tuple(op.dims[a] for a in axes))(x.inputs[0])
    if _repeats_nothing(op, x.shape):
        order = tuple(sorted(range(len(op.dims)), key=lambda a: op.dims[a]))
        return ops.Reshape(op.shape)(ops.Transpose(order)(x))
    return None


def _inserted(old: Shape, new: Shape) -> tuple[int, ...] | None:
    """For each axis of `old` its index in `new`, if `new` is `old` with axes of size 1 inserted; else None."""
    axes: list[int] = []
    for axis, d in enumerate(new):
        if len(axes) < len(old) and d == old[len(axes)]:
            axes.append(axis)
        elif d != 1:
            return None
    return tuple(axes) if len(axes) == len(old) else None


def _repeats_nothing(op: ops.BroadcastInDim, shape: Shape) -> bool:
    sizes = {d: shape[a] for a, d in enumerate(op.dims)}
    return all(sizes.get(d, 1) == size for d, size in enumerate(op.shape))


# --- slice, pad, concat, reverse


def _slice(n: Node) -> Node | None:
    """slice of everything -> x; slice(slice(x)) -> slice(x); slice within one operand of a concat -> slice of it"""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.Slice)
    if n.shape == x.shape and all(s == 1 for s in op.strides):
        return x
    if isinstance(x.op, ops.BroadcastInDim) and not x.op.dims:
        return ops.BroadcastInDim(n.shape, ())(x.inputs[0])
    merged = None
    if isinstance(x.op, ops.Slice):
        merged = _slice_of_slice(op, x, x.op)
    elif isinstance(x.op, ops.Concat):
        merged = _slice_of_concat(op, x, x.op.dimension)
    # a sum of maxima may have several forms: a slice whose sizes would get other ones stays
    return merged if merged is not None and merged.type == n.type else None


def _slice_of_slice(outer: ops.Slice, x: Node, inner: ops.Slice) -> Node | None:
    # the limit of a strided slice may exceed the operand's end, so these stay
    if any(s != 1 for s in inner.strides):
        return None
    start = tuple(a + b for a, b in zip(inner.start, outer.start, strict=True))
    limit = tuple(a + b for a, b in zip(inner.start, outer.limit, strict=True))
    return ops.Slice(start, limit, outer.strides)(x.inputs[0])


def _slice_of_concat(op: ops.Slice, x: Node, axis: int) -> Node | None:
    begin: DimLike = 0
    for part in x.inputs:
        low, high = op.start[axis] - begin, op.limit[axis] - begin
        size = part.shape[axis]
        is_inside = all(isinstance(d, int) and d >= 0 for d in (low, size - high))
        if is_inside and low != high:
            start, limit = _replaced_at(op.start, axis, low), _replaced_at(op.limit, axis, high)
            return ops.Slice(start, limit, op.strides)(part)
        begin = begin + size
    return None


def _replaced_at(shape: Shape, axis: int, size: DimLike) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


_MAX_CONCAT_PARTS = 64  # of merged concats: concats of a value with itself double in every step


def _concat(n: Node) -> Node | None:
    """concat(x) -> x; concat(concat(a, b), c) -> concat(a, b, c); no empty operands; neighbouring slices of x joined;
    all filled with one value -> that value"""
    assert isinstance(n.op, ops.Concat)
    axis = n.op.dimension
    if len(n.inputs) == 1:
        return n.inputs[0]
    if all(isinstance(x.op, ops.BroadcastInDim) and x.inputs[0] is n.inputs[0].inputs[0] for x in n.inputs):
        filled = n.inputs[0].inputs[0]
        if filled.type.rank == 0:
            return ops.BroadcastInDim(n.shape, ())(filled)
    parts: list[Node] = []
    for x in n.inputs:
        is_mergeable = (
            isinstance(x.op, ops.Concat) and x.op.dimension == axis and len(parts) + len(x.inputs) <= _MAX_CONCAT_PARTS
        )
        parts += x.inputs if is_mergeable else (x,)
    parts = [x for x in parts if x.shape[axis] != 0] or parts[:1]
    merged: list[Node] = []
    for x in parts:
        pair = _merged_slices(merged[-1], x, axis) if merged else None
        if pair is None:
            merged.append(x)
        else:
            merged[-1] = pair
    if tuple(merged) == n.inputs:
        return None
    return merged[0] if len(merged) == 1 else n.op(*merged)


def _merged_slices(a: Node, b: Node, axis: int) -> Node | None:
    """concat(x[i:j], x[j:k]) -> x[i:k]"""
    p, q = a.op, b.op
    if not (isinstance(p, ops.Slice) and isinstance(q, ops.Slice)) or a.inputs[0] is not b.inputs[0]:
        return None
    is_adjacent = p.limit[axis] == q.start[axis] and all(s == 1 for s in (*p.strides, *q.strides))
    if not is_adjacent or _replaced_at(p.start, axis, 0) != _replaced_at(q.start, axis, 0):
        return None
    return ops.Slice(p.start, _replaced_at(p.limit, axis, q.limit[axis]), p.strides)(a.inputs[0])


def _pad(n: Node) -> Node | None:
    """pad by nothing -> x; pad(pad(x, v), v) -> pad(x, v); pad that also crops -> pad(slice(x)), unchecked"""
    op, (x, value) = n.op, n.inputs
    assert isinstance(op, ops.Pad)
    if not any(d != 0 for d in (*op.low, *op.high, *op.interior)):
        return x
    if any(isinstance(d, int) and d < 0 for d in (*op.low, *op.high)) and not any(op.interior):
        return _cropped_first(op, x, value)
    inner = x.op
    if not isinstance(inner, ops.Pad) or x.inputs[1] is not value or any((*op.interior, *inner.interior)):
        return None
    is_growing = all(isinstance(d, int) and d >= 0 for d in (*op.low, *op.high, *inner.low, *inner.high))
    if not is_growing:
        return None
    low, high = _sums(op.low, inner.low), _sums(op.high, inner.high)
    return ops.Pad(low, high, op.interior)(x.inputs[0], value)


def _cropped_first(op: ops.Pad, x: Node, value: Node) -> Node | None:
    low, high = (tuple(-d if isinstance(d, int) and d < 0 else 0 for d in side) for side in (op.low, op.high))
    for n, a, b in zip(x.shape, low, high, strict=True):
        if (a or b) and not (isinstance(n, int) and a + b <= n):
            return None  # a side may crop what the other one pads
    limits = tuple(n - b for n, b in zip(x.shape, high, strict=True))
    cropped = ops.Slice(low, limits, (1,) * len(low))(x)
    return ops.Pad(_sums(op.low, low), _sums(op.high, high), op.interior)(cropped, value)


def _sums(a: Shape, b: Shape) -> Shape:
    return tuple(p + q for p, q in zip(a, b, strict=True))


def _reverse(n: Node) -> Node | None:
    """reverse along sizes of 1 -> x; reverse(reverse(x)) -> reverse along what is left"""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.Reverse)
    dims = [d for d in op.dims if x.shape[d] != 1]
    source = x
    if isinstance(x.op, ops.Reverse):
        dims = sorted(set(dims) ^ set(x.op.dims))
        source = x.inputs[0]
    if not dims:
        return source
    return None if source is x and len(dims) == len(op.dims) else ops.Reverse(tuple(dims))(source)


def _dynamic_slice(n: Node) -> Node | None:
    """dynamic_slice at constant starts -> slice"""
    op, (x, *starts) = n.op, n.inputs
    assert isinstance(op, ops.DynamicSlice)
    low: list[int] = []
    for s, size, window in zip(starts, x.shape, op.sizes, strict=True):
        if not (s.constant is not None and isinstance(size, int) and isinstance(window, int)):
            return None
        low.append(min(max(int(s.constant.value), 0), size - window))
    limit = tuple(a + w for a, w in zip(low, op.sizes, strict=True))
    return ops.Slice(tuple(low), limit, (1,) * len(low))(x)


# --- types


def _convert(n: Node) -> Node | None:
    """convert to the same dtype -> x; convert(convert(x)) -> convert(x) where the first keeps every value"""
    (x,) = n.inputs
    if x.dtype == n.dtype:
        return x
    if not isinstance(x.op, ops.Convert) or not keeps_values(x.inputs[0].dtype, x.dtype):
        return None
    first = x.inputs[0]
    if first.dtype.is_integer and x.dtype.is_float and n.dtype.is_integer:
        # a direct conversion keeps the low bits, one through a float only those of numbers in range
        return ops.cast(first, n.dtype) if keeps_values(first.dtype, truncation_type(n.dtype)) else None
    return ops.cast(first, n.dtype)


def _bitcast(n: Node) -> Node | None:
    """bitcast to the same dtype -> x"""
    (x,) = n.inputs
    return x if x.dtype == n.dtype else None


# significant bits
_PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8, "f8e4m3fn": 4, "f8e5m2": 3}
_WIDER_TYPES = {
    "f8e4m3fn": ("f16", "bf16", "f32", "f64"),
    "f8e5m2": ("f16", "bf16", "f32", "f64"),
    "f16": ("f32", "f64"),
    "bf16": ("f32", "f64"),
    "f32": ("f64",),
}


def keeps_values(a: DType, b: DType) -> bool:
    """Whether `b` represents every value of `a`, so that a conversion through `b` equals a direct one."""
    if a == b:
        return True
    if b == f8e8m0fnu:  # has no zero
        return False
    if a.kind == "b":
        return True
    if a.is_float:
        return b.name in _WIDER_TYPES.get(a.name, ())
    if b.is_float:
        # an integer of at most 11 bits is below f16's largest number too
        return b.bits > 8 and a.bits - (a.kind == "i") <= _PRECISION[b.name]
    if a.kind == b.kind:
        return a.bits <= b.bits
    return a.kind == "u" and b.kind == "i" and a.bits < b.bits


# --- reductions, elementwise, control


def _reduce(n: Node) -> Node | None:
    """reduce over nothing -> x; over sizes of 1 alone -> reshape; reduce(reduce(x)) of one kind -> one reduce"""
    op, (x,) = n.op, n.inputs
    assert isinstance(op, ops.Reduce)
    if all(x.shape[d] == 1 for d in op.dims):
        return ops.Reshape(n.shape)(x) if op.dims else x
    if isinstance(x.op, ops.Reduce) and x.op.kind == op.kind:
        inner = x.op.dims
        remaining = [d for d in range(len(x.inputs[0].shape)) if d not in inner]
        return ops.Reduce(op.kind, (*inner, *(remaining[d] for d in op.dims)))(x.inputs[0])
    return None


def _lift_broadcast(n: Node) -> Node | None:
    """f(broadcast(a), broadcast(b)) -> broadcast(f(a, b)); a filled operand joins as a scalar"""
    views = [(i.op, i.inputs[0]) for i in n.inputs if isinstance(i.op, ops.BroadcastInDim)]
    op, like = next(((o, s) for o, s in views if o.dims), views[0])
    if product(like.shape) == product(op.shape):
        return None
    sources: list[Node] = []
    for o, source in views:
        if o.dims == op.dims and source.shape == like.shape:
            sources.append(source)
        elif not o.dims:
            sources.append(ops.broadcast_to(source, like.shape))
        else:
            return None
    return ops.BroadcastInDim(op.shape, op.dims)(n.op(*sources))


def _join_constants(n: Node) -> Node | None:
    """(x - a) + b -> x + (b - a), and other sums of an integer with two constants, which wrap alike"""
    inner, outer = n.inputs
    if not n.dtype.is_integer or not isinstance(inner.op, ops.Add | ops.Sub) or not is_constant(outer):
        return None
    x, a = inner.inputs
    if not is_constant(a) or is_constant(x):
        return None
    is_sub = isinstance(n.op, ops.Sub)
    if isinstance(inner.op, ops.Sub):
        return ops.sub(x, ops.add(a, outer), loc=n.loc) if is_sub else ops.add(x, ops.sub(outer, a), loc=n.loc)
    return ops.add(x, ops.sub(a, outer) if is_sub else ops.add(a, outer), loc=n.loc)


def _divide(n: Node) -> Node | None:
    """x / c -> x * (1 / c), where c is a power of two whose reciprocal is a normal number"""
    x, y = n.inputs
    if not n.dtype.is_float or n.dtype.bits < 16:
        return None
    c = splat_of(y)
    if c is None:
        return None
    value = float(c)
    if not np.isfinite(value) or abs(np.frexp(value)[0]) != 0.5 or not -14 <= np.log2(abs(value)) <= 14:
        return None
    return ops.mul(x, 1 / value)


def _case(n: Node) -> Node | tuple[Node, ...] | None:
    """case of a constant index -> that branch's outputs"""
    index, *rest = n.inputs
    if index.constant is None or not isinstance(n.op, ops.Case):
        return None
    at, branches = int(index.constant.value), n.op.branches
    branch = branches[at if 0 <= at < len(branches) else -1]
    if branch.sizes:
        return None  # computed sizes belong to a graph, which a rule does not have
    results = inline(branch, rest)
    return results[0] if len(results) == 1 else results


def inline(body: Graph, operands: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of `body` with `operands` as its inputs."""
    return rebuild(body.outputs, dict(zip(body.inputs, operands, strict=True)))


SHAPES = rules(
    Rule("reshape", ops.Reshape, _reshape),
    Rule("transpose", ops.Transpose, _transpose),
    Rule("broadcast", ops.BroadcastInDim, _broadcast),
    Rule("slice", ops.Slice, _slice),
    Rule("concat", ops.Concat, _concat),
    Rule("pad", ops.Pad, _pad),
    Rule("reverse", ops.Reverse, _reverse),
    Rule("dynamic-slice", ops.DynamicSlice, _dynamic_slice),
    Rule("convert", ops.Convert, _convert),
    Rule("bitcast", ops.BitcastConvert, _bitcast),
    Rule("reduce", ops.Reduce, _reduce),
    Rule("reduce-window", ops.ReduceWindow, _reduce_window),
    Rule("lift-broadcast", Elementwise, _lift_broadcast, lambda operands: set(operands) == {ops.BroadcastInDim}),
    Rule("join-constants", ops.Add, _join_constants),
    Rule("join-constants", ops.Sub, _join_constants),
    Rule("divide-by-power-of-two", ops.Div, _divide),
    Rule("case", ops.Case, _case),
)
