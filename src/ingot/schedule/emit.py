"""Inline evaluation: the value of a pointwise/view/gather DAG at one index, as kernel IR.

    emitter.value(node, index)      %3 = add(%1, broadcast(%2))  at (i, ramp(j))   ->
                                    let a = load(p1, i*64+j, 16);  let b = splat(load(p2, i));  let c = a + b

An index is one i64 expression per dimension; most of them are scalars, and the vectorized dimension has a `Ramp`.
The schedule binds leaves to loads from a buffer by its layout, or to values in registers. Every op's value is bound to
a name once per index, so shared subgraphs are evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, is_negative, mod
from ingot.ir.kernel import Buffer, Expr, Lit, Ramp, Var
from ingot.ir.layout import AxisMap, IndexMap, Layout, reshape_groups, reshape_map
from ingot.ir.node import Const, Node
from ingot.ir.types import Shape, boolean, f32, f64, i64
from ingot.ops.core.base import Category, category
from ingot.ops.core.shape import View
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.concats import concat_at
from ingot.schedule.index import ZERO, Index, dim_expr, integer, mask_and
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError


@dataclass(frozen=True)
class Leaf:
    """A bound value.

    read: emits the value at an index, under a mask. home: the block that defines it (None: the kernel's start).
    pinned: the value changes as statements run, as a buffer that the kernel writes does, so reads are not hoisted.
    """

    read: Callable[[Block, Index, Expr | None], Expr]
    home: Block | None = None
    pinned: bool = False


def load_leaf(buffer: Buffer, layout: Layout) -> Leaf:
    """A leaf that reads `buffer` by `layout`."""
    return Leaf(
        lambda block, index, mask: load_at(block, buffer, ix.linear(index, layout.strides, layout.offset), mask)
    )


def load_at(block: Block, buffer: Buffer, flat: Expr, mask: Expr | None = None) -> Expr:
    """The cheapest read of a flat index: a scalar load and a splat, a vector load, full vectors shuffled for strides of
    -2, -1 and 2, or a gather."""
    step = ix.lane_step(flat)
    lanes = max(flat.lanes, mask.lanes if mask is not None else 1)
    if step == 0 or lanes == 1:
        any_lane = mask if mask is None or mask.lanes == 1 else block.let(k.reduce("or", mask))
        return k.splat(block.let(k.load(buffer, ix.first_lane(flat), 1, any_lane)), lanes)
    mask = k.splat(mask, lanes) if mask is not None else None
    if step == 1:
        return block.let(k.load(buffer, ix.first_lane(flat), lanes, mask))
    if step in (-2, -1, 2):
        return _strided(block, buffer, ix.first_lane(flat), lanes, step, mask)
    return block.let(k.gather(buffer, k.splat(flat, lanes), mask))


def _strided(block: Block, buffer: Buffer, first: Expr, lanes: int, step: int, mask: Expr | None) -> Expr:
    """Elements first, first + step, ..., shuffled out of vector loads, which touch no memory outside of the first and
    last element; under a mask, they touch only the elements of active lanes."""
    span = (lanes - 1) * step
    low = block.let(ix.add(first, integer(min(span, 0))), "v")
    starts = (0,) if abs(step) == 1 else (0, abs(span) - lanes + 1)
    # an offset beyond the first vector is in the second, which ends with the last element
    offsets = [i * step - min(span, 0) for i in range(lanes)]
    pick = tuple(at if at < lanes else lanes + at - starts[-1] for at in offsets)

    def load(number: int) -> Expr:
        load_mask = mask
        if mask is not None:
            lane = {at % lanes: i for i, at in enumerate(pick) if at // lanes == number}
            no_lanes = k.lit(False, boolean, lanes)
            source_lanes = tuple(lane.get(at, lanes) for at in range(lanes))
            load_mask = block.let(k.Shuffle(boolean, lanes, mask, no_lanes, source_lanes))
        return block.let(k.load(buffer, ix.add(low, integer(starts[number])), lanes, load_mask))

    vectors = [load(number) for number in range(len(starts))]
    return block.let(k.Shuffle(buffer.dtype, lanes, vectors[0], vectors[-1], pick))


def store_at(
    block: Block, buffer: Buffer, flat: Expr, value: Expr, mask: Expr | None = None, *, stream: bool = False
) -> None:
    """Write the lanes of `value` at a flat index: a vector store or a scatter. If lanes share an element, the mask must
    leave one of them on."""
    lanes = max(flat.lanes, value.lanes)
    at = ix.first_lane(flat) if lanes == 1 or ix.lane_step(flat) == 1 else k.splat(flat, lanes)
    block.store(buffer, at, k.splat(value, lanes), mask, stream=stream)


class Emitter:
    """Evaluates the nodes of a group's body into blocks. `leaves` binds nodes to values; all others are computed.

    A value is emitted into the outermost block in which its index and leaves are defined, so loop-invariant values are
    hoisted.
    """

    def __init__(self, leaves: Mapping[Node, Leaf]):
        self._leaves = dict(leaves)
        self._memo: dict[tuple[object, ...], tuple[Block, Expr]] = {}
        self._homes: dict[Node, tuple[Block | None, bool]] = {}
        self._live: list[object] = []

    def bind(self, node: Node, leaf: Leaf) -> None:
        """Bind `node` for evaluations from now on; values already computed from it remain as they are."""
        self._leaves[node] = leaf
        self._homes.clear()
        self._memo = {key: v for key, v in self._memo.items() if key[0] != node.id}

    def value(self, block: Block, node: Node, index: Index, mask: Expr | None = None) -> Expr:
        """The value of `node` at `index`. Where `mask` is off, no memory is touched and the value is arbitrary."""
        key = (node.id, *map(_index_key, index), id(mask))
        cached = self._memo.get(key)
        if cached is not None and block.sees(cached[0]):
            return cached[1]
        self._live.append((index, mask))  # keys hold ids, which are valid as long as their objects live
        deepest, pinned = self._deepest_home(node)
        home = block
        if not pinned:
            home = block.home(*index, *(() if mask is None else (mask,)))
            if deepest is not None and deepest.depth > home.depth:
                home = deepest
        result = self._compute(home, node, index, mask)
        self._memo[key] = (home, result)
        return result

    def _deepest_home(self, node: Node) -> tuple[Block | None, bool]:
        """The deepest home of the leaves that `node` depends on, and whether any of them is pinned."""
        cached = self._homes.get(node)
        if cached is not None:
            return cached
        leaf = self._leaves.get(node)
        if leaf is not None:
            result = (leaf.home, leaf.pinned)
        else:
            operands = [self._deepest_home(i) for i in node.inputs]
            homes = [h for h, _ in operands if h is not None]
            result = (max(homes, key=lambda h: h.depth, default=None), any(p for _, p in operands))
        self._homes[node] = result
        return result

    def _compute(self, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
        leaf = self._leaves.get(node)
        if leaf is not None:
            return leaf.read(block, index, mask)
        op = node.op
        rule = _RULES.get(type(op))
        if rule is not None:
            return rule(self, block, node, index, mask)
        if category(op) is Category.ELEMENTWISE:
            return self.elementwise(block, node, index, mask)
        raise CompileError(f"{op.name} has no value rule", expected="a pointwise, view or gather op", where=node.loc)

    def elementwise(self, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
        """The value of an elementwise node by its op's scalar rule."""
        operands = [self.value(block, i, index, mask) for i in node.inputs]
        op = node.op
        assert isinstance(op, ops.Elementwise)
        return block.let(op.scalar(*k.broadcast(*operands)))


def _index_key(e: Expr) -> object:
    """Small expressions by value, deep ones by identity (hashing a shared DAG is exponential)."""
    if isinstance(e, Ramp):
        return (e.lanes, e.step, _index_key(e.base))
    if isinstance(e, Lit):
        return ("lit", e.lanes, e.value)
    return getattr(e, "name", None) or id(e)


def _const(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    op = node.op
    assert isinstance(op, Const)
    value = op.value
    if value.size != 1:
        raise CompileError("a constant with more than one element must be a group input")
    v = value.reshape(())[()]
    return Lit(node.dtype, 1, bool(v) if node.dtype == boolean else int(v) if node.dtype.is_integer else float(v))


def _view(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    x, *fill = node.inputs
    assert isinstance(node.op, View)
    at, inside = _operand_position(block, node.op.index_map(x.shape, node.shape), x.shape, node.shape, index)
    if inside is None:
        return em.value(block, x, at, mask)
    inside = block.let(inside, "in")
    value = em.value(block, x, at, mask_and(mask, inside))
    return block.let(k.select(inside, value, em.value(block, fill[0], (), mask)))


def operand_index(block: Block, view: Node, index: Index) -> Index:
    """The coordinates in the operand of the element at `index` of a view without padding."""
    assert isinstance(view.op, View)
    (x,) = view.inputs
    at, inside = _operand_position(block, view.op.index_map(x.shape, view.shape), x.shape, view.shape, index)
    assert inside is None
    return at


def _operand_position(
    block: Block, index_map: IndexMap, old: Shape, new: Shape, index: Index
) -> tuple[Index, Expr | None]:
    """The coordinates in the operand, of shape `old`, of the element at `index` of a view of shape `new`, and the mask
    of the lanes that have one (None: all do; the others are padding)."""
    out: list[Expr] = [ZERO] * len(old)
    inside: Expr | None = None
    for place in index_map:
        at = _position(place, new, index)
        if place.is_padded:
            at, inside = _within_bounds(block, place, old, at, inside)
        if len(place.axes) == 1:
            out[place.axes[0]] = at
            continue
        if len(_sized_terms(place, new)) > 1:
            at = block.let(at, "f")
        extents = tuple(old[d] for d in place.axes)
        for d, e in zip(place.axes, ix.delinearize(at, extents, block.multiples), strict=True):
            out[d] = block.let(e, "i")
    return tuple(out), inside


def _position(place: AxisMap, shape: Shape, index: Index) -> Expr:
    """offset + the sum of step * index, by Horner's rule if the axes are contiguous."""
    offset, terms = dim_expr(place.offset), _sized_terms(place, shape)
    if not terms:
        return offset
    if _is_contiguous(terms, shape):
        at = index[terms[0][0]]
        for axis, _ in terms[1:]:
            at = ix.add(ix.mul(at, dim_expr(shape[axis])), index[axis])
        return ix.add(at, offset)
    (axis, step), *rest = terms
    at = ix.mul(index[axis], dim_expr(step))
    for axis, step in rest:
        at = ix.add(at, ix.mul(index[axis], dim_expr(step)))
    return ix.add(offset, at) if is_negative(terms[0][1]) else ix.add(at, offset)


def _sized_terms(place: AxisMap, shape: Shape) -> list[tuple[int, DimLike]]:
    """The terms whose axes do not have size 1; a single term is always included."""
    return [t for t in place.terms if shape[t[0]] != 1] if len(place.terms) > 1 else list(place.terms)


def _is_contiguous(terms: Sequence[tuple[int, DimLike]], shape: Shape) -> bool:
    nested = (a == b * shape[axis] for (_, a), (axis, b) in pairwise(terms))
    return terms[-1][1] == 1 and all(nested)


def _within_bounds(block: Block, place: AxisMap, old: Shape, at: Expr, inside: Expr | None) -> tuple[Expr, Expr | None]:
    """The position along a padded axis of the operand, and the mask of the lanes that fall on an element of it, within
    `inside` of the axes before."""
    checks_low, checks_high = place.padded_ends
    if place.spacing > 1:
        at = block.let(at, "p")
        step = integer(place.spacing)
        inside = mask_and(inside, k.binary("eq", k.binary("rem", at, step), ZERO))
        if checks_low:
            inside = mask_and(inside, k.binary("ge", at, ZERO))
        at, checks_low, checks_high = k.binary("div", at, step), False, True
    if checks_low:
        inside = mask_and(inside, k.binary("ge", at, ZERO))
    if checks_high:
        inside = mask_and(inside, k.binary("lt", at, dim_expr(old[place.axes[0]])))
    return at, inside


def _reshape(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    (x,) = node.inputs
    parts = _lane_parts(block, x.shape, node.shape, index) if mask is None else None
    if parts is None:
        return _view(em, block, node, index, mask)
    lanes = max(e.lanes for e in index) // len(parts)
    return _interleave(block, [k.splat(em.value(block, x, at), lanes) for at in parts])


def _lane_parts(block: Block, old: Shape, new: Shape, index: Index) -> list[Index] | None:
    """If a vector runs along a dimension whose innermost part is a short dimension of `old`: the coordinates in `old`
    of each position of that dimension, as vectors of as many times fewer lanes. None otherwise."""
    for olds, news in reshape_groups(old, new) or ():
        old_dims, new_dims = [d for d in olds if old[d] != 1], [d for d in news if new[d] != 1]
        if len(old_dims) < 2 or not new_dims:
            continue
        last, dim = old_dims[-1], new_dims[-1]
        ramp, short = index[dim], old[last]
        if not isinstance(ramp, Ramp) or ramp.step != 1 or not isinstance(short, int) or short < 2:
            continue
        lanes = ramp.lanes // short
        is_aligned = ix.multiple_of(ramp.base, block.multiples) % ramp.lanes == 0
        # if outer dimensions are joined with it, each of their rows must start with a full part
        is_aligned &= len(new_dims) == 1 or mod(new[dim], short) == 0
        is_only_vector = all(e.lanes == 1 for d, e in enumerate(index) if d != dim)
        if ramp.lanes % short or lanes < 4 or not is_aligned or not is_only_vector:
            return None
        base = block.let(k.binary("div", ramp.base, integer(short)), "z")
        if isinstance(base, Var):
            block.multiples[base.name] = lanes
        # the shapes without the short dimension
        outer_old = tuple(1 if d == last else n for d, n in enumerate(old))
        outer_new = tuple(new[d] // short if d == dim else n for d, n in enumerate(new))
        at = tuple(k.ramp(base, lanes) if d == dim else e for d, e in enumerate(index))
        outer = reshape_index(block, outer_old, outer_new, at)
        return [tuple(integer(i) if d == last else e for d, e in enumerate(outer)) for i in range(short)]
    return None


def _interleave(block: Block, parts: Sequence[Expr]) -> Expr:
    """Lane 0 of every part, then lane 1, and so on. The number of parts is a power of two."""
    if len(parts) == 1:
        return parts[0]
    even, odd = _interleave(block, parts[::2]), _interleave(block, parts[1::2])
    pick = tuple(i // 2 + i % 2 * even.lanes for i in range(2 * even.lanes))
    return block.let(k.Shuffle(even.dtype, 2 * even.lanes, even, odd, pick))


def reshape_index(block: Block, old: tuple[DimLike, ...], new: tuple[DimLike, ...], index: Index) -> Index:
    """The coordinates in `old` of the element at `index` in `new`."""
    at, _ = _operand_position(block, reshape_map(old, new), old, new, index)
    return at


def _iota(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    op = node.op
    assert isinstance(op, ops.Iota)
    return block.let(k.cast(index[op.dimension], node.dtype))


def _dim_value(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    op = node.op
    assert isinstance(op, ops.DimValue)
    return k.cast(dim_expr(op.dim), node.dtype)


def _clamped(e: Expr, low: DimLike, high: DimLike) -> Expr:
    return k.binary("max", k.binary("min", e, dim_expr(high)), dim_expr(low))


def _gather(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    """StableHLO gather: result[batch, offset] = x[start(batch) clamped + offset]."""
    op = node.op
    assert isinstance(op, ops.Gather)
    x, indices = node.inputs
    batch = [d for d in range(node.type.rank) if d not in op.offset_dims]
    window = [d for d in range(x.type.rank) if d not in op.collapsed_slice_dims + op.operand_batching_dims]
    at: list[Expr] = [ZERO] * x.type.rank
    for out, dim in zip(op.offset_dims, window, strict=True):
        at[dim] = index[out]
    batch_index = [index[d] for d in batch]
    for dim, d in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
        at[dim] = batch_index[d - (d > op.index_vector_dim)]
    for component, dim in enumerate(op.start_index_map):
        position = list(batch_index)
        if op.index_vector_dim < indices.type.rank:
            position.insert(op.index_vector_dim, integer(component))
        start = k.cast(em.value(block, indices, tuple(position), mask), i64)
        last = x.shape[dim] - op.slice_sizes[dim]
        at[dim] = ix.add(at[dim], block.let(_clamped(start, 0, last), "g"))
    return em.value(block, x, tuple(at), mask)


def _dynamic_slice(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    op = node.op
    assert isinstance(op, ops.DynamicSlice)
    x, *starts = node.inputs
    at = zip(index, slice_starts(em, block, starts, x.shape, op.sizes), strict=True)
    return em.value(block, x, tuple(ix.add(e, start) for e, start in at), mask)


def slice_starts(em: Emitter, block: Block, starts: Sequence[Node], shape: Shape, sizes: Shape) -> list[Expr]:
    """The starts of a window of `sizes` in a value of `shape`: read at run time, and clamped so that it fits."""
    unclamped = [k.cast(em.value(block, s, (), None), i64) for s in starts]
    return [block.let(_clamped(e, 0, n - m), "s") for e, n, m in zip(unclamped, shape, sizes, strict=True)]


def _dynamic_update_slice(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    x, update, *starts = node.inputs
    at: list[Expr] = []
    inside: Expr | None = mask
    for d, (e, s) in enumerate(zip(index, slice_starts(em, block, starts, x.shape, update.shape), strict=True)):
        e = ix.sub(e, s)
        inside = mask_and(
            inside, k.binary("and", k.binary("ge", e, ZERO), k.binary("lt", e, dim_expr(update.shape[d])))
        )
        at.append(e)
    if inside is None:
        return em.value(block, update, (), mask)
    inside = block.let(inside, "in")
    new = em.value(block, update, tuple(at), inside)
    return block.let(k.select(inside, new, em.value(block, x, index, mask)))


def _exponential(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    (x,) = node.inputs
    if _is_below_maximum(x):
        return _call_wide(em, block, node, index, mask, "exp_decay")
    if _is_nonpositive(x):
        return _call_wide(em, block, node, index, mask, "exp_nonpositive")
    return em.elementwise(block, node, index, mask)


def _log_one_plus(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    (x,) = node.inputs
    if isinstance(x.op, ops.Exp) and _is_nonpositive(x.inputs[0]):
        return _call_wide(em, block, node, index, mask, "log1p_unit")
    return em.elementwise(block, node, index, mask)


def _call_wide(em: Emitter, block: Block, node: Node, index: Index, mask: Expr | None, fn: str) -> Expr:
    """fn(operand) in f64 if the operand is f64, else in f32."""
    (x,) = node.inputs
    value = k.cast(em.value(block, x, index, mask), f64 if x.dtype == f64 else f32)
    return block.let(k.cast(k.call(fn, value), node.dtype))


def _is_nonpositive(node: Node) -> bool:
    """Whether a node is -|x|, as in max(x, 0) + log(1 + e^-|x|)."""
    return isinstance(node.op, ops.Neg) and isinstance(node.inputs[0].op, ops.Abs)


def _is_below_maximum(node: Node) -> bool:
    """Whether the maximum of its row is subtracted from each value, as in a softmax."""
    if not isinstance(node.op, ops.Sub) or not isinstance(node.inputs[1].op, ops.BroadcastInDim):
        return False
    x, broadcast = node.inputs
    row = maximum = broadcast.inputs[0]
    while isinstance(maximum.op, ops.Reshape):
        (maximum,) = maximum.inputs
    op = maximum.op
    if not isinstance(op, ops.Reduce) or op.kind != "max" or maximum.inputs[0] is not x:
        return False
    assert isinstance(broadcast.op, ops.BroadcastInDim)
    row_dims = [d for d, size in enumerate(x.shape) if d not in op.dims and size != 1]
    broadcast_dims = [d for d, size in zip(broadcast.op.dims, row.shape, strict=True) if size != 1]
    sized = [[size for size in n.shape if size != 1] for n in (row, maximum)]
    return broadcast_dims == row_dims and sized[0] == sized[1]


Rule = Callable[[Emitter, Block, Node, Index, Expr | None], Expr]
_RULES: dict[type, Rule] = {
    Const: _const,
    ops.Exp: _exponential,
    ops.Log1p: _log_one_plus,
    ops.BroadcastInDim: _view,
    ops.Reshape: _reshape,
    ops.Transpose: _view,
    ops.Slice: _view,
    ops.Windows: _view,
    ops.Reverse: _view,
    ops.Pad: _view,
    ops.Concat: concat_at,
    ops.Iota: _iota,
    ops.DimValue: _dim_value,
    ops.Gather: _gather,
    ops.DynamicSlice: _dynamic_slice,
    ops.DynamicUpdateSlice: _dynamic_update_slice,
}
