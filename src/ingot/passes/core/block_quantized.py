"""Weights as levels of few bits, kept as they are in front of the products that read them.

    dot(x[m, k], reshape[n, k]((q[n, k / b, b] - zero[n, k / b, 1]) * scale[n, k / b, 1]))
    ->  dot(reshape[m, k / b, b](x), dequantize(q, zero, scale))       contracted over blocks and places within

The schedule stores q in its 4 or 8 bits and widens it where it is multiplied. Views between the two go to the
constants, in whatever order a model writes them; what a last block has beyond k meets zeros. Levels that are written as
arithmetic are seen as well (`told_as_levels`), and bytes of which 4 bits are used are stored in these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot import ops
from ingot.ir.layout import Layout, reshape_groups
from ingot.ir.node import Node, const, deferred, splat_of
from ingot.ir.types import DType, Shape, TensorType, f32, static_shape, u4
from ingot.ops.core.base import inverse
from ingot.ops.views import WHOLE_VIEWS, base_of
from ingot.passes.constants import is_constant, value_of

LEAST = 8  # levels of a block: with fewer, scales take more than they save
Perm = tuple[int, ...]


def in_levels(n: Node, floats: tuple[DType, ...]) -> Node | None:
    """The product `n` whose second operand is a constant of levels (see module); None where it is not. floats: what
    these may stand for."""
    op = n.op
    if not isinstance(op, ops.DotGeneral) or any(op.batch) or len(op.contract[0]) != 1:
        return None
    ((at,), (bt,)), (x, w) = op.contract, n.inputs
    whole = _beyond(w, bt)
    base = base_of(whole, WHOLE_VIEWS)
    if whole.type.rank != 2 or not _is_of_levels(base, floats) or x.dtype != base.dtype:
        return None
    size, k = static_shape((whole.shape[bt], w.shape[bt]))
    sizes = {size, *(d for d in static_shape(base.inputs[0].shape) if d and size % d == 0)}
    for block in sorted((d for d in sizes if d >= LEAST), reverse=True):
        blocks = (size // block, block) if block != size else (size,)
        found = _under(whole, (*whole.shape[:bt], *blocks, *whole.shape[bt + 1 :]))
        levels = None if found is None else _moved(*found, within=bt + len(blocks) - 1)
        if levels is None:
            continue
        x = ops.pad(x, (0,) * x.type.rank, tuple(size - k if d == at else 0 for d in range(x.type.rank)))
        x = ops.reshape(x, (*x.shape[:at], *blocks, *x.shape[at + 1 :]))
        sides = tuple(range(at, at + len(blocks))), tuple(range(bt, bt + len(blocks)))
        return replace(op, contract=sides)(x, levels, loc=n.loc)
    return None


def told_as_levels(w: Node) -> Node | None:
    """(convert(q) - zero) * scale of constants, the levels q of 4 or 8 bits, as `Dequantize` has it; None for what is
    none. The same operations in the same order, so the same numbers."""
    if isinstance(w.op, WHOLE_VIEWS):
        under = told_as_levels(w.inputs[0])
        return None if under is None else w.op(under, loc=w.loc)
    if isinstance(w.op, ops.Convert):
        (q,) = w.inputs
        if not (w.dtype.is_float and q.dtype.is_integer and q.dtype.bits in (4, 8) and is_constant(q)):
            return None
        return ops.Dequantize()(q, ops.scalar(0, q.dtype), ops.scalar(1.0, w.dtype), loc=w.loc)
    if not isinstance(w.op, ops.Mul | ops.Sub):
        return None
    # those of f16 and bf16 round behind each operation, where Dequantize rounds once
    under, p = told_as_levels(w.inputs[0]), _small(w.inputs[1])
    if under is None or p is None or w.dtype != f32 or not isinstance(under.op, ops.Dequantize):
        return None
    q, zero, scale = under.inputs
    if splat_of(scale) != 1:
        return None
    if isinstance(w.op, ops.Mul):
        return under.op(q, zero, p, loc=w.loc)
    return under.op(q, p, scale, loc=w.loc) if splat_of(zero) == 0 else None


def _small(p: Node) -> Node | None:
    """The constant `p`, or what of a constant broadcasts to it; None for what is none."""
    kept = tuple(range(p.type.rank))
    under = p
    if isinstance(p.op, ops.BroadcastInDim):
        kept, (under,) = p.op.dims, p.inputs
    if not is_constant(under.inputs[0] if isinstance(under.op, ops.Convert) else under):
        return None
    sizes = dict(zip(kept, under.shape, strict=True))
    return const(value_of(under).reshape([int(sizes.get(d, 1)) for d in range(p.type.rank)]), loc=p.loc)


def holds_levels(n: Node, floats: tuple[DType, ...]) -> bool:
    """Whether the product `n` is as `in_levels` makes them."""
    op = n.op
    if not isinstance(op, ops.DotGeneral) or any(op.batch) or not _is_of_levels(n.inputs[1], floats):
        return False
    w, axes = n.inputs[1], op.contract[1]
    if len(axes) not in (1, 2) or w.type.rank != len(axes) + 1 or w.type.size == 0:
        return False
    shapes = ((1,) * w.type.rank + p.shape for p in w.inputs[1:])
    return n.inputs[0].dtype == w.dtype and all(shape[axes[-1] - w.type.rank] == 1 for shape in shapes)


def _is_of_levels(w: Node, floats: tuple[DType, ...]) -> bool:
    """Whether `w` is what constant levels of 4 or 8 bits stand for, by constant scales."""
    if not isinstance(w.op, ops.Dequantize) or len(w.inputs) != 3 or w.dtype not in floats:
        return False
    q = w.inputs[0].dtype
    return q.is_integer and q.bits in (4, 8) and w.type.is_static and all(map(is_constant, w.inputs))


def _beyond(w: Node, at: int) -> Node:
    """What `w` is the first part of along `at`."""
    if isinstance(w.op, ops.Transpose):
        v = _beyond(w.inputs[0], w.op.permutation[at])
        return w if v is w.inputs[0] else w.op(v, loc=w.loc)
    if not isinstance(w.op, ops.Slice):
        return w
    (v,) = w.inputs
    first = all(s == 0 for s in w.op.start) and all(s == 1 for s in w.op.strides)
    return v if first and all(a == b for d, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if d != at) else w


def _under(x: Node, shape: Shape) -> tuple[Node, Shape, Perm] | None:
    """`x` under `shape` as transpose(reshape(base, ...), ...) of the value under its views."""
    if not isinstance(x.op, WHOLE_VIEWS):
        return x, shape, tuple(range(len(shape)))
    (y,) = x.inputs
    if isinstance(x.op, ops.Reshape):
        return _under(y, shape)
    groups = reshape_groups(x.shape, shape)
    if groups is None or any(len(old) != 1 for old, _ in groups):
        return None
    order = [d for own in inverse(x.op.permutation) for d in groups[own][1]]
    found = _under(y, tuple(shape[d] for d in order))
    if found is None:
        return None
    base, under, perm = found
    return base, under, tuple(perm[order.index(d)] for d in range(len(shape)))


def _moved(w: Node, shape: Shape, perm: Perm, within: int) -> Node | None:
    """transpose(reshape(w)) as the levels, zeros and scales so moved; None where these differ along `within`."""
    q, *parameters = w.inputs
    layouts: list[Layout] = []
    for p in parameters:
        dims = tuple(range(q.type.rank - p.type.rank, q.type.rank))
        layout = Layout.contiguous(p.shape).broadcast(q.shape, dims).reshape(shape)
        if layout is None or layout.transpose(perm).strides[within] != 0:
            return None
        layouts.append(layout.transpose(perm))
    levels = ops.transpose(ops.reshape(q, shape), perm)
    if (least := _least_of_nibbles(q)) is not None:
        levels = _nibbles(levels, least)
        parameters[0] = const(value_of(parameters[0]).astype(w.dtype.numpy) - w.dtype.numpy.type(least))
    return w.op(levels, *map(_spread, parameters, layouts), loc=w.loc)


def _least_of_nibbles(q: Node) -> int | None:
    """The least of bytes that lie within 16 levels."""
    if q.dtype.bits != 8:
        return None
    value = value_of(q)
    least = int(value.min()) if value.size else 0
    return least if value.size and int(value.max()) - least < 16 else None


def _nibbles(levels: Node, least: int) -> Node:
    like = TensorType(u4, levels.shape)
    return deferred(like, lambda: (value_of(levels) - least).astype(u4.numpy), levels.loc)


def _spread(p: Node, layout: Layout) -> Node:
    """The constant `p` at `layout`, with one element along what it repeats."""
    if p.type.size == 1:
        return ops.reshape(p, ())
    strides = static_shape(layout.strides)
    shape = tuple(d if s else 1 for d, s in zip(static_shape(layout.shape), strides, strict=True))

    def make() -> np.ndarray:
        value = np.ascontiguousarray(value_of(p))
        return as_strided(value, shape, [s * value.itemsize for s in strides], writeable=False)

    return deferred(TensorType(p.dtype, shape), make, p.loc)


__all__ = ["holds_levels", "in_levels", "told_as_levels"]
