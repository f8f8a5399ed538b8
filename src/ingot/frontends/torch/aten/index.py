"""Gathers and scatters by computed indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.division import floor_div
from ingot.frontends.torch.aten.elementwise import add, compare, select
from ingot.frontends.torch.aten.selection import indices_of
from ingot.frontends.torch.aten.shape import clipped, reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    axis_of,
    boolean,
    broadcast_shape,
    cast,
    expand,
    i64,
    node_of,
    scalar_like,
    with_size,
)
from ingot.ir.dims import Dim, DimLike, is_computed, symbols_of
from ingot.ir.node import Node, const
from ingot.support.errors import ShapeError

aten = Table()

Indices = Sequence[Node | None]


@aten("embedding.default")
def embedding(
    c: Context, weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:  # fmt: skip
    rows = ops.Take(0)(weight, indices)
    if not rows.dtype.is_float:
        return rows
    if scale_grad_by_freq:
        rows = learning_by_frequency(rows, indices, weight.shape[0])
    if padding_idx < 0:
        return rows
    # the padding row gets no gradient from these reads
    padding = ops.expand_dims(compare("EQ", indices, scalar_like(padding_idx, indices)), indices.type.rank)
    return select(padding, ops.StopGradient()(rows), rows)


def learning_by_frequency(rows: Node, indices: Node, count: DimLike) -> Node:
    """Rows of a table of `count` rows, whose gradients are divided by the number of occurrences of their index."""
    flat = cast(reshape(indices, (indices.type.size,)), i64)
    table = write_rows(filled((count,), 0, i64), 0, flat, filled(flat.shape, 1, i64), "add")
    frequencies = cast(ops.Take(0)(table, indices), rows.dtype)
    cotangent = ops.Cotangent()(rows)
    share = ops.Div()(cotangent, expand(ops.expand_dims(frequencies, indices.type.rank), rows.shape))
    return ops.CustomGradient(1)(rows, cotangent, rows, share)


@aten("index_select.default")
def index_select(c: Context, x: Node, dim: int, index: Node) -> Node:
    if not x.type.rank:
        return x
    if not index.type.rank:
        index = reshape(index, (1,))
    return ops.Take(axis_of(dim, x.type.rank))(x, index)


@aten("take.default")
def take(c: Context, x: Node, index: Node) -> Node:
    return ops.Take(0)(reshape(x, (x.type.size,)), index)


@aten("gather.default")
def gather(c: Context, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if index.type.size == 0:  # of any rank
        return filled(c.shape, 0, x.dtype)
    if not x.type.rank or not index.type.rank:
        flat = reshape(index, (index.type.size,))
        return reshape(ops.Take(0)(reshape(x, (x.type.size,)), flat), c.shape)
    axis = axis_of(dim, x.type.rank)
    return ops.GatherElements(axis)(_cropped(x, index.shape, axis), index)


def _cropped(x: Node, shape: Sequence[DimLike], axis: int | None) -> Node:
    """The leading part of `x` of that shape; `axis` is not cropped."""
    for i, size in enumerate(shape):
        if i != axis:
            x = cut(x, i, 0, size)
    return x


@aten("take_along_dim.default")
def take_along_dim(c: Context, x: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return ops.GatherElements(0)(reshape(x, (x.type.size,)), reshape(indices, (indices.type.size,)))
    axis = axis_of(dim, x.type.rank)
    shape = broadcast_shape(
        [(*x.shape[:axis], 1, *x.shape[axis + 1 :]), (*indices.shape[:axis], 1, *indices.shape[axis + 1 :])]
    )
    source = expand(x, (*shape[:axis], x.shape[axis], *shape[axis + 1 :]))
    return ops.GatherElements(axis)(source, expand(indices, (*shape[:axis], indices.shape[axis], *shape[axis + 1 :])))


_REDUCTIONS = {None: "none", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _combining(x: Node, reduction: str) -> str:
    """The combination of a scatter: for booleans, a sum is `or` and a product is `and`."""
    return {"add": "max", "mul": "min"}.get(reduction, reduction) if x.dtype == boolean else reduction


def _scatter(x: Node, dim: int, index: Node, source: Node, reduction: str) -> Node:
    if index.type.size == 0:
        return x
    if not x.type.rank:
        return reshape(
            _scatter(
                reshape(x, (1,)), 0, reshape(index, (index.type.size,)), reshape(source, (source.type.size,)), reduction
            ),
            (),
        )
    if not index.type.rank:
        index, source = reshape(index, (1,)), reshape(source, (1,))
    axis = axis_of(dim, x.type.rank)
    updates = _cropped(cast(source, x.dtype), index.shape, None)
    return ops.ScatterElements(axis, _combining(x, reduction))(x, index, updates)


@aten("scatter.src", "scatter.reduce")
def scatter(c: Context, x: Node, dim: int, index: Node, src: Node, *, reduce: str | None = None) -> Node:
    return _scatter(x, dim, index, src, _REDUCTIONS[reduce])


@aten("scatter.value", "scatter.value_reduce")
def scatter_value(c: Context, x: Node, dim: int, index: Node, value: Operand, *, reduce: str | None = None) -> Node:
    return _scatter(x, dim, index, filled(index.shape, value, x.dtype), _REDUCTIONS[reduce])


@aten("scatter_add.default")
def scatter_add(c: Context, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scatter(x, dim, index, src, "add")


@aten("scatter_reduce.two")
def scatter_reduce(
    c: Context, x: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node:
    if not index.type.rank:
        index, src = reshape(index, (1,)), reshape(src, (src.type.size,))
    source = _cropped(src, index.shape, None)
    return _reduced(lambda base, v, kind: _scatter(base, dim, index, v, kind), x, source, reduce, include_self)


@aten("index_reduce.default")
def index_reduce(
    c: Context, x: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True
) -> Node:
    source = _row_each(c, x, source, dim, index)
    return _reduced(lambda base, v, kind: write_rows(base, dim, index, v, kind), x, source, reduce, include_self)


Write = Callable[[Node, Node, str], Node]


def _reduced(write: Write, x: Node, source: Node, reduce: str, include_self: bool) -> Node:
    """`source` reduced into the elements of `x` that `write` selects. Without `include_self` these start from the
    neutral element; a mean counts the element itself only with it."""
    mean = reduce == "mean"
    kind = "add" if mean else _REDUCTIONS[reduce]
    if include_self and not mean:
        return write(x, source, kind)
    count = write(filled(x.shape, 0, x.dtype), filled(source.shape, 1, x.dtype), "add")
    if not include_self:
        name = {"add": "sum", "mul": "prod"}.get(kind, kind)
        x = select(compare("GT", count, scalar_like(0, x)), scalar_like(ops.identity_of(name, x.dtype), x), x)
    combined = write(x, source, kind)
    if not mean:
        return combined
    parts = ops.Add()(count, filled(x.shape, 1, x.dtype)) if include_self else ops.maximum(count, 1)
    return ops.Div()(combined, parts) if x.dtype.is_float else floor_div(combined, parts)


def _move_to_first(x: Node, axis: int) -> Node:
    return ops.transpose(x, (axis, *(i for i in range(x.type.rank) if i != axis)))


def _move_first_to(x: Node, axis: int) -> Node:
    """The inverse of `_move_to_first`: the first axis to `axis`."""
    order = list(range(1, x.type.rank))
    order.insert(axis, 0)
    return ops.transpose(x, order)


def write_rows(x: Node, dim: int, index: Node, source: Node, reduction: str) -> Node:
    """x[..., index[i], ...] written (or added to) with source[..., i, ...] along `dim`."""
    axis = axis_of(dim, x.type.rank)
    if not x.type.rank:
        sources = expand(reshape(source, (1,)), (index.type.size,))  # torch writes the only element once for each index
        return reshape(write_rows(reshape(x, (1,)), 0, index, sources, reduction), ())
    rows = reshape(index, (index.type.size, 1))
    return _move_first_to(
        ops.ScatterND(_combining(x, reduction))(_move_to_first(x, axis), rows, _move_to_first(source, axis)), axis
    )


def _as_large(c: Context, source: Node, x: Node, axis: int, count: DimLike) -> Node:
    """`source`, which must have `count` rows along `axis` and otherwise x's sizes: torch does not check all of these
    while it traces."""
    for i in range(source.type.rank):
        source = with_size(c, source, i, count if i == axis else x.shape[i])
    return source


def _row_each(c: Context, x: Node, source: Node, dim: int, index: Node) -> Node:
    """`source`, which must have one row for each index."""
    return _as_large(c, source, x, axis_of(dim, x.type.rank), index.type.size) if x.type.rank else source


@aten("index_add.default")
def index_add(c: Context, x: Node, dim: int, index: Node, source: Node, *, alpha: Operand = 1) -> Node:
    if not (isinstance(alpha, int | float) and alpha == 1):
        source = ops.Mul()(source, filled(source.shape, alpha, source.dtype))
    return write_rows(x, dim, index, _row_each(c, x, source, dim, index), "add")


@aten("index_copy.default")
def index_copy(c: Context, x: Node, dim: int, index: Node, source: Node) -> Node:
    return write_rows(x, dim, index, _row_each(c, x, source, dim, index), "none")


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(c: Context, x: Node, dim: int, index: Node, value: Operand) -> Node:
    axis = axis_of(dim, x.type.rank)
    shape = (*x.shape[:axis], index.type.size, *x.shape[axis + 1 :]) if x.type.rank else ()
    return write_rows(x, dim, index, expand(node_of(value, x.dtype), shape), "none")


def _checked(c: Context, x: Node, indices: Indices) -> list[tuple[int, Node]]:
    """(axis, index tensor) for every indexed axis. A mask is replaced by the coordinates of its true elements."""
    checked: list[tuple[int, Node]] = []
    axis, mask_count = 0, None  # mask_count: the number of elements that earlier masks select
    for index in indices:
        if index is None:
            axis += 1
        elif _is_mask(index):
            for i in range(index.type.rank):
                # torch does not compare them while it traces
                index = with_size(c, index, i, x.shape[axis + i])
            like = next((d for d in c.shape if any(map(is_computed, symbols_of(d)))), None)
            coordinates = indices_of(c, index, like)
            if mask_count is not None:
                coordinates = [with_size(c, v, 0, mask_count) for v in coordinates]
            mask_count = coordinates[0].shape[0] if coordinates else mask_count
            checked += enumerate(coordinates, axis)
            axis += len(coordinates)
        else:
            checked.append((axis, index))
            axis += 1
    if axis > x.type.rank:
        raise Unsupported(f"{axis} indices for rank {x.type.rank}")
    return checked


def _is_mask(index: Node) -> bool:
    return index.dtype == boolean or index.dtype.name == "u8"


def _grid(indices: Sequence[tuple[int, Node]]) -> Node:
    """The broadcast index tensors stacked on a new last axis, as gather_nd and scatter_nd take them."""
    shape = broadcast_shape([index.shape for _, index in indices])
    columns = [ops.expand_dims(expand(cast(index, i64), shape), len(shape)) for _, index in indices]
    return columns[0] if len(columns) == 1 else ops.Concat(len(shape))(*columns)


def _indexed_first(x: Node, axes: Sequence[int]) -> Node:
    return ops.transpose(x, (*axes, *(i for i in range(x.type.rank) if i not in axes)))


def _place(axes: Sequence[int]) -> int:
    """The position of the indexed axes' broadcast shape in the result: where they are if adjacent, else first (as in
    numpy)."""
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    return axes[0] if adjacent else 0


def _moving_permutation(lead: int, count: int, rank: int) -> tuple[int, ...]:
    """The permutation that moves the first `lead` axes of `rank` after the next `at` ones."""
    return (*range(lead, lead + count), *range(lead), *range(lead + count, rank))


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(c: Context, x: Node, indices: Indices) -> Node:
    masks = [(i, m) for i, m in enumerate(indices) if m is not None]
    if len(masks) == 1 and _is_mask(masks[0][1]) and masks[0][1].type.rank > 1:
        # flatten the masked axes
        ((mask_axis, mask),) = masks
        flat_shape = (*x.shape[:mask_axis], mask.type.size, *x.shape[mask_axis + mask.type.rank :])
        for i in range(mask.type.rank):
            mask = with_size(c, mask, i, x.shape[mask_axis + i])
        x, indices = reshape(x, flat_shape), (*indices[:mask_axis], reshape(mask, (mask.type.size,)))
    checked = _checked(c, x, indices)
    if not checked:
        return x
    if len(checked) == 1:
        axis, single_index = checked[0]
        return ops.Take(axis)(x, single_index)
    axes = [axis for axis, _ in checked]
    grid = _grid(checked)
    picked = ops.GatherND(0)(_indexed_first(x, axes), grid)
    return ops.transpose(picked, _moving_permutation(grid.type.rank - 1, _place(axes), picked.type.rank))


@aten("index_put.default", "_unsafe_index_put.default", "index_put_impl.default")
def index_put(
    c: Context, x: Node, indices: Indices, values: Node, accumulate: bool = False, unsafe: bool = False
) -> Node:
    values = cast(values, x.dtype)
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and masks[0].dtype == boolean:
        return _masked_put(c, x, indices, masks[0], values, accumulate)
    checked = _checked(c, x, indices)
    axes = [axis for axis, _ in checked]
    grid = _grid(checked)
    lead = grid.shape[:-1]
    other_sizes = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    place = _place(axes)
    # values broadcast against x[indices], whose indexed axes are at `place`
    updates = expand(values, (*other_sizes[:place], *lead, *other_sizes[place:]))
    updates = ops.transpose(
        updates, (*range(place, place + len(lead)), *range(place), *range(place + len(lead), updates.type.rank))
    )
    updated = ops.ScatterND(_combining(x, "add") if accumulate else "none")(_indexed_first(x, axes), grid, updates)
    order = (*axes, *(i for i in range(x.type.rank) if i not in axes))
    return ops.transpose(updated, tuple(order.index(i) for i in range(x.type.rank)))


def _masked_put(c: Context, x: Node, indices: Indices, mask: Node, values: Node, accumulate: bool) -> Node:
    """x[mask] = values: a single value, or one for each true element of the mask, in order."""
    axis = next(i for i, m in enumerate(indices) if m is not None)
    for i in range(mask.type.rank):
        # torch does not compare them while it traces
        mask = with_size(c, mask, i, x.shape[axis + i])
    trailing = x.shape[axis + mask.type.rank :]
    if values.type.size == 1:
        replacement = expand(reshape(values, ()), x.shape)
    else:
        lines = expand(values, (*x.shape[:axis], _count(values, axis, len(trailing)), *trailing))
        replacement = reshape(_at_true(lines, axis, mask), x.shape)
    mask = reshape(mask, (*mask.shape, *((1,) * len(trailing))))
    return select(mask, add(x, replacement) if accumulate else replacement, x)


def _at_true(values: Node, axis: int, mask: Node) -> Node:
    """For each element of `mask` a slice of `values` along `axis`: the k-th slice at the k-th true element, an
    arbitrary one elsewhere. A slice of zeros is prepended, so that there is one to read even if `values` is empty."""
    zeros = filled((*values.shape[:axis], 1, *values.shape[axis + 1 :]), 0, values.dtype)
    count = ops.CumReduce("sum", 0)(cast(reshape(mask, (mask.type.size,)), i64))
    return ops.Take(axis)(ops.concat([zeros, values], axis), count)


def _count(values: Node, axis: int, trailing_axes: int) -> DimLike:
    """The number of mask elements that `values` covers, given `trailing_axes` axes after the masked ones."""
    return values.shape[-trailing_axes - 1] if values.type.rank > trailing_axes else 1


@aten("masked_scatter.default")
def masked_scatter(c: Context, x: Node, mask: Node, source: Node) -> Node:
    """The k-th true element of the mask gets the k-th element of `source`."""
    x, mask = expand(x, c.shape), expand(mask, c.shape)
    elements = _at_true(reshape(source, (source.type.size,)), 0, mask)
    return ops.Select()(mask, reshape(elements, x.shape), x)


@aten("slice_scatter.default")
def slice_scatter(
    c: Context, x: Node, src: Node, dim: int = 0, start: DimLike | None = None, end: DimLike | None = None,
    step: int = 1,
) -> Node:  # fmt: skip
    axis = axis_of(dim, x.type.rank)
    size = x.shape[axis]
    src = cast(_as_large(c, src, x, axis, src.shape[axis]), x.dtype)
    lo, hi = clipped(start, end, step, size, src.shape[axis])
    if lo == 0 and hi == size and step == 1:
        return src
    if step == 1:
        parts = [cut(x, axis, 0, lo), src, cut(x, axis, hi, size)]
        return ops.Concat(axis)(*(p for p in parts if p.shape[axis] != 0))
    reach = (src.shape[axis] - 1) * step + 1
    low = tuple(lo if i == axis else 0 for i in range(x.type.rank))
    high = tuple(size - lo - reach if i == axis else 0 for i in range(x.type.rank))
    interior = tuple(step - 1 if i == axis else 0 for i in range(x.type.rank))
    padded_source = ops.Pad(low, high, interior)(src, scalar_like(0, src))
    line = (src.shape[axis],)
    is_written = ops.Pad((low[axis],), (high[axis],), (step - 1,))(filled(line, True, boolean), const(False))
    is_written = ops.BroadcastInDim(x.shape, (axis,))(is_written)
    return ops.Select()(is_written, padded_source, x)


@aten("select_scatter.default")
def select_scatter(c: Context, x: Node, src: Node, dim: int, index: DimLike) -> Node:
    axis = axis_of(dim, x.type.rank)
    size = x.shape[axis]
    position = index + size if isinstance(index, int) and index < 0 else index
    return slice_scatter(c, x, ops.expand_dims(src, axis), axis, position, position + 1)


@aten("diagonal_scatter.default")
def diagonal_scatter(c: Context, x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    rank = x.type.rank
    last = axis_of(dim1, rank), axis_of(dim2, rank)
    order = (*(d for d in range(rank) if d not in last), *last)
    x, src = ops.transpose(x, order), cast(src, x.dtype)
    rows, low = rank - 2, max(offset, 0)
    for size, other in zip(x.shape[:rows], src.shape[:rows], strict=True):
        if isinstance(size, int) and isinstance(other, int) and size != other:
            raise ShapeError("diagonal_scatter", expected=f"a source with the sizes {x.shape[:rows]}", got=src.type)
    # the source padded to rows of x's columns; each row selects its own element
    high_amount = x.shape[-1] - low - src.shape[-1]
    line = ops.Pad((*(0,) * rows, low), (*(0,) * rows, high_amount), (0,) * (rows + 1))(src, scalar_like(0, src))
    wide = ops.BroadcastInDim(x.shape, (*range(rows), rows + 1))(line)
    row, column = ops.iota(x.shape, rows), ops.iota(x.shape, rows + 1)
    is_diagonal = ops.Compare("EQ")(ops.Add()(row, filled(x.shape, offset, i64)), column)
    return ops.transpose(ops.Select()(is_diagonal, wide, x), tuple(order.index(d) for d in range(rank)))


def static(size: DimLike, what: str) -> int:
    """`size` as an int. Raises Unsupported where it is symbolic."""
    if isinstance(size, Dim):
        raise Unsupported(f"{what} is the symbolic size {size}")
    return size
