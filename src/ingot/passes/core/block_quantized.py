"""Weights as levels of few bits that stay quantized as operands of products.

    dot(x[m, k], reshape[n, k]((q[n, k / b, b] - zero[n, k / b, 1]) * scale[n, k / b, 1]))
    ->  dot(reshape[m, k / b, b](x), dequantize(q, zero, scale))       contracted over blocks and positions in them

The schedule stores q in its 4 or 8 bits and widens it where it is multiplied. Views between dequantization and product
are applied to the constants, in any order; the elements of a last block beyond k are multiplied by zeros. Levels that
are written as arithmetic are recognized too (`levels_of_arithmetic`), and bytes that use 4 bits are stored in 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot import ops
from ingot.ir.layout import Layout, reshape_groups
from ingot.ir.node import Graph, Node, const, deferred_const, rebuild, splat_of
from ingot.ir.types import DType, Shape, TensorType, f32, static_shape, u4
from ingot.ops.core.base import inverse
from ingot.ops.views import BIJECTIVE_VIEWS, base_of
from ingot.passes.constants import is_constant, value_of

_TINY = np.float32(1e-30)  # in place of a scale of 0, where the weight is the minimum
MAX_ROUNDED_LEVELS = 256  # which share a scale: as many as ggml's largest blocks, whose sums of products fit in i32
MIN_BLOCK_LEVELS = 8  # with smaller blocks, the scales cost more than they save
Perm = tuple[int, ...]


def product_of_levels(n: Node, floats: tuple[DType, ...], rounds: bool = False) -> Node | None:
    """The product `n` with constant levels as its second operand (see the module's docstring), or None. floats: the
    types that levels may represent. rounds: whether the first operand is rounded to bytes."""
    op = n.op
    if not isinstance(op, ops.DotGeneral) or any(op.batch) or len(op.contract[0]) != 1:
        return None
    ((x_axis,), (w_axis,)), (x, w) = op.contract, n.inputs
    unsliced = _without_slice(w, w_axis)
    base = base_of(unsliced, BIJECTIVE_VIEWS)
    if unsliced.type.rank != 2 or not _is_of_levels(base, floats) or x.dtype != base.dtype:
        return None
    size, k = static_shape((unsliced.shape[w_axis], w.shape[w_axis]))
    for blocks in _block_shapes(base, size, rounds):
        source = _through_views(unsliced, (*unsliced.shape[:w_axis], *blocks, *unsliced.shape[w_axis + 1 :]))
        levels = None if source is None else _apply_views(*source, block_axis=w_axis + len(blocks) - 1)
        if levels is None:
            continue
        x = ops.pad(x, (0,) * x.type.rank, tuple(size - k if d == x_axis else 0 for d in range(x.type.rank)))
        x = ops.reshape(x, (*x.shape[:x_axis], *blocks, *x.shape[x_axis + 1 :]))
        axes = tuple(range(x_axis, x_axis + len(blocks))), tuple(range(w_axis, w_axis + len(blocks)))
        if rounds:
            x = _round_in_blocks(x, levels, axes)
        return replace(op, contract=axes)(x, levels, loc=n.loc)
    return None


def _round_in_blocks(x: Node, w: Node, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Node:
    """`x` rounded to bytes in the blocks of `w`, or in blocks of blocks that share all non-integer factors, as rows are
    in each of ggml's formats. Blocks that no kernel multiplies as bytes are not rounded. axes: the summed axes of x and
    of w."""
    place = static_shape(w.shape)[axes[1][-1]]
    if place % 4 or place > MAX_ROUNDED_LEVELS:
        return x
    dims = axes[0][-1:]
    if isinstance(w.op, ops.DequantizeBlocks) and len(axes[1]) > 1:
        block = axes[1][-2] - w.type.rank  # from the end, as factors broadcast
        inner = static_shape(w.shape)[block]

        def is_split(part: Sequence[Node]) -> bool:
            """Whether a part is an integer for each block times floats that a block of blocks shares."""
            varying = [p for p in part if p.type.rank >= -block and p.shape[block] != 1]
            return len(varying) == 1 and varying[0].dtype.is_integer

        if inner * place <= MAX_ROUNDED_LEVELS and all(map(is_split, w.op.parts(w.inputs[1:]))):
            dims = axes[0][-2:]
    return ops.RoundToBytes(dims)(x, loc=x.loc)


def round_floats(graph: Graph, bytes_kept: bool = True) -> Graph:
    """Lower the rounding to bytes except where a product of levels reads it directly.

        y = slice(round_to_bytes(x)); dot(y, dequantize(q, ..))   ->   y = slice(round(x / d) * d)

    bytes_kept: whether products multiply bytes; else every rounding is lowered."""

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        if not any(isinstance(x.op, ops.RoundToBytes) for x in inputs) or (bytes_kept and _reads_bytes(n)):
            return n.with_inputs(inputs)
        return n.with_inputs([_lower_node(x) if isinstance(x.op, ops.RoundToBytes) else x for x in inputs])

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _reads_bytes(n: Node) -> bool:
    """Whether `n` is a product of levels with the same blocks as its rounded operand."""
    if not isinstance(n.op, ops.DotGeneral) or not is_product_of_levels(n, (f32,)):
        return False
    rounding = n.inputs[0].op
    return isinstance(rounding, ops.RoundToBytes) and n.op.contract[0][-len(rounding.dims) :] == rounding.dims


def _lower_node(n: Node) -> Node:
    lowered = n.op.lower(*n.inputs)
    assert isinstance(lowered, Node)
    return lowered


def _block_shapes(levels: Node, size: int, rounds: bool) -> Iterator[tuple[int, ...]]:
    """Shapes in which a reduction of `size` may be cut into blocks, the largest first: (blocks, block) or (size,).
    Those of block formats may be blocks of blocks. rounds: blocks are short enough to be rounded, if they can be."""
    shape = static_shape(levels.inputs[0].shape)
    if isinstance(levels.op, ops.DequantizeBlocks):
        yield from (part for part in (shape[1:], shape[:-1]) if part and prod(part) == size)
        return
    sizes = {size, *(d for d in shape if d and size % d == 0)}
    if rounds:
        short = {n for n in (256, 128, 64, 32) if size % n == 0}
        sizes = {n for n in sizes if n <= MAX_ROUNDED_LEVELS} | short or sizes
    for block in sorted((d for d in sizes if d >= MIN_BLOCK_LEVELS), reverse=True):
        yield (size // block, block) if block != size else (size,)


def as_dequantize(w: Node) -> Node:
    """`Dequantize` for constants in a block format, for targets without kernels for it: with a scale of one factor, and
    a zero in place of a minimum, which has a relative rounding error of 1e-7."""
    (q, *factors), form = w.inputs, w.op
    assert isinstance(form, ops.DequantizeBlocks)
    scale_factors, *minimum_factors = form.parts(factors)
    width = max((static_shape(p.shape[-1:])[0] for p in factors if p.type.rank), default=1)
    shape = static_shape((*q.shape[:-1], width))  # of each block, as blocks of blocks become one axis

    def scale() -> np.ndarray:
        value = reduce(np.multiply, (value_of(p).astype(np.float32) for p in scale_factors))
        value = np.where(value == 0, _TINY, value) if minimum_factors else value
        return np.broadcast_to(value, shape)

    def zero() -> np.ndarray:
        minimum = reduce(np.multiply, (value_of(p).astype(np.float32) for p in minimum_factors[0]))
        with np.errstate(all="ignore"):  # a damaged block may hold infinities
            return np.float32(form.zero) - minimum / scale()

    like = TensorType(f32, shape)
    zeros = ops.scalar(form.zero, q.dtype)
    if minimum_factors:
        zeros = deferred_const(like, zero, w.loc, key=("zeros", w))
    return ops.Dequantize()(q, zeros, deferred_const(like, scale, w.loc, key=("scales", w)), loc=w.loc)


def levels_of_arithmetic(w: Node) -> Node | None:
    """`Dequantize` for (convert(q) - zero) * scale of constants with levels q of 4 or 8 bits; None for other nodes. The
    operations and their order are the same, and so are the results."""
    if isinstance(w.op, BIJECTIVE_VIEWS):
        levels = levels_of_arithmetic(w.inputs[0])
        return None if levels is None else w.op(levels, loc=w.loc)
    if isinstance(w.op, ops.Convert):
        (q,) = w.inputs
        if not (w.dtype.is_float and q.dtype.is_integer and q.dtype.bits in (4, 8) and is_constant(q)):
            return None
        return ops.Dequantize()(q, ops.scalar(0, q.dtype), ops.scalar(1.0, w.dtype), loc=w.loc)
    if not isinstance(w.op, ops.Mul | ops.Sub):
        return None
    # arithmetic in f16 and bf16 rounds after each operation, Dequantize only once
    levels, p = levels_of_arithmetic(w.inputs[0]), _small_constant(w.inputs[1])
    if levels is None or p is None or w.dtype != f32 or not isinstance(levels.op, ops.Dequantize):
        return None
    q, zero, scale = levels.inputs
    if splat_of(scale) != 1:
        return None
    if isinstance(w.op, ops.Mul):
        return levels.op(q, zero, p, loc=w.loc)
    return levels.op(q, p, scale, loc=w.loc) if splat_of(zero) == 0 else None


def _small_constant(p: Node) -> Node | None:
    """The constant `p`, or the smaller constant that broadcasts to it; None for other nodes."""
    dims = tuple(range(p.type.rank))
    source = p
    if isinstance(p.op, ops.BroadcastInDim):
        dims, (source,) = p.op.dims, p.inputs
    if not is_constant(source.inputs[0] if isinstance(source.op, ops.Convert) else source):
        return None
    sizes = dict(zip(dims, source.shape, strict=True))
    return const(value_of(source).reshape([int(sizes.get(d, 1)) for d in range(p.type.rank)]), loc=p.loc)


def is_product_of_levels(n: Node, floats: tuple[DType, ...]) -> bool:
    """Whether `n` is a product in the form that `product_of_levels` builds."""
    op = n.op
    if not isinstance(op, ops.DotGeneral) or any(op.batch) or not _is_of_levels(n.inputs[1], floats):
        return False
    w, axes = n.inputs[1], op.contract[1]
    if w.type.rank != len(axes) + 1 or w.type.size == 0:
        return False
    shapes = ((1,) * w.type.rank + p.shape for p in w.inputs[1:])
    return n.inputs[0].dtype == w.dtype and all(shape[axes[-1] - w.type.rank] == 1 for shape in shapes)


def _is_of_levels(w: Node, floats: tuple[DType, ...]) -> bool:
    """Whether `w` dequantizes constant levels of 4 or 8 bits by constant scales."""
    if not isinstance(w.op, ops.LEVEL_FORMS) or not w.dtype.is_float or w.dtype not in floats:
        return False
    q = w.inputs[0].dtype
    return q.is_integer and q.bits in (4, 8) and w.type.is_static and all(map(is_constant, w.inputs))


def _without_slice(w: Node, axis: int) -> Node:
    """The value of which `w` is a prefix along `axis`; `w` itself if it is not a prefix."""
    if isinstance(w.op, ops.Transpose):
        v = _without_slice(w.inputs[0], w.op.permutation[axis])
        return w if v is w.inputs[0] else w.op(v, loc=w.loc)
    if not isinstance(w.op, ops.Slice):
        return w
    (v,) = w.inputs
    starts_at_zero = all(s == 0 for s in w.op.start) and all(s == 1 for s in w.op.strides)
    return (
        v
        if starts_at_zero and all(a == b for d, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if d != axis)
        else w
    )


def _through_views(x: Node, shape: Shape) -> tuple[Node, Shape, Perm] | None:
    """(base, shape, permutation): `x` reshaped to `shape` as transpose(reshape(base, ...), ...), where base is the
    value below its views; or None."""
    if not isinstance(x.op, BIJECTIVE_VIEWS):
        return x, shape, tuple(range(len(shape)))
    (y,) = x.inputs
    if isinstance(x.op, ops.Reshape):
        return _through_views(y, shape)
    groups = reshape_groups(x.shape, shape)
    if groups is None or any(len(old) != 1 for old, _ in groups):
        return None
    order = [d for axis in inverse(x.op.permutation) for d in groups[axis][1]]
    source = _through_views(y, tuple(shape[d] for d in order))
    if source is None:
        return None
    base, base_shape, perm = source
    return base, base_shape, tuple(perm[order.index(d)] for d in range(len(shape)))


def _apply_views(w: Node, shape: Shape, perm: Perm, block_axis: int) -> Node | None:
    """transpose(reshape(w)) with the views applied to levels, zeros and scales; None if zeros or scales vary along
    `block_axis`."""
    q, *parameters = w.inputs
    layouts: list[Layout] = []
    for p in parameters:
        dims = tuple(range(q.type.rank - p.type.rank, q.type.rank))
        layout = Layout.contiguous(p.shape).broadcast(q.shape, dims).reshape(shape)
        if layout is None or layout.transpose(perm).strides[block_axis] != 0:
            return None
        layouts.append(layout.transpose(perm))
    levels = ops.transpose(ops.reshape(q, shape), perm)
    if isinstance(w.op, ops.Dequantize) and (least := _min_nibble(q)) is not None:
        levels = _as_nibbles(levels, least)
        parameters[0] = const(value_of(parameters[0]).astype(w.dtype.numpy) - w.dtype.numpy.type(least))
    return w.op(levels, *map(_strided_constant, parameters, layouts), loc=w.loc)


def _min_nibble(q: Node) -> int | None:
    """The smallest byte of `q` if its bytes span at most 16 levels, else None."""
    if q.dtype.bits != 8:
        return None
    value = value_of(q)
    smallest = int(value.min()) if value.size else 0
    return smallest if value.size and int(value.max()) - smallest < 16 else None


def _as_nibbles(levels: Node, least: int) -> Node:
    like = TensorType(u4, levels.shape)

    def compute() -> np.ndarray:
        return (value_of(levels) - least).astype(u4.numpy)

    return deferred_const(like, compute, levels.loc, key=("nibbles", levels, least))


def _strided_constant(p: Node, layout: Layout) -> Node:
    """The constant `p` in `layout`, with one element along repeated dimensions."""
    if p.type.size == 1:
        return ops.reshape(p, ())
    strides = static_shape(layout.strides)
    shape = tuple(d if s else 1 for d, s in zip(static_shape(layout.shape), strides, strict=True))
    dense = static_shape(Layout.contiguous(p.shape).strides)
    if shape == p.shape and all(s == t for d, s, t in zip(shape, strides, dense, strict=True) if d != 1):
        return p  # the same array, which other readers of this weight share

    def compute() -> np.ndarray:
        value = np.ascontiguousarray(value_of(p))
        return as_strided(value, shape, [s * value.itemsize for s in strides], writeable=False)

    return deferred_const(TensorType(p.dtype, shape), compute, p.loc, key=("strided", p, layout))


__all__ = ["as_dequantize", "is_product_of_levels", "levels_of_arithmetic", "product_of_levels"]
