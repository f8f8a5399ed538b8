"""Quantized values: compute on the stored integers instead of the numbers that they represent.

    max_pool((q - z) * s)   ->   (max_pool(q) - z) * s          also views and other ops that move elements
    quantize((q - z) * s)   ->   q                              by the same scale and zero
    quantize(max(x, 0))     ->   quantize(x)                    where 0 is the lowest level: x saturates there anyway
    quantize(concat(x, y))  ->   concat(quantize(x), quantize(y))
    gather((q - z) * s, i)  ->   (gather(q, i) - z) * s         of a constant table, which stays quantized

Products, where the machine multiplies and adds bytes four at a time:

    dot((a - za) * sa, (b - zb) * sb): f32   ->   convert(dot(a, b): i32 - za * sum(b)) * (sa * sb)

b, the weights, are i8, and a has the type that the machine multiplies them with: u8 (dot instructions of CPUs) or i8
(tensor cores). Values of the other type are shifted by 128, and u8 weights too; weights with a zero point are shifted
by it where the result fits, else za and zb each need a sum. All sums are exact in i32, and the scales are applied to
them: the result is more exact than with f32 products. Padding is a's zero point.

Only products with constant weights change; a has one scale and zero point, or one per row or image, b has one or one
per output channel.

Floats of 8 bits are multiplied directly where the machine supports it, constant or not:

    dot(a * sa, b * sb): f32   ->   dot(a, b): f32 * (sa * sb)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static, product
from ingot.ir.layout import identity_axes
from ingot.ir.node import Graph, Node, Op, const, deferred_const, rebuild, splat_of
from ingot.ir.types import DType, Shape, TensorType, f8e4m3fn, f8e5m2, f16, f32, i8, i16, i32, static_shape, u8
from ingot.ops.core.base import is_contraction
from ingot.ops.core.shape import View
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.block_quantized import (
    as_dequantize,
    is_product_of_levels,
    levels_of_arithmetic,
    product_of_levels,
)
from ingot.passes.core.layout import with_explicit_padding
from ingot.support.dataclass import dataclass

INTEGERS, FLOATS = (u8, i8), (f8e4m3fn, f8e5m2)  # 8-bit types that machines multiply
MAX_TERMS_I32, MAX_TERMS_F32 = 1 << 16, 1 << 9  # of a sum; times 255 * 128 they are less than 2^31 and 2^24


def lower_quantized(
    graph: Graph, int8_dot: DType | None, floats: tuple[DType, ...] = (f32,), f8_dot: bool = False,
    depthwise_sums: DType = f32, blocks: bool = True, widens: tuple[DType, ...] = (f16,), rounds: bool = False,
    is_kept: Callable[[Node], bool] = lambda n: False, least_weight: int = -128,
) -> Graph:  # fmt: skip
    """Compute products of dequantized values in integers (see module); lower the remaining quantization ops to
    arithmetic.

    int8_dot: the type by which the machine multiplies i8 weights. floats: the types that quantized weights may
    represent in a product. f8_dot: whether 8-bit floats are multiplied directly. depthwise_sums: the type of the sums
    of depthwise convolutions, f32 or i32. blocks: whether products read constants in block formats directly. widens:
    the 16-bit types of scales that these support. rounds: whether operands of quantized weights are rounded to bytes.
    is_kept: whether a product is faster in floats. least_weight: the smallest i8 weight that is multiplied exactly."""

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        new = n.with_inputs(inputs)
        if is_contraction(n):
            w = levels_of_arithmetic(inputs[1])
            new = new if w is None else n.with_inputs((inputs[0], w))
            integers = None if int8_dot is None else _in_integers(new, int8_dot, depthwise_sums, least_weight)
            if integers is not None and not is_kept(new):
                return integers
            return (_in_floats(new) if f8_dot else None) or product_of_levels(new, floats, rounds) or new
        return new

    nodes = graph.nodes()
    has_levels = any(isinstance(n.op, (*ops.LEVEL_FORMS, ops.Quantize)) for n in nodes)
    if not has_levels and not any(is_contraction(n) and levels_of_arithmetic(n.inputs[1]) is not None for n in nodes):
        return graph
    if not blocks or f16 not in widens:
        graph = graph.with_outputs(rebuild(graph.outputs, rule=_wide_factors if blocks else _as_one_scale))
    graph = graph.with_outputs(rebuild(graph.outputs, rule=_move_to_levels))
    graph = _drop_bounds(_concatenate_levels(graph))
    graph = graph.with_outputs(rebuild(graph.outputs, rule=image))
    return graph.with_outputs(rebuild(graph.outputs, rule=partial(_as_arithmetic, floats)))


def _as_one_scale(n: Node, inputs: Sequence[Node]) -> Node:
    """`Dequantize` in place of constants in a block format."""
    is_of_blocks = isinstance(n.op, ops.DequantizeBlocks) and all(map(is_constant, inputs))
    return as_dequantize(n) if is_of_blocks else n.with_inputs(inputs)


def _wide_factors(n: Node, inputs: Sequence[Node]) -> Node:
    """Constants in a block format with factors of f32 instead of f16."""

    def wide(p: Node) -> Node:
        return (
            deferred_const(TensorType(f32, p.shape), lambda: value_of(p).astype(np.float32), p.loc)
            if p.dtype == f16
            else p
        )

    is_of_blocks = isinstance(n.op, ops.DequantizeBlocks) and all(map(is_constant, inputs))
    return n.with_inputs([wide(p) for p in inputs] if is_of_blocks else inputs)


def _move_to_levels(n: Node, inputs: Sequence[Node]) -> Node:
    """`n` applied to levels and dequantized afterwards, if that is equivalent; else `n`."""
    copy = n.with_inputs(inputs)
    if not inputs or not isinstance(inputs[0].op, ops.Dequantize):
        return copy
    q, zero, *scale = inputs[0].inputs
    if isinstance(n.op, ops.Gather) and q.constant is not None:
        return _gather_levels(n.op, *inputs) or copy
    if is_constant(q) or any(p.type.size != 1 for p in (zero, *scale)):
        return copy
    if isinstance(n.op, ops.Quantize) and scale:
        is_identity = _same_splat(inputs[1], scale[0]) and _same_splat(inputs[2], zero) and n.dtype == q.dtype
        return q if is_identity else copy
    moves_elements = n.op.rearranges and len(inputs) == 1 and len(n.types) == 1
    if moves_elements or (q.dtype.is_integer and _is_extreme_of_windows(n.op) and all(_is_positive(s) for s in scale)):
        return inputs[0].op(n.op(q, loc=n.loc), *(ops.reshape(p, ()) for p in (zero, *scale)), loc=inputs[0].loc)
    return copy


def _gather_levels(op: ops.Gather, table: Node, at: Node) -> Node | None:
    """Gather from the levels of a table and dequantize the result; None if that is not possible."""
    q, *parameters = table.inputs
    if q.dtype.bits < 8 or op.operand_batching_dims:
        return None

    def read(p: Node) -> Node:
        value = splat_of(p)
        if value is not None:
            return const(value.astype(p.dtype.numpy))
        p = ops.reshape(p, (*(1,) * (q.type.rank - p.type.rank), *p.shape))
        # a gather along an axis of size 1 always reads that element, as indices are clamped
        sizes = tuple(1 if dim == 1 else size for dim, size in zip(p.shape, op.slice_sizes, strict=True))
        return replace(op, slice_sizes=sizes)(p, at)

    return table.op(op(q, at), *map(read, parameters), loc=table.loc)


def _concatenate_levels(graph: Graph) -> Graph:
    """quantize(concat(x, ...)) -> concat(quantize(x), ...) for values that are only quantized: less is stored and
    moved."""
    uses, outputs = graph.uses(), set(graph.outputs)

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        x = n.inputs[0] if isinstance(n.op, ops.Quantize) else n
        if not isinstance(x.op, ops.Concat) or x is n or x in outputs or len(uses[x]) != 1:
            return n.with_inputs(inputs)
        scale, zero = (splat_of(p) for p in n.inputs[1:])
        if scale is None or zero is None:
            return n.with_inputs(inputs)
        parts = [ops.quantize(part, const(scale), const(zero), n.loc) for part in inputs[0].inputs]
        return x.op(*parts, loc=n.loc)

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _drop_bounds(graph: Graph) -> Graph:
    """Remove bounds of values that are only quantized and that saturate at the same bounds anyway."""
    uses, outputs = graph.uses(), set(graph.outputs)

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        if not isinstance(n.op, ops.Quantize):
            return n.with_inputs(inputs)
        x = n.inputs[0]
        is_only_quantized = x not in outputs and all(isinstance(u.op, ops.Quantize) for u in uses[x])
        bounded = _known_bounds(x) if is_only_quantized else None
        if bounded is None:
            return n.with_inputs(inputs)
        operand, *bounds = bounded
        scale, zero = (splat_of(p) for p in n.inputs[1:])
        if scale is None or zero is None or not float(scale) > 0:
            return n.with_inputs(inputs)
        ends = [n.op.reference(np.asarray(b), scale, zero) for b in bounds]  # type: ignore[arg-type]
        if not all(end == limit for end, limit in zip(ends, n.dtype.range, strict=True)):
            return n.with_inputs(inputs)
        return n.with_inputs([inputs[0].inputs[operand], *inputs[1:]])

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _known_bounds(x: Node) -> tuple[int, np.float32, np.float32] | None:
    """(the operand of `x` that is bounded by known numbers other than NaN, the lower bound, the upper bound) or
    None."""
    match x.op:
        case ops.Clamp():
            operand, low, high = 1, splat_of(x.inputs[0]), splat_of(x.inputs[2])
        case ops.Max():
            operand, low, high = *_known_operand(x), np.float32(np.inf)
        case ops.Min():
            operand, high = _known_operand(x)
            low = np.float32(-np.inf)
        case _:
            return None
    if x.dtype != f32 or low is None or high is None or not np.less_equal(low, high):
        return None
    return operand, np.float32(low), np.float32(high)


def _known_operand(x: Node) -> tuple[int, np.generic | None]:
    """(the index of the operand that is not a splat, the value of the other one or None)."""
    a, b = map(splat_of, x.inputs)
    return (0, b) if b is not None else (1, a)


def _is_extreme_of_windows(op: Op) -> bool:
    """Whether `op` takes extremes over windows that all contain an element: wider than the padding, without gaps."""
    if not isinstance(op, ops.ReduceWindow) or op.kind not in ("max", "min"):
        return False
    has_gaps = any(d != 1 for d in (*op.dilation, *op.base_dilation))
    return not has_gaps and all(max(pads) < size for size, pads in zip(op.window, op.padding, strict=True))


def _same_splat(a: Node, b: Node) -> bool:
    """Whether both are splats of the same known value and type."""
    values = splat_of(a), splat_of(b)
    return a.dtype == b.dtype and values[0] is not None and values[0] == values[1]


def _is_positive(scale: Node) -> bool:
    value = splat_of(scale)
    return value is not None and float(value) > 0


def _as_arithmetic(floats: tuple[DType, ...], n: Node, inputs: Sequence[Node]) -> Node:
    if is_product_of_levels(n, floats):
        return n.op(inputs[0], n.inputs[1], loc=n.loc)
    if isinstance(n.op, ops.Quantize):
        scale = splat_of(inputs[1])
        is_exact = n.dtype.bits == 8 and scale is not None and ops.reciprocal_is_exact(float(scale))
        return replace(n.op, divides=not is_exact)(*inputs, loc=n.loc)
    if isinstance(n.op, ops.EmbeddingLookup) and isinstance(n.inputs[0].op, ops.LEVEL_FORMS):
        return n.op(n.inputs[0], inputs[1], loc=n.loc)
    if not isinstance(n.op, ops.LEVEL_FORMS):
        return n.with_inputs(inputs)
    if all(map(is_constant, inputs)):
        return deferred_const(n.type, lambda: value_of(n.with_inputs(inputs)), n.loc)
    lowered = n.op.lower(*inputs)
    assert isinstance(lowered, Node)
    return lowered


@dataclass(frozen=True)
class _Levels:
    """(q - zero) * scale. q has 8 bits; zero is i32, and 0 for floats; zero and scale have q's sizes along `axes`. A
    scale of None is 1, for results in i32."""

    q: Node
    zero: Node
    scale: Node | None
    axes: tuple[int, ...]


def _levels_of(x: Node, kinds: tuple[DType, ...]) -> _Levels | None:
    """The levels of `x`, looking through views; None if it has none. kinds: the types that levels may have."""
    if isinstance(x.op, ops.Dequantize):
        return _levels_of_dequantize(x, kinds)
    if not isinstance(x.op, View) or not x.op.permutes:
        return None
    source = _levels_of(x.inputs[0], kinds)
    if source is None:
        return None
    q = x.op.reference(source.q.constant.value) if source.q.constant is not None else x.op(source.q)
    view = replace(source, q=const(q, loc=source.q.loc) if isinstance(q, np.ndarray) else q)
    if not source.axes:
        return view
    before = x.inputs[0].shape
    view_axes = identity_axes(x.op.index_map(before, x.shape), before, x.shape)
    axes = [a for d in source.axes if (a := view_axes[d]) is not None]
    return replace(view, axes=tuple(axes)) if axes == sorted(axes) and len(axes) == len(source.axes) else None


def _levels_of_dequantize(x: Node, kinds: tuple[DType, ...]) -> _Levels | None:
    q, zero, *scale = x.inputs
    if q.dtype not in kinds or (scale and scale[0].dtype != f32) or (q.dtype.is_float and not _is_zero(zero)):
        return None
    rank = q.type.rank
    varied = {d - p.type.rank + rank for p in (zero, *scale) for d, size in enumerate(p.shape) if size != 1}
    axes = tuple(sorted(varied))
    return _Levels(
        q, _parameter_along(zero, q, axes, i32), _parameter_along(scale[0], q, axes, f32) if scale else None, axes
    )


def _parameter_along(p: Node, q: Node, axes: Sequence[int], dtype: DType) -> Node:
    """p, which broadcasts against q, expanded to q's sizes along `axes`."""
    shape = tuple(q.shape[d] for d in axes)
    missing = q.type.rank - p.type.rank
    present = tuple(p.shape[d - missing] if d >= missing else 1 for d in axes)
    if p.constant is not None:
        value = p.constant.value.astype(dtype.numpy).reshape(static_shape(present))
        if is_static(shape):
            return const(np.broadcast_to(value, static_shape(shape)), loc=p.loc)
        p = const(value, loc=p.loc)
    p = ops.Reshape(present)(ops.cast(p, dtype))
    if present == shape:
        return p
    dims = tuple(i for i, (size, dim) in enumerate(zip(present, shape, strict=True)) if size == dim)
    return ops.BroadcastInDim(shape, dims)(ops.Reshape(tuple(present[i] for i in dims))(p))


def _shift_levels(x: Node, offset: int, to: DType) -> Node:
    """8-bit integers shifted into the range of another type."""
    if x.constant is not None:  # a shift by 128 flips the highest bit, without wider intermediate values
        return const((x.constant.value.view(np.uint8) ^ np.uint8(128)).view(to.numpy), loc=x.loc)
    return ops.Convert(to)(ops.add(ops.Convert(i32)(x), offset))


def _bytes(a: _Levels, to: DType) -> _Levels:
    """Levels as u8 or i8, or as i16 with a zero of 0."""
    if to == i16:
        zero = ops.BroadcastInDim(a.q.shape, a.axes)(a.zero)
        levels = ops.Convert(i16)(ops.sub(ops.Convert(i32)(a.q), zero))
        return replace(a, q=levels, zero=const(np.int32(0)) if not a.axes else ops.full(a.zero.shape, 0, i32))
    offset = 128 if to == u8 else -128
    return a if a.q.dtype == to else replace(a, q=_shift_levels(a.q, offset, to), zero=ops.add(a.zero, offset))


def _signed(b: _Levels) -> _Levels:
    """Constant weights as i8, with a zero of 0 where they fit."""
    if b.q.dtype == i8 and _is_zero(b.zero):
        return b  # unchanged, so that products share them
    if b.q.constant is not None and b.zero.constant is not None:
        shape = [-1 if d in b.axes else 1 for d in range(b.q.type.rank)] if b.axes else ()
        levels = b.q.constant.value.astype(np.int32) - b.zero.constant.value.reshape(shape)
        if levels.size == 0 or (levels.min() >= -128 and levels.max() <= 127):
            zero = const(np.zeros_like(b.zero.constant.value))
            return replace(b, q=const(levels.astype(np.int8), loc=b.q.loc), zero=zero)
    return _bytes(b, i8)


def _in_integers(n: Node, int8_dot: DType, depthwise_sums: DType, least_weight: int) -> Node | None:
    """The product `n` of levels in integers; None if it is not such a product."""
    a, b = (_levels_of(x, INTEGERS) for x in n.inputs)
    if a is None or b is None or len(b.axes) > 1 or not is_constant(b.q) or (a.scale is None) != (b.scale is None):
        return None
    # a depthwise convolution uses no dot instructions, and its kernel widens bytes of any type
    is_depthwise = isinstance(n.op, ops.Convolution) and _is_depthwise(n.op, b)
    a, b = a if is_depthwise and int8_dot == i16 else _bytes(a, int8_dot), _signed(b)
    if least_weight > -128 and not is_depthwise and value_of(b.q).min(initial=0) < least_weight:
        return None
    rows, columns = _result_dims(n, a, 0), _result_dims(n, b, 1)
    if rows is None or columns is None:
        return None
    result = _ProductView(n.shape, rows, columns)
    if isinstance(n.op, ops.Convolution):
        sums = _convolution_sums(n, a, b, result, depthwise_sums)
    else:
        sums = _matmul_sums(n, a, b, result)
    if sums is None:
        return None
    if a.scale is None or b.scale is None:
        return ops.cast(sums, i32)
    return result.scaled(ops.cast(sums, f32), a.scale, b.scale, n.loc)


def _in_floats(n: Node) -> Node | None:
    """The product `n` of scaled 8-bit floats, computed on these; None if it is not such a product."""
    a, b = (_levels_of(x, FLOATS) for x in n.inputs)
    if a is None or b is None or a.scale is None or b.scale is None:
        return None
    rows, columns = _result_dims(n, a, 0), _result_dims(n, b, 1)
    if rows is None or columns is None or (isinstance(n.op, ops.Convolution) and n.op.feature_groups != 1):
        return None
    sums = replace(n.op, dtype=f32)(a.q, b.q, loc=n.loc)  # type: ignore[call-arg]
    return _ProductView(n.shape, rows, columns).scaled(sums, a.scale, b.scale, n.loc)


def _result_dims(n: Node, levels: _Levels, operand: int) -> tuple[int, ...] | None:
    """The dimensions of the result along which the levels' parameters vary; None if one of them is summed over."""
    if isinstance(n.op, ops.Convolution):
        operand_dim = (n.op.lhs_layout.index("N"), n.op.rhs_layout.index("O"))[operand]
        result_dim_of = {operand_dim: n.op.out_layout.index("NC"[operand])}
    else:
        assert isinstance(n.op, ops.DotGeneral)
        free = n.op.free(n.inputs[0].type.rank, n.inputs[1].type.rank)
        first = len(n.op.batch[0]) + (len(free[0]) if operand else 0)
        result_dim_of = {d: first + i for i, d in enumerate(free[operand])}
    return tuple(result_dim_of[d] for d in levels.axes) if all(d in result_dim_of for d in levels.axes) else None


@dataclass(frozen=True)
class _ProductView:
    """Broadcasts parameters of both operands to the shape of a product's result. rows, columns: its dimensions along
    which they vary."""

    shape: Shape
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def a(self, p: Node) -> Node:
        return ops.BroadcastInDim(self.shape, self.rows)(p)

    def b(self, p: Node) -> Node:
        return ops.BroadcastInDim(self.shape, self.columns)(p)

    def scaled(self, sums: Node, a: Node, b: Node, loc: str) -> Node:
        """f32 sums times both scales."""
        scale = self.b(ops.mul(a, b)) if not self.rows else ops.mul(self.a(a), self.b(b))
        return ops.mul(sums, scale, loc=loc)


def _is_zero(p: Node) -> bool:
    value = p.constant.value if p.constant is not None else splat_of(p)
    return value is not None and not value.any()


def _zero_point_term(of_b: Node, zero: Node, result: _ProductView, columns: tuple[int, ...]) -> Node:
    """The contribution of a's zero to the sums: of_b, the sums of b for each of `columns`, times the zero."""
    if zero.shape == ():  # a constant of the columns, which joins a bias
        return ops.BroadcastInDim(result.shape, columns)(ops.mul(of_b, zero))
    return ops.mul(ops.BroadcastInDim(result.shape, columns)(of_b), result.a(zero))


def _matmul_sums(n: Node, a: _Levels, b: _Levels, result: _ProductView) -> Node | None:
    op = n.op
    assert isinstance(op, ops.DotGeneral)
    rows, _ = op.free(a.q.type.rank, b.q.type.rank)
    depth = product(b.q.shape[d] for d in op.contract[1])
    max_terms = MAX_TERMS_I32 if _is_zero(b.zero) else MAX_TERMS_I32 // 2  # of weights from -255 to 255
    if any(op.batch) or not isinstance(depth, int) or depth > max_terms:
        return None
    sums = replace(op, dtype=i32)(a.q, b.q, loc=n.loc)
    if not _is_zero(a.zero):
        of_b = ops.Reduce("sum", op.contract[1])(ops.Convert(i32)(b.q))
        sums = ops.sub(sums, _zero_point_term(of_b, a.zero, result, tuple(range(len(rows), n.type.rank))))
    if not _is_zero(b.zero):
        of_a = ops.Reduce("sum", op.contract[0])(ops.Convert(i32)(a.q))
        broadcast = ops.BroadcastInDim(n.shape, tuple(range(len(rows))))(of_a)
        sums = ops.sub(sums, ops.mul(ops.sub(broadcast, result.a(ops.mul(a.zero, depth))), result.b(b.zero)))
    return sums


def _is_depthwise(op: ops.Convolution, b: _Levels) -> bool:
    return b.q.shape[op.rhs_layout.index("I")] == 1 and op.feature_groups > 1


def _has_holes(op: ops.Convolution) -> bool:
    return any(d != 1 for d in op.lhs_dilation)


def _convolution_sums(n: Node, a: _Levels, b: _Levels, result: _ProductView, depthwise_sums: DType) -> Node | None:
    op = n.op
    assert isinstance(op, ops.Convolution)
    window = [d for d, c in enumerate(op.rhs_layout) if c != "O"]
    depth = product(b.q.shape[d] for d in window)
    is_supported = op.batch_groups == 1 and (_is_zero(a.zero) or not _has_holes(op))
    channels = b.q.shape[op.rhs_layout.index("I")]
    is_depthwise = _is_depthwise(op, b)
    groups_fit = op.feature_groups == 1 or is_depthwise or (isinstance(channels, int) and channels % 4 == 0)
    max_terms = MAX_TERMS_F32 if is_depthwise else MAX_TERMS_I32
    if not (is_supported and groups_fit and isinstance(depth, int) and depth <= max_terms and _is_zero(b.zero)):
        return None
    # a depthwise convolution sums few products, which f32 represents exactly
    x, has_zero_point, sum_dtype = a.q, not _is_zero(a.zero), depthwise_sums if is_depthwise else i32
    if has_zero_point and any(map(any, op.padding)):
        op, x = _pad_with_zero_point(op, a)
    sums = replace(op, dtype=sum_dtype)(x, b.q, loc=n.loc)
    if has_zero_point:
        of_b = ops.cast(ops.Reduce("sum", tuple(window))(ops.Convert(i32)(b.q)), sum_dtype)
        zero = ops.cast(a.zero, sum_dtype)
        sums = ops.sub(sums, _zero_point_term(of_b, zero, result, (op.out_layout.index("C"),)))
    return sums


def _pad_with_zero_point(op: ops.Convolution, a: _Levels) -> tuple[ops.Convolution, Node]:
    """(the convolution without padding, the levels padded with the zero point of each image)"""
    zero = ops.cast(a.zero, a.q.dtype)
    if not a.axes:
        return with_explicit_padding(op, a.q, zero)
    zero_fill = ops.scalar(0, a.q.dtype)
    unpadded, x = with_explicit_padding(op, a.q, zero_fill)
    mask = with_explicit_padding(op, ops.full(a.q.shape, 1, a.q.dtype), zero_fill)[1]
    zeros = ops.BroadcastInDim(x.shape, a.axes)(zero)
    return unpadded, ops.where(ops.compare("NE", mask, 0), x, zeros)


__all__ = ["lower_quantized"]
