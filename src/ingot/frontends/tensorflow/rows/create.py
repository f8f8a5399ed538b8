"""Constants, ranges, and ops that return their operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Result, Strings, Table, Value
from ingot.ir.dims import Dim, DimLike, dim_max, product
from ingot.ir.node import Node, const, splat_of
from ingot.ir.types import i64
from ingot.support.limits import max_run_time_size

row = Table()


@row("Const")
def constant(c: Call) -> Value:
    value = c.tensor("value")
    if value.dtype == object:
        return Strings(value)
    if value.dtype.kind == "c":
        return Complex(*(const(np.ascontiguousarray(v), loc=c.loc) for v in (np.real(value), np.imag(value))))
    return const(value, loc=c.loc)


@row("Placeholder", "PlaceholderV2")
def placeholder(c: Call) -> Value:
    raise Unsupported("an input that is not among inputs=")


@row("PlaceholderWithDefault")
def placeholder_with_default(c: Call, x: Node) -> Node:
    return x


_PASS_THROUGH_OPS = (
    "Identity", "Snapshot", "PreventGradient", "CheckNumerics", "CheckNumericsV2", "EnsureShape",
    "OptimizationBarrier", "DeepCopy",
)  # fmt: skip


@row(*_PASS_THROUGH_OPS, any_kind=True)
def identity(c: Call, x: Value) -> Value:
    return x


@row("StopGradient")
def stop_gradient(c: Call, x: Node) -> Node:
    return ops.StopGradient()(x)


@row("IdentityN", any_kind=True)
def identity_n(c: Call, *xs: Value) -> Result:
    return xs


@row("NoOp", "ControlTrigger")
def no_op(c: Call) -> Result:
    return ()


@row("Shape")
def shape(c: Call, x: Node) -> Node:
    return shape_node(c, x.shape)


@row("ShapeN")
def shape_n(c: Call, *xs: Node) -> Result:
    return [shape_node(c, x.shape) for x in xs]


def shape_node(c: Call, shape: tuple[DimLike, ...]) -> Node:
    dtype = c.dtype("out_type") if c.has("out_type") else None
    numpy = np.int32 if dtype is None else dtype.numpy
    if not any(isinstance(d, Dim) for d in shape):
        return const(np.asarray(shape, numpy))
    return ops.stack([ops.scalar(d, const(0, numpy).dtype) for d in shape])


@row("Size")
def size(c: Call, x: Node) -> Node:
    return ops.scalar(product(x.shape), c.dtype("out_type") if c.has("out_type") else const(np.int32(0)).dtype)


@row("Fill")
def fill(c: Call, dims: Node, value: Node) -> Node:
    return ops.broadcast_to(value, c.lengths(dims))


@row("ZerosLike", "OnesLike")
def likes(c: Call, x: Node) -> Node:
    return ops.full(x.shape, c.op == "OnesLike", x.dtype)


@row("Empty")
def empty(c: Call, dims: Node) -> Node:
    return ops.full(c.lengths(dims), 0, c.dtype("dtype"))


@row("Range")
def range_(c: Call, start: Node, limit: Node, delta: Node) -> Node:
    numbers = _numbers(c, (start, limit, delta))
    if numbers is not None:
        first, last, step = numbers
        if step == 0:
            raise Unsupported("a step of 0")
        return const(np.arange(first, last, step, dtype=start.dtype.numpy))
    integers = [_as_integer(n) for n in (start, limit, delta)]
    *ends, step = c.elements(ops.stack(integers))
    if isinstance(step, Node):
        raise Unsupported("a step that only the run knows")
    if any(isinstance(end, Node) for end in ends):
        return _range_of_computed_size(c, start, limit, step)
    first, last = (d for d in ends if not isinstance(d, Node))
    line = ops.arange(movement.range_length(first, last, step), start.dtype)
    return ops.add(line if step == 1 else ops.mul(line, step), start)


def _numbers(c: Call, ends: Sequence[Node]) -> list[float] | None:
    """The ends as plain numbers, or None if one is unknown."""
    try:
        elements = [d for n in ends for d in c.walk.sizes.elements(n).reshape(-1)]
    except Unsupported:
        return None
    return elements if all(isinstance(d, int | float) for d in elements) else None


def _as_integer(x: Node) -> Node:
    """An end of a range as an integer. Raises Unsupported for fractions."""
    if x.dtype.is_integer:
        return ops.cast(x, i64)
    if isinstance(x.op, ops.Convert) and x.inputs[0].dtype.is_integer:
        return ops.cast(x.inputs[0], i64)
    value = splat_of(x)
    if value is None or float(value) != int(value):
        raise Unsupported("a range of fractions whose length only the run knows")
    return ops.scalar(int(value), i64)


def _range_of_computed_size(c: Call, start: Node, limit: Node, step: DimLike) -> Node:
    """A range whose length is found at run time."""
    if not isinstance(step, int) or step == 0:
        raise Unsupported(f"a step of {step}")
    if not c.walk.may_find((start, limit)):
        raise Unsupported("a range of a length that only the run knows, in a loop or branch")
    first, last = ops.cast(start, i64), ops.cast(limit, i64)
    reach = ops.sub(last, first) if step > 0 else ops.sub(first, last)
    # rounded up; the span may be negative
    count = ops.div(ops.add(ops.maximum(reach, 0), abs(step) - 1), abs(step))
    line = ops.arange(c.walk.computed_sizes.size(count, max_run_time_size(), "range"), start.dtype)
    return ops.add(line if step == 1 else ops.mul(line, step), start)


@row("LinSpace")
def lin_space(c: Call, start: Node, stop: Node, num: Node) -> Node:
    (count,) = c.lengths(num)
    at = ops.arange(count, start.dtype)
    step = ops.div(ops.sub(stop, start), ops.scalar(dim_max(count - 1, 1), start.dtype))
    inner = ops.add(start, ops.mul(at, step))
    # the end is exact; of one element there is only the start
    return ops.where(ops.compare("EQ", ops.arange(count), dim_max(count - 1, 1)), stop, inner)


@row("OneHot")
def one_hot(c: Call, indices: Node, depth: Node, on: Node, off: Node) -> Node:
    axis = c.int("axis", -1)
    return movement.one_hot(ops.cast(indices, i64), c.size(depth), indices.type.rank if axis == -1 else axis, on, off)
