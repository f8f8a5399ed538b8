"""Sequences and optionals, which exist only at import, as lists of values."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, OpenSequence, Result, Sequence_, Value, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import ints_of, parts_of
from ingot.frontends.onnx.rows.flow.loops import UNROLL_NODES, index_of
from ingot.frontends.onnx.symbolic import Sym
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.node import Const, Node


def _position(c: Call, i: int, length: int, default: int) -> int:
    position = c.ints(i)[0] if c.has(i) else default
    if not -length <= position <= length:
        raise Unsupported(f"position {position} in a sequence of {length}")
    return position + length if position < 0 else position


@onnx_op("SequenceEmpty", since=11)
def sequence_empty(c: Call) -> Result:
    return Sequence_(())


@onnx_op("SequenceConstruct", since=11)
def sequence_construct(c: Call) -> Result:
    return Sequence_(tuple(c.value(i) for i in range(len(c))))


def _open(c: Call) -> OpenSequence | None:
    """The first operand, where it is a sequence of open length."""
    v = c.inputs[0] if c.inputs else None
    return v if isinstance(v, OpenSequence) else None


def _stacked(v: OpenSequence) -> Node:
    if v.axis is not None:
        raise Unsupported("a member of a sequence of members of different sizes")
    return v.node


@onnx_op("SequenceAt", since=11)
def sequence_at(c: Call) -> Result:
    v = _open(c)
    if v is not None:
        members, index = _stacked(v), ops.reshape(ops.cast(c.x(1), T.i64), ())
        return ops.Take(0)(members, ops.where(ops.compare("LT", index, 0), ops.add(index, _length(v)), index))
    items = c.sequence()
    position = _position(c, 1, len(items), 0)
    if position >= len(items):
        raise Unsupported(f"position {position} in a sequence of {len(items)}")
    return [items[position]]


def _length(v: OpenSequence) -> Node:
    return ops.scalar(_stacked(v).shape[0], T.i64)


@onnx_op("SequenceInsert", since=11)
def sequence_insert(c: Call) -> Result:
    v = _open(c)
    if v is not None:
        if c.has(2):
            raise Unsupported("an insertion that is not at the end of a sequence of open length")
        x = c.x(1) if v.axis is not None else ops.expand_dims(c.x(1), 0)
        return OpenSequence(ops.concat((v.node, x), v.axis or 0), v.axis)
    items = c.sequence()
    position = _position(c, 2, len(items), len(items))
    return Sequence_((*items[:position], c.value(1), *items[position:]))


@onnx_op("SequenceErase", since=11)
def sequence_erase(c: Call) -> Result:
    items = c.sequence()
    position = _position(c, 1, len(items), len(items) - 1)
    return Sequence_((*items[:position], *items[position + 1 :]))


@onnx_op("SequenceLength", since=11)
def sequence_length(c: Call) -> Result:
    if (v := _open(c)) is not None:
        return _length(v)
    return [index_of(len(c.sequence()))]


@onnx_op("ConcatFromSequence", since=11)
def concat_from_sequence(c: Call) -> Result:
    if (v := _open(c)) is not None:
        return _concatenated(v, c.int("axis"), c.flag("new_axis"))
    items = [v.node for v in c.sequence()]
    if c.flag("new_axis"):
        return ops.stack(items, c.int("axis"))
    return ops.concat(items, c.int("axis"))


def _concatenated(v: OpenSequence, axis: int, has_new_axis: bool) -> Node:
    rank = len(v.node.shape)
    if v.axis is not None:
        if has_new_axis or normal_axis(axis, rank) != v.axis:
            raise Unsupported("members of different sizes, joined along another axis than theirs")
        return v.node
    place = normal_axis(axis, rank if has_new_axis else rank - 1)
    order = [*range(1, rank)]
    order.insert(place, 0)
    x = ops.transpose(v.node, order)
    if has_new_axis:
        return x
    return ops.reshape(x, (*x.shape[:place], x.shape[place] * x.shape[place + 1], *x.shape[place + 2 :]))


def _are_ones(x: Node) -> bool:
    return (
        isinstance(x.op, ops.BroadcastInDim) and isinstance(op := x.inputs[0].op, Const) and bool((op.value == 1).all())
    )


@onnx_op("SplitToSequence", since=11)
def split_to_sequence(c: Call) -> Result:
    x = c.x()
    axis = c.axis("axis", 0, c.rank())
    if c.has(1) and c.rank(1) == 1 and not isinstance(c.shape(1)[0], int) and _are_ones(c.x(1)):
        order = (axis, *(a for a in range(c.rank()) if a != axis))
        return OpenSequence(ops.expand_dims(ops.transpose(x, order), axis + 1))
    if c.has(1) and c.rank(1) == 1:
        return Sequence_(tuple(map(Value, parts_of(c, x, axis, c.dims(1)))))
    (size,) = ints_of(x.shape[axis : axis + 1], "the split axis")
    if c.has(1):
        (part_size,) = c.ints(1)
        if part_size < 1:
            raise Unsupported(f"a split into parts of {part_size}: expected 1 or more")
        sizes = [min(part_size, size - k) for k in range(0, size, part_size)]
        return Sequence_(tuple(map(Value, ops.split(x, sizes, axis))))
    if size > UNROLL_NODES:
        raise Unsupported(f"a sequence of {size} parts")
    parts = ops.split(x, [1] * size, axis)
    keep = c.flag("keepdims", 1)
    return Sequence_(tuple(Value(p if keep else ops.squeeze(p, (axis,))) for p in parts))


@onnx_op("Optional", since=15)
def optional(c: Call) -> Result:
    value = c.inputs[0] if c.inputs else None
    # a present optional is its content
    return [Sequence_((), is_absent=True) if value is None else value]  # type: ignore[list-item]


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(c: Call) -> Result:
    value = c.inputs[0] if c.inputs else None
    is_present = value is not None and not (isinstance(value, Sequence_) and value.is_absent)
    return [Value(sym=Sym.of(T.boolean, np.array(is_present, dtype=object)))]


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(c: Call) -> Result:
    value = c.inputs[0]
    if value is None or (isinstance(value, Sequence_) and value.is_absent):
        raise Unsupported("an optional that holds nothing")
    return [value]  # type: ignore[list-item]
