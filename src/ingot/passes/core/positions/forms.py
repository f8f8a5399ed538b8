"""The affine form of an integer value, op by op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot import ops
from ingot.ir.dims import MAX_SIZE, DimLike
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Node, splat_of
from ingot.ir.types import DType, boolean
from ingot.ops.core.shape import View
from ingot.passes.core.positions.affine import Affine, IntegerAnalysis

# larger constants are not tested for being affine
MAX_COUNTER_ELEMENTS = 1 << 16


def normal(form: Affine, n: Node) -> Affine:
    """The form with step 0 along axes of size 1, so that equal values have equal forms."""
    return Affine(form.constant, tuple(0 if d == 1 else s for s, d in zip(form.steps, n.shape, strict=True)))


def may_be_positions(dtype: DType) -> bool:
    """Whether values of the type may be positions."""
    return dtype.kind == "i" and dtype.bits >= 32


def fits_in(ends: tuple[DimLike | None, ...], dtype: DType) -> bool:
    """Whether values in the range `ends` cannot have wrapped. Symbolic ends are small relative to types of
    positions."""
    low, high = dtype.range
    return all(low <= end <= high for end in ends if isinstance(end, int))


def _const_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    assert n.constant is not None
    if not 0 < n.constant.size <= MAX_COUNTER_ELEMENTS:
        return None
    value = n.constant.value
    if max(abs(int(value.min())), abs(int(value.max()))) > MAX_SIZE:
        return None
    start = int(value.reshape(-1)[0])
    corner = (0,) * value.ndim
    steps = []
    for d in range(value.ndim):
        neighbor = (*corner[:d], 1, *corner[d + 1 :])
        steps.append(int(value[neighbor]) - start if value.shape[d] > 1 else 0)
    affine = np.full(value.shape, start, np.int64)
    for d, s in enumerate(steps):
        affine += (np.arange(value.shape[d]) * s).reshape((-1, *(1,) * (value.ndim - 1 - d)))
    return Affine(start, tuple(steps)) if np.array_equal(affine, value) else None


def _iota_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, ops.Iota)
    return Affine(0, tuple(int(d == n.op.dimension) for d in range(n.type.rank)))


def _dim_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, ops.DimValue)
    return Affine(n.op.dim, ())


def _view_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    assert isinstance(n.op, View)
    (x,) = n.inputs
    form = p.form(x, depth)
    if form is None:
        return None
    layout = Layout(x.shape, form.steps, form.constant).view(n.shape, n.op.index_map(x.shape, n.shape))
    return None if layout is None else Affine(layout.offset, layout.strides)


def _convert_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    (x,) = n.inputs
    filled = splat_of(x) if x.dtype == boolean else None
    if filled is not None:
        return Affine(int(filled), (0,) * n.type.rank)
    if not x.dtype.is_integer or n.dtype.bits < x.dtype.bits or n.dtype.kind != x.dtype.kind:
        return None
    return p.form(x, depth)


def _sum_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    a, b = (p.form(i, depth) for i in n.inputs)
    if a is None or b is None:
        return None
    sign = -1 if isinstance(n.op, ops.Sub) else 1
    return Affine(a.constant + b.constant * sign, tuple(s + t * sign for s, t in zip(a.steps, b.steps, strict=True)))


def _product_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    a, b = (p.form(i, depth) for i in n.inputs)
    if a is None or b is None or not (a.is_constant or b.is_constant):
        return None
    x, c = (a, b) if b.is_constant else (b, a)
    return Affine(x.constant * c.constant, tuple(s * c.constant for s in x.steps))


def _concat_form(p: IntegerAnalysis, n: Node, depth: int) -> Affine | None:
    """The form of a concat of which each part continues the previous one."""
    assert isinstance(n.op, ops.Concat)
    axis = n.op.dimension
    whole_form: Affine | None = None
    start: DimLike = 0
    for x in n.inputs:
        form = p.form(x, depth)
        if form is None:
            return None
        if whole_form is not None:
            steps = form.steps if x.shape[axis] != 1 else _with_step(form.steps, axis, whole_form.steps[axis])
            expected = whole_form.constant + whole_form.steps[axis] * start
            if steps != whole_form.steps or form.constant != expected:
                return None
        else:
            whole_form = form if x.shape[axis] != 1 else _continued(p, n, form, axis, depth)
        start = start + x.shape[axis]
    return whole_form


def _continued(p: IntegerAnalysis, n: Node, first: Affine, axis: int, depth: int) -> Affine:
    """The form of the first part of a concat, of size 1: its step is the difference to the next part."""
    if len(n.inputs) < 2:
        return first
    second = p.form(n.inputs[1], depth)
    step: DimLike = 0 if second is None else second.constant - first.constant
    return Affine(first.constant, _with_step(first.steps, axis, step))


def _with_step(steps: tuple[DimLike, ...], axis: int, step: DimLike) -> tuple[DimLike, ...]:
    return (*steps[:axis], step, *steps[axis + 1 :])


FORMS: dict[type, Callable[[IntegerAnalysis, Node, int], Affine | None]] = {
    Const: _const_form,
    ops.Iota: _iota_form,
    ops.DimValue: _dim_form,
    ops.BroadcastInDim: _view_form,
    ops.Reshape: _view_form,
    ops.Transpose: _view_form,
    ops.Slice: _view_form,
    ops.Convert: _convert_form,
    ops.Add: _sum_form,
    ops.Sub: _sum_form,
    ops.Mul: _product_form,
    ops.Concat: _concat_form,
}
