"""Lists of tensors, the arrays of the frameworks' loops. All elements of a list have one shape, and are in one buffer.

TensorListReserve(n)  ->  no node              TensorListSetItem  ->  dynamic_update_slice of [n, *shape]
"""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Result, Table, TensorList, Value, expect
from ingot.ir.dims import DimLike, dim_max, exact_quotient
from ingot.ir.node import Node
from ingot.ir.types import i32, i64

row = Table()


@row("TensorListReserve")
def reserve(c: Call, shape: Node, count: Node) -> Value:
    return TensorList(c.dtype("element_dtype"), c.size(count))


@row("EmptyTensorList")
def empty(c: Call, shape: Node, max_length: Node) -> Value:
    return TensorList(c.dtype("element_dtype"), 0)


@row("TensorListFromTensor")
def from_tensor(c: Call, x: Node, shape: Node) -> Value:
    return TensorList(x.dtype, x.shape[0], x)


@row("TensorListStack", any_kind=True)
def stack(c: Call, handle: Value, shape: Node) -> Node:
    return _buffer(c, _list(handle), shape)


def _list(value: Value) -> TensorList:
    return expect(value, TensorList, "list of tensors")


def _buffer(c: Call, items: TensorList, shape: Node) -> Node:
    """The elements of a list, zeros where none was set."""
    if items.buffer is not None:
        return items.buffer
    sizes = c.sizes(shape)
    if any(d == -1 for d in sizes):
        raise Unsupported("a list that nothing was put into")
    return ops.full((items.length, *sizes), 0, items.dtype)


@row("TensorListSetItem", any_kind=True)
def set_item(c: Call, handle: Value, index: Value, value: Value) -> Value:
    items, at, x = _list(handle), expect(index, Node, "tensor"), expect(value, Node, "tensor")
    length, buffer = items.length, items.buffer
    if (at, items) in c.walk.appends:
        length += 1
    elif c.flag("resize_if_index_out_of_bounds"):
        bound = c.walk.upper_bounds.get(at)
        length = dim_max(length, c.size(at) + 1 if bound is None else bound)
    if buffer is None:
        buffer = ops.full((length, *x.shape), 0, items.dtype)
    elif length != items.length:
        buffer = resized(buffer, length)
    if x.shape != buffer.shape[1:]:
        raise Unsupported(f"a list of {buffer.type.with_shape(buffer.shape[1:])} and {x.type}")
    if length == 0:
        return TensorList(items.dtype, length, buffer)
    starts = [ops.cast(at, i64), *(ops.scalar(0, i64) for _ in x.shape)]
    return TensorList(items.dtype, length, ops.DynamicUpdateSlice()(buffer, ops.expand_dims(x, 0), *starts))


@row("TensorListGetItem", any_kind=True)
def get_item(c: Call, handle: Value, index: Value, shape: Node) -> Node:
    return _elements_at(_buffer(c, _list(handle), shape), expect(index, Node, "tensor"))


def _elements_at(buffer: Node, indices: Node) -> Node:
    """Elements of a list; zeros where it is empty, as for a loop without iterations."""
    if buffer.shape[0] == 0:
        return ops.full((*indices.shape, *buffer.shape[1:]), 0, buffer.dtype)
    return ops.Take(0)(buffer, indices)


@row("TensorListLength", any_kind=True)
def length(c: Call, handle: Value) -> Node:
    return ops.scalar(_list(handle).length, i32)


@row("TensorListElementShape", any_kind=True)
def element_shape(c: Call, handle: Value) -> Node:
    items = _list(handle)
    if items.buffer is None:
        raise Unsupported("of a list that nothing was put into")
    return ops.stack([ops.scalar(d, c.dtype("shape_type")) for d in items.buffer.shape[1:]])


@row("TensorListPushBack", any_kind=True)
def push_back(c: Call, handle: Value, value: Value) -> Value:
    items, x = _list(handle), ops.expand_dims(expect(value, Node, "tensor"), 0)
    buffer = x if items.buffer is None else ops.concat([items.buffer, x])
    return TensorList(items.dtype, items.length + 1, buffer)


@row("TensorListPopBack", results=("output_handle", "tensor"), any_kind=True)
def pop_back(c: Call, handle: Value, shape: Node) -> Result:
    items = _list(handle)
    last = items.length - 1
    if items.buffer is None or last == -1:
        raise Unsupported("from an empty list")
    rest = TensorList(items.dtype, last, ops.slice_axis(items.buffer, 0, 0, last))
    return [rest, ops.index_axis(items.buffer, 0, last)]


@row("TensorListResize", any_kind=True)
def resize(c: Call, handle: Value, size: Node) -> Value:
    items, count = _list(handle), c.size(size)
    return TensorList(items.dtype, count, None if items.buffer is None else resized(items.buffer, count))


def resized(buffer: Node, count: DimLike) -> Node:
    """`buffer` extended by zeros, or truncated, to `count` elements."""
    zeros = (0,) * (buffer.type.rank - 1)
    return ops.pad(buffer, (0, *zeros), (count - buffer.shape[0], *zeros))


@row("TensorListGather", any_kind=True)
def gather(c: Call, handle: Value, indices: Node, shape: Node) -> Node:
    return _elements_at(_buffer(c, _list(handle), shape), indices)


@row("TensorListScatter", "TensorListScatterV2")
def scatter(c: Call, x: Node, indices: Node, shape: Node, *count: Node) -> Value:
    """A list of `count` elements or, for -1, of as many as the indices need."""
    count_wanted = c.size(count[0]) if count else -1
    if count_wanted == -1:
        count_wanted = 1 + max(c.numbers(indices), default=-1)
    zeros = ops.full((count_wanted, *x.shape[1:]), 0, x.dtype)
    places = ops.expand_dims(ops.cast(indices, i64), -1)
    return TensorList(x.dtype, count_wanted, ops.ScatterND("none")(zeros, places, x))


@row("TensorListScatterIntoExistingList", any_kind=True)
def scatter_into(c: Call, handle: Value, x: Value, indices: Value) -> Value:
    items, values = _list(handle), expect(x, Node, "tensor")
    zeros = ops.full((items.length, *values.shape[1:]), 0, items.dtype) if items.buffer is None else items.buffer
    places = ops.expand_dims(ops.cast(expect(indices, Node, "tensor"), i64), -1)
    return TensorList(items.dtype, items.length, ops.ScatterND("none")(zeros, places, values))


@row("TensorListConcat", "TensorListConcatV2", results=("tensor", "lengths"), any_kind=True)
def concat(c: Call, handle: Value, *rest: Value) -> Result:
    items = _list(handle)
    if items.buffer is None or items.buffer.type.rank < 2:
        raise Unsupported("of a list that nothing was put into")
    count, size, *tail = items.buffer.shape
    return [ops.reshape(items.buffer, (count * size, *tail)), ops.full((count,), size, i64)]


@row("TensorListSplit")
def split(c: Call, x: Node, shape: Node, lengths: Node) -> Value:
    """Split into parts of one length."""
    sizes = c.sizes(lengths)
    if not sizes or any(s != sizes[0] for s in sizes):
        raise Unsupported("into parts of different lengths")
    if exact_quotient(x.shape[0], sizes[0]) != len(sizes):
        raise Unsupported(f"of {x.shape[0]} into {len(sizes)} parts of {sizes[0]}")
    buffer_shape: tuple[DimLike, ...] = (len(sizes), sizes[0], *x.shape[1:])
    return TensorList(x.dtype, len(sizes), ops.reshape(x, buffer_shape))


# TensorArrays: the flow value is the list, and the handle is not used


@row("TensorArrayV3", results=("handle", "flow"))
def tensor_array(c: Call, size: Node) -> Result:
    items = TensorList(c.dtype("dtype"), c.size(size))
    return [items, items]


@row("TensorArrayWriteV3", any_kind=True)
def array_write(c: Call, handle: Value, index: Value, value: Value, flow: Value) -> Value:
    return set_item(c, flow, index, value)


def _stacked(flow: Value) -> Node:
    items = _list(flow)
    if items.buffer is None:
        raise Unsupported("a list that nothing was put into")
    return items.buffer


@row("TensorArrayReadV3", "TensorArrayGatherV3", any_kind=True)
def array_read(c: Call, handle: Value, index: Value, flow: Value) -> Node:
    return _elements_at(_stacked(flow), expect(index, Node, "tensor"))


@row("TensorArrayScatterV3", any_kind=True)
def array_scatter(c: Call, handle: Value, indices: Value, x: Value, flow: Value) -> Value:
    return scatter_into(c, flow, x, indices)


@row("TensorArraySizeV3", any_kind=True)
def array_size(c: Call, handle: Value, flow: Value) -> Node:
    return ops.scalar(_list(flow).length, i32)


@row("TensorArrayConcatV3", results=("value", "lengths"), any_kind=True)
def array_concat(c: Call, handle: Value, flow: Value) -> Result:
    return concat(c, flow)
