"""Movement of elements: views, slices, padding, gathers, and their variants with computed sizes."""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import require_equal
from ingot.frontends.stablehlo.types import Tensor
from ingot.frontends.stablehlo.values import AnyValue, Call, Table, parts
from ingot.ir import types as T
from ingot.ir.dims import DimLike, is_static, product
from ingot.ir.node import Node
from ingot.ir.types import Shape, TensorType

row = Table()


def declared(type: Tensor, sizes: Sequence[DimLike]) -> Shape:
    """Computed sizes, where the type leaves them open."""
    if len(sizes) != len(type.shape):
        raise Unsupported(f"{len(sizes)} sizes for a result of rank {len(type.shape)}")
    return tuple(s if d is None else d for s, d in zip(sizes, type.shape, strict=True))


def static(c: Call) -> Shape:
    """The result's shape as it is written."""
    if None in c.type.shape:
        raise Unsupported("a result whose size is not written")
    return tuple(d or 0 for d in c.type.shape)


@row("broadcast_in_dim")
def broadcast_in_dim(c: Call, x: Node) -> Node:
    shape, dims = static(c), c.ints("broadcast_dimensions")
    if shape == x.shape and dims == tuple(range(len(shape))):
        return x  # so that constants stay constants
    return ops.BroadcastInDim(shape, dims)(x, loc=c.loc)


@row("broadcast")
def broadcast(c: Call, x: Node) -> Node:
    return ops.broadcast_to(x, (*c.ints("broadcast_sizes"), *x.shape), c.loc)


@row("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(c: Call, x: Node, sizes: Node) -> Node:
    shape, dims = declared(c.type, c.sizes(sizes)), c.ints("broadcast_dimensions")
    for size, d in zip(x.shape, dims, strict=True):
        if size != 1:
            require_equal((shape[d],), (size,), c.op.name)
    return ops.BroadcastInDim(shape, dims)(x, loc=c.loc)


@row("reshape")
def reshape(c: Call, x: Node) -> Node:
    return ops.reshape(x, static(c), c.loc)


@row("dynamic_reshape")
def dynamic_reshape(c: Call, x: Node, sizes: Node) -> Node:
    shape = declared(c.type, c.sizes(sizes))
    require_equal((x.type.size,), (product(shape),), c.op.name)
    return ops.reshape(x, shape, c.loc)


@row("transpose")
def transpose(c: Call, x: Node) -> Node:
    return ops.transpose(x, c.ints("permutation"), c.loc)


@row("reverse")
def reverse(c: Call, x: Node) -> Node:
    return ops.Reverse(c.ints("dimensions"))(x, loc=c.loc)


@row("concatenate")
def concatenate(c: Call, *xs: Node) -> Node:
    axis = c.axis("dimension", xs[0].type.rank)
    for x in xs[1:]:
        first, other = ([d for i, d in enumerate(v.shape) if i != axis] for v in (xs[0], x))
        require_equal(first, other, c.op.name)
    return ops.concat(xs, axis, c.loc)


@row("slice")
def slice_(c: Call, x: Node) -> Node:
    return ops.Slice(c.ints("start_indices"), c.ints("limit_indices"), c.ints("strides"))(x, loc=c.loc)


@row("real_dynamic_slice")
def real_dynamic_slice(c: Call, x: Node, start: Node, limit: Node, strides: Node) -> Node:
    steps = c.sizes(strides)
    if not is_static(steps):
        raise Unsupported("strides that only the run knows")
    try:
        first, last = c.sizes(start), c.sizes(limit)
    except Unsupported:
        # a moving window: its limit is its start plus its sizes
        is_moving_window = isinstance(limit.op, ops.Add) and start in limit.inputs
        if any(s != 1 for s in steps) or (None in c.type.shape and not is_moving_window):
            raise
        added = next((n for n in limit.inputs if n is not start), start)
        sizes = static(c) if None not in c.type.shape else declared(c.type, c.sizes(added))
        starts = [ops.index_axis(start, 0, i) for i in range(x.type.rank)]
        return ops.DynamicSlice(sizes)(x, *starts, loc=c.loc)
    return ops.Slice(first, last, tuple(s for s in steps if isinstance(s, int)))(x, loc=c.loc)


@row("dynamic_slice")
def dynamic_slice(c: Call, x: Node, *starts: Node) -> Node:
    return ops.DynamicSlice(c.ints("slice_sizes"))(x, *starts, loc=c.loc)


@row("dynamic_update_slice")
def dynamic_update_slice(c: Call, x: Node, update: Node, *starts: Node) -> Node:
    return ops.DynamicUpdateSlice()(x, update, *starts, loc=c.loc)


@row("pad")
def pad(c: Call, x: Node, value: Node) -> Node:
    low, high, interior = (c.ints(n) for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return ops.Pad(low, high, interior)(x, value, loc=c.loc)


@row("dynamic_pad")
def dynamic_pad(c: Call, x: Node, value: Node, low: Node, high: Node, interior: Node) -> Node:
    interior_sizes = c.sizes(interior)
    if not is_static(interior_sizes):
        raise Unsupported("interior padding that only the run knows")
    return ops.Pad(c.sizes(low), c.sizes(high), tuple(i for i in interior_sizes if isinstance(i, int)))(
        x, value, loc=c.loc
    )


@row("iota")
def iota(c: Call) -> AnyValue:
    return _iota(c, static(c))


@row("dynamic_iota")
def dynamic_iota(c: Call, sizes: Node) -> AnyValue:
    return _iota(c, declared(c.type, c.sizes(sizes)))


def _iota(c: Call, shape: Shape) -> AnyValue:
    x = ops.Iota(TensorType(c.dtype, shape), c.int("iota_dimension"))(loc=c.loc)
    return Complex(x, ops.full(shape, 0, c.dtype)) if c.type.complex else x


def _gather(c: Call, sizes: Shape, x: Node, indices: Node) -> Node:
    d = c.fields("dimension_numbers")
    return ops.Gather(
        d.ints("offset_dims", ()), d.ints("collapsed_slice_dims", ()), d.ints("operand_batching_dims", ()),
        d.ints("start_indices_batching_dims", ()), d.ints("start_index_map", ()), d.int("index_vector_dim", 0), sizes,
    )(x, indices, loc=c.loc)  # fmt: skip


@row("gather")
def gather(c: Call, x: Node, indices: Node) -> Node:
    return _gather(c, c.ints("slice_sizes"), x, indices)


@row("dynamic_gather")
def dynamic_gather(c: Call, x: Node, indices: Node, sizes: Node) -> Node:
    return _gather(c, c.sizes(sizes), x, indices)


@row("torch_index_select")
def torch_index_select(c: Call, x: Node, index: Node) -> Node:
    """batch_dims leading dimensions of both go together."""
    dim, batch = c.axis("dim", x.type.rank), c.int("batch_dims", 0)
    if not 0 <= batch <= min(dim, index.type.rank):
        raise Unsupported(f"{batch} batch dimensions before dimension {dim}")
    batch_axes = tuple(range(batch))
    kept_axes = tuple(d for d in range(x.type.rank) if d not in (*batch_axes, dim))
    offsets = tuple(d if d < dim else d + index.type.rank - batch - 1 for d in kept_axes)
    sizes = tuple(1 if d == dim or d in batch_axes else n for d, n in enumerate(x.shape))
    op = ops.Gather(offsets, (dim,), batch_axes, batch_axes, (dim,), index.type.rank, sizes)
    return op(x, index, loc=c.loc)


# --- sizes


@row("get_dimension_size")
def get_dimension_size(c: Call, x: AnyValue) -> Node:
    node = parts(x)[0]
    size = node.shape[c.axis("dimension", node.type.rank)]
    return ops.scalar(size, c.dtype)


@row("set_dimension_size")
def set_dimension_size(c: Call, x: Node, size: Node) -> Node:
    """The first `size` elements along a dimension."""
    dim = c.axis("dimension", x.type.rank)
    (limit,) = c.sizes(size)
    return ops.slice_axis(x, dim, 0, limit, 1, c.loc)


@row("tensor.dim")
def tensor_dim(c: Call, x: AnyValue, index: Node) -> Node:
    (at,), shape = c.sizes(index), parts(x)[0].shape
    if not isinstance(at, int) or not 0 <= at < len(shape):
        raise Unsupported(f"dimension {at} of {len(shape)}")
    return ops.scalar(shape[at], T.i64)


# --- tuples


@row("tuple")
def tuple_(c: Call, *xs: AnyValue) -> AnyValue:
    return (xs,)


@row("get_tuple_element")
def get_tuple_element(c: Call, xs: object) -> AnyValue:
    assert isinstance(xs, tuple)
    return xs[c.axis("index", len(xs))]
