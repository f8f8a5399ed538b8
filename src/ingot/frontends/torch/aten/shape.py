"""Shapes: views, permutations, joins, splits, slices, repeats, rolls, pads, pixel shuffles, and casts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot import ops
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import diag_embed, filled
from ingot.frontends.torch.convert import dtype_of
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Operand,
    axes_of,
    axis_of,
    broadcast_shape,
    cast,
    expand,
    i64,
    node_of,
    promoted,
    with_shape,
)
from ingot.ir.dims import Dim, DimLike, bounds, dim_max, dim_min, product, sign_bit
from ingot.ir.node import Node

aten = Table()


def reshape(x: Node, shape: Sequence[DimLike]) -> Node:
    """`x` in row-major order as `shape`; `x` itself where that is its shape."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    size = product(shape)
    if size != x.type.size and isinstance(size, Dim):
        # equal by a guard of torch, such as n % k == 0 for n // k * k, which Dim cannot prove
        flat = x if x.type.rank == 1 else ops.Reshape((x.type.size,))(x)
        x = with_shape(flat, (size,))
    return ops.Reshape(shape)(x)


@aten(
    "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
    "view_as.default", "reshape_as.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
    "ravel.default", "_reshape_alias.default", "_reshape_copy.default", "view_copy.default", "unsqueeze_copy.default",
    "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims", "atleast_1d.default", "atleast_2d.default",
)  # fmt: skip
def view(c: Context, x: Node, *shape: object, **named: object) -> Node:
    # torch's own inference has resolved -1, axes and symbolic sizes
    return reshape(x, c.shape)


@aten("atleast_3d.default")
def atleast_3d(c: Context, x: Node) -> Node:
    return reshape(x, c.shape)


@aten(
    "clone.default", "contiguous.default", "alias.default", "lift_fresh.default", "lift_fresh_copy.default",
    "lift.default", "alias_copy.default", "resolve_conj.default", "resolve_neg.default",
)  # fmt: skip
def identity(c: Context, x: Node, *args: object, **named: object) -> Node:
    return x


@aten("detach.default", "detach_copy.default")
def detach(c: Context, x: Node) -> Node:
    return ops.StopGradient()(x) if x.dtype.is_float else x


@aten(
    "to.dtype", "to.device", "to.dtype_layout", "to.other", "to.prim_Device", "_to_copy.default", "type_as.default",
    "_to_cpu.default", "to.prim_dtype",
)  # fmt: skip
def to(c: Context, x: Operand, *args: object, **named: object) -> Node:
    return node_of(x, c.dtype)


for _name, _dtype in {
    "_cast_Float": torch.float32,
    "_cast_Half": torch.float16,
    "_cast_Long": torch.int64,
    "_cast_Int": torch.int32,
}.items():
    aten.add(f"{_name}.default", lambda c, x, non_blocking=False, _t=_dtype: cast(x, dtype_of(_t)))


@aten("expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default")
def expand_(c: Context, x: Node, *args: object, **named: object) -> Node:
    return expand(x, c.shape)


@aten("prims.convert_element_type.default")
def convert_element_type(c: Context, x: Node, dtype: object) -> Node:
    return cast(x, c.dtype)


@aten("copy.default")
def copy(c: Context, x: Node, source: Node, non_blocking: bool = False) -> Node:
    return expand(cast(source, x.dtype), x.shape)


@aten("broadcast_tensors.default")
def broadcast_tensors(c: Context, tensors: Sequence[Node]) -> tuple[Node, ...]:
    shape = broadcast_shape([t.shape for t in tensors])
    return tuple(expand(t, shape) for t in tensors)


@aten("meshgrid.default", "meshgrid.indexing")
def meshgrid(c: Context, tensors: Sequence[Node], *, indexing: str = "ij") -> tuple[Node, ...]:
    grids: list[Node] = []
    for i, (t, result) in enumerate(zip(tensors, c.results, strict=True)):
        axis = 1 - i if indexing == "xy" and i < 2 and len(tensors) > 1 else i
        form = tuple(product(t.shape) if k == axis else 1 for k in range(len(tensors)))
        grids.append(expand(reshape(t, form), result.shape))
    return tuple(grids)


@aten("permute.default", "permute_copy.default")
def permute(c: Context, x: Node, dims: Sequence[int]) -> Node:
    return ops.transpose(x, [axis_of(d, x.type.rank) for d in dims])


@aten("transpose.int", "swapaxes.default", "swapdims.default", "transpose_copy.int")
def transpose_int(c: Context, x: Node, dim0: int, dim1: int) -> Node:
    return ops.swap_axes(x, dim0, dim1) if x.type.rank else x


@aten("t.default", "numpy_T.default", "t_copy.default", "matrix_H.default")
def t(c: Context, x: Node) -> Node:
    return ops.transpose(x, tuple(reversed(range(x.type.rank))))


@aten("mT.default", "adjoint.default", "mH.default")
def matrix_transpose(c: Context, x: Node) -> Node:
    return ops.swap_axes(x, -2, -1)


@aten("movedim.intlist", "movedim.int", "moveaxis.intlist", "moveaxis.int")
def movedim(c: Context, x: Node, source: int | Sequence[int], destination: int | Sequence[int]) -> Node:
    rank = x.type.rank
    sources = [axis_of(d, rank) for d in ([source] if isinstance(source, int) else source)]
    targets = [axis_of(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    source_of = dict(zip(targets, sources, strict=True))
    unmoved = iter([d for d in range(rank) if d not in sources])
    return ops.transpose(x, [source_of[i] if i in source_of else next(unmoved) for i in range(rank)])


@aten("cat.default", "concat.default", "concatenate.default")
def cat(c: Context, tensors: Sequence[Node], dim: int = 0) -> Node:
    # a 1-d tensor of size 0 is skipped whatever the others' rank, as PyTorch does
    nonempty = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    parts = promoted(nonempty, c.dtype)
    axis = axis_of(dim, parts[0].type.rank)
    # the other sizes are equal, though possibly in another form
    parts = tuple(with_shape(p, (*c.shape[:axis], p.shape[axis], *c.shape[axis + 1 :])) for p in parts)
    return parts[0] if len(parts) == 1 else ops.Concat(axis)(*parts)


@aten("stack.default")
def stack(c: Context, tensors: Sequence[Node], dim: int = 0) -> Node:
    axis = axis_of(dim, len(c.shape))
    parts = [ops.expand_dims(x, axis) for x in promoted(tensors, c.dtype)]
    return parts[0] if len(parts) == 1 else ops.Concat(axis)(*parts)


@aten("hstack.default")
def hstack(c: Context, tensors: Sequence[Node]) -> Node:
    parts = [reshape(x, (1,)) if not x.type.rank else x for x in tensors]
    return cat(c, parts, 0 if parts[0].type.rank == 1 else 1)


@aten("vstack.default")
def vstack(c: Context, tensors: Sequence[Node]) -> Node:
    return cat(c, [x if x.type.rank > 1 else reshape(x, (1, product(x.shape))) for x in tensors], 0)


@aten(
    "split.Tensor", "split_with_sizes.default", "chunk.default", "tensor_split.sections", "tensor_split.indices",
    "unsafe_split.Tensor", "unsafe_chunk.default", "split_with_sizes_copy.default", "split_copy.Tensor",
    "split.sizes", "unsafe_split_with_sizes.default", "vsplit.int",
)  # fmt: skip
def split(c: Context, x: Node, sizes: object, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.type.rank)
    parts: list[Node] = []
    start: DimLike = 0
    # the number and the sizes of the parts are those of torch's own inference
    for part in c.results:
        parts.append(cut(x, axis, start, start + part.shape[axis]))
        start = start + part.shape[axis]
    return tuple(parts)


@aten("hsplit.int")
def hsplit(c: Context, x: Node, sections: int) -> tuple[Node, ...]:
    return split(c, x, sections, 0 if x.type.rank == 1 else 1)


@aten("unbind.int", "unbind_copy.int")
def unbind(c: Context, x: Node, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.type.rank)
    return tuple(select_index(x, axis, i) for i in range(len(c.results)))


def select_index(x: Node, axis: int, index: DimLike) -> Node:
    """x[index] along `axis`, index in [0, size); the axis is removed."""
    part = cut(x, axis, index, index + 1)
    return reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _from_end(index: DimLike, size: DimLike) -> DimLike:
    """`index` from the front, where a negative one counts from the end."""
    if not _is_signed(index):
        raise Unsupported(f"the index {index}, whose sign is unknown at compile time")
    return index + size if _is_negative(index) else index


def _is_signed(index: DimLike) -> bool:
    """Whether the sign of an index is known."""
    low, _ = bounds(index)
    return (low is not None and low >= 0) or _is_negative(index)


def _is_negative(index: DimLike) -> bool:
    _, high = bounds(index)
    return high is not None and high < 0


@aten("select.int", "select_copy.int")
def select(c: Context, x: Node, dim: int, index: Operand) -> Node:
    axis = axis_of(dim, x.type.rank)
    if isinstance(index, Node):
        return _select_dynamic(x, axis, index)
    if not isinstance(index, int | Dim):
        raise Unsupported("an index that is no integer")
    position = _from_end(index, x.shape[axis])
    _within(c, position, position + 1, x.shape[axis])
    return select_index(x, axis, position)


def _select_dynamic(x: Node, axis: int, index: Node) -> Node:
    return ops.Take(axis)(x, index)


def clipped(
    start: DimLike | None, end: DimLike | None, step: int, size: DimLike, length: DimLike
) -> tuple[DimLike, DimLike]:
    """Python's rules for x[start:end:step], which has `length` elements: negative bounds count from the end, and all
    are clamped. For x[-n:] with a size n, torch has decided the sign of the start: `length` implies it. Where only the
    run knows both signs, that of the start decides."""
    start = 0 if start is None else start
    signed = _is_signed(start)
    if not signed and step == 1 and end is not None and not (_is_all(end, size) or _is_signed(end)):
        first = dim_min(dim_max(start + sign_bit(start) * size, 0), size)
        return first, first + length
    lo = _clamped(start, size) if signed or step != 1 else None
    if step == 1 and lo is not None:
        return lo, lo + length
    hi = size if end is None or _is_all(end, size) else _clamped(end, size)
    return (hi - length, hi) if lo is None else (lo, dim_max(lo, hi))


def _is_all(end: DimLike | None, size: DimLike) -> bool:
    """Whether `end` is the end of the axis."""
    return end is None or end == size or (isinstance(end, int) and end >= 2**62)


def _clamped(index: DimLike, size: DimLike) -> DimLike:
    if isinstance(index, int) and index >= 2**62:
        return size
    position = _from_end(index, size)
    return dim_max(0, position) if _is_negative(index) else dim_min(position, size)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(
    c: Context, x: Node, dim: int = 0, start: DimLike | None = None, end: DimLike | None = None, step: int = 1
) -> Node:
    axis = axis_of(dim, x.type.rank)
    lo, hi = clipped(start, end, step, x.shape[axis], c.shape[axis])
    _within(c, lo, hi, x.shape[axis])
    return cut(x, axis, lo, hi, step)


def _within(c: Context, low: DimLike, high: DimLike, size: DimLike) -> None:
    """Require that a slice is within its axis: torch assumes sizes of at least 2, for which alone it may hold."""
    c.sizes.require(low, high)
    c.sizes.require(high, size)


@aten("narrow.default", "narrow_copy.default")
def narrow(c: Context, x: Node, dim: int, start: DimLike, length: DimLike) -> Node:
    axis = axis_of(dim, x.type.rank)
    lo = _from_end(start, x.shape[axis])
    _within(c, lo, lo + length, x.shape[axis])
    return cut(x, axis, lo, lo + length)


@aten("repeat.default", "tile.default")
def repeat(c: Context, x: Node, repeats: Sequence[DimLike]) -> Node:
    rank = max(len(repeats), x.type.rank)
    counts = (*((1,) * (rank - len(repeats))), *repeats)
    shape = (*((1,) * (rank - x.type.rank)), *x.shape)
    inner = tuple(d for n, s in zip(counts, shape, strict=True) for d in (n, s))
    x = reshape(x, shape)
    repeated = ops.BroadcastInDim(inner, tuple(range(1, 2 * rank, 2)))(x)
    return reshape(repeated, c.shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(
    c: Context, x: Node, repeats: DimLike, dim: int | None = None, *, output_size: DimLike | None = None
) -> Node:
    if dim is None:
        x, dim = reshape(x, (product(x.shape),)), 0
    axis = axis_of(dim, x.type.rank)
    shape = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    dims = tuple(i if i <= axis else i + 1 for i in range(x.type.rank))
    return reshape(ops.BroadcastInDim(shape, dims)(x), c.shape)


@aten("roll.default")
def roll(c: Context, x: Node, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Node:
    shifts = (shifts,) if isinstance(shifts, int | Dim) else tuple(shifts)
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if not dims:
        flat = _roll(reshape(x, (product(x.shape),)), 0, shifts[0])
        return reshape(flat, x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll(x, axis_of(dim, x.type.rank), shift)
    return x


def _roll(x: Node, axis: int, shift: DimLike) -> Node:
    size = x.shape[axis]
    if size == 0 or size == 1:
        return x
    return movement.roll(x, axis, shift)


@aten("flip.default")
def flip(c: Context, x: Node, dims: Sequence[int]) -> Node:
    if not x.type.rank or not dims:
        return x
    return ops.Reverse(axes_of(dims, x.type.rank))(x)


@aten("fliplr.default")
def fliplr(c: Context, x: Node) -> Node:
    return ops.Reverse((1,))(x)


@aten("flipud.default")
def flipud(c: Context, x: Node) -> Node:
    return ops.Reverse((0,))(x)


@aten("rot90.default")
def rot90(c: Context, x: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    a, b = (axis_of(d, x.type.rank) for d in dims)
    quarter_turns = k % 4
    if quarter_turns == 2:
        return ops.Reverse(tuple(sorted((a, b))))(x)
    if quarter_turns == 1:
        return ops.swap_axes(ops.Reverse((b,))(x), a, b)
    return ops.Reverse((b,))(ops.swap_axes(x, a, b)) if quarter_turns == 3 else x


@aten("diagonal.default", "diagonal_copy.default", "linalg_diagonal.default")
def diagonal_of(c: Context, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    rank = x.type.rank
    a, b = axis_of(dim1, rank), axis_of(dim2, rank)
    x = ops.transpose(x, [*(i for i in range(rank) if i not in (a, b)), a, b])
    *lead, rows, columns = x.shape
    length = c.shape[-1]
    row, column = (max(-offset, 0), max(offset, 0))
    if length == 0:
        return ops.Slice((0,) * (rank - 1), (*lead, 0), (1,) * (rank - 1))(reshape(x, (*lead, rows * columns)))
    flat = reshape(x, (*lead, rows * columns))
    start = columns * row + column
    if isinstance(columns, int):
        return cut(flat, rank - 2, start, start + (length - 1) * (columns + 1) + 1, columns + 1)
    # no slice has a step that is known only at run time
    steps = ops.Mul()(ops.iota((length,), 0), filled((length,), columns + 1, i64))
    return ops.Take(rank - 2)(flat, ops.Add()(steps, filled((length,), start, i64)))


@aten("diag.default")
def diag(c: Context, x: Node, diagonal: int = 0) -> Node:
    """The diagonal of a matrix, or the matrix of a vector."""
    return diag_embed(c, x, diagonal) if x.type.rank == 1 else diagonal_of(c, x, diagonal)


@aten("diff.default")
def diff(
    c: Context, x: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None
) -> Node:
    axis = axis_of(dim, x.type.rank)
    parts = [p for p in (prepend, x, append) if p is not None]
    x = parts[0] if len(parts) == 1 else ops.Concat(axis)(*promoted(parts))
    for _ in range(n):
        size = x.shape[axis]
        if size == 0:
            return x
        upper, lower = cut(x, axis, 1, size), cut(x, axis, 0, size - 1)
        x = ops.Xor()(upper, lower) if x.dtype.kind == "b" else ops.Sub()(upper, lower)
    return x
