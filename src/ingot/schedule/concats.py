"""Values of concats at an index, as kernel IR.

    concat(a, b)[i]   ->   i < len(a) ? a[i] : b[i - len(a)]

If all lanes of the index fall into one piece, a branch selects the piece; otherwise each lane is masked. A concat of
parts of one value, such as a padded image, is read at the position in that value.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate
from ingot.ir.kernel import Expr, Lit, Ramp
from ingot.ir.node import Node
from ingot.ops.core.shape import View
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.index import ZERO, Index, dim_expr, integer, mask_and
from ingot.support.errors import CompileError


class Values(Protocol):
    """The source of the values of a concat's pieces: an emitter."""

    def value(self, block: Block, node: Node, index: Index, mask: Expr | None = None) -> Expr:
        """The value of `node` at `index`. Where `mask` is off, no memory is touched and the value is arbitrary."""
        ...


def concat_at(em: Values, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    """The value of a concat at an index. No memory is touched where `mask` is off."""
    op, pieces = node.op, node.inputs
    assert isinstance(op, ops.Concat)
    if not pieces:
        raise CompileError("concat of nothing")
    at = index[op.dimension]
    # neighbours along the innermost dimension are loaded together
    is_one_row = at.lanes == 1 or (at.tile is not None and op.dimension < node.type.rank - 1)
    origin = _common_origin(block, node, index) if len(pieces) > 1 and is_one_row else None
    if origin is not None:
        return em.value(block, *origin, mask)
    if len(pieces) > 1 and _lanes_share_piece(block, pieces, at, op.dimension):
        return _branch_to_piece(em, block, node, index, mask)
    sizes = [estimate(x.shape[op.dimension]) for x in pieces]
    if len(pieces) > 1 and isinstance(at, Ramp) and at.step == 1 and max(sizes) >= 2 * at.lanes:
        return _dominant_piece(em, block, node, index, mask, sizes.index(max(sizes)))
    return _masked_pieces(em, block, node, index, mask, 0, len(pieces))


def _masked_pieces(em: Values, block: Block, node: Node, index: Index, mask: Expr | None, low: int, high: int) -> Expr:
    """The value of a concat among the pieces low ... high - 1, each read under a mask of the lanes in it."""
    axis, starts = _axis(node), _starts(node)
    at, result = index[axis], None
    for i in range(low, high):
        piece_index, in_piece = (*index[:axis], ix.sub(at, dim_expr(starts[i])), *index[axis + 1 :]), None
        if i > low:
            in_piece = k.binary("ge", at, dim_expr(starts[i]))
        if i + 1 < high:
            in_piece = mask_and(in_piece, k.binary("lt", at, dim_expr(starts[i + 1])))
        if in_piece is None:
            return em.value(block, node.inputs[i], piece_index, mask)
        in_piece = block.let(in_piece, "in")
        value = em.value(block, node.inputs[i], piece_index, mask_and(mask, in_piece))
        result = value if result is None else block.let(k.select(in_piece, value, result))
    assert result is not None
    return result


def _common_origin(block: Block, concat: Node, index: Index) -> tuple[Node, Index] | None:
    """The value that all pieces are slices of, forwards or backwards, and the index in it of a scalar position, or
    None: the rows of a padded image are rows of the image."""
    axis, starts = _axis(concat), _starts(concat)
    paths = [_origins(x, axis, ix.sub(index[axis], dim_expr(at))) for x, at in zip(concat.inputs, starts, strict=False)]
    origin = next((n for n in paths[0] if all(n in path for path in paths)), None)
    if origin is None:
        return None
    selected = paths[-1][origin]
    for path, end in reversed([*zip(paths[:-1], starts[1:-1], strict=True)]):
        selected = k.select(k.binary("lt", index[axis], dim_expr(end)), path[origin], selected)
    position = block.home(selected).let(selected, "at")
    return origin, (*index[:axis], position, *index[axis + 1 :])


def _origins(node: Node, axis: int, at: Expr) -> dict[Node, Expr]:
    """The node and the values that it is a slice, reversal or broadcast of along `axis` alone, each with the position
    that corresponds to `at` in the node."""
    positions = {node: at}
    while isinstance(op := node.op, View):
        x, *_ = node.inputs
        is_partial = (*x.shape[:axis], *x.shape[axis + 1 :]) == (*node.shape[:axis], *node.shape[axis + 1 :])
        match op:
            case ops.Slice() if is_partial:
                at = ix.add(ix.mul(at, integer(op.strides[axis])), dim_expr(op.start[axis]))
            case ops.Reverse() if op.dims == (axis,):
                at = ix.sub(dim_expr(x.shape[axis] - 1), at)
            case ops.BroadcastInDim() if is_partial and op.dims == tuple(range(node.type.rank)):
                at = ZERO if x.shape[axis] == 1 else at
            case _:
                break
        node = x
        positions[node] = at
    return positions


def _lanes_share_piece(block: Block, pieces: Sequence[Node], at: Expr, axis: int) -> bool:
    """Whether all lanes of the position `at` along `axis`, which is no tile, are known to fall into the same piece of a
    concat."""
    if ix.lane_step(at) == 0:
        return at.tile is None
    is_aligned = isinstance(at, Ramp) and at.step == 1 and ix.multiple_of(at.base, block.multiples) % at.lanes == 0
    return is_aligned and all(isinstance(n := x.shape[axis], int) and n % at.lanes == 0 for x in pieces[:-1])


def _axis(concat: Node) -> int:
    assert isinstance(concat.op, ops.Concat)
    return concat.op.dimension


def _starts(concat: Node) -> list[DimLike]:
    """The starts of the pieces, and the end of the last one."""
    return list(itertools.accumulate((x.shape[_axis(concat)] for x in concat.inputs), initial=0))


def _lane_count(index: Index, mask: Expr | None) -> int:
    """The number of lanes of a read: those of the index or of the mask."""
    return max(e.lanes for e in (*index, *(() if mask is None else (mask,))))


def _shifted(block: Block, index: Index, axis: int, offset: DimLike) -> Index:
    """The index minus `offset` along `axis`, bound to a name in this block so that no load is hoisted out of it."""
    first, base = ix.first_lane(index[axis]), block.fresh("at")
    block.stmts.append(k.Let(base, k.sub(first, dim_expr(offset))))
    return (*index[:axis], k.ramp(base, index[axis].lanes), *index[axis + 1 :])


def _dominant_piece(em: Values, block: Block, node: Node, index: Index, mask: Expr | None, piece: int) -> Expr:
    """The value of a concat in which one long `piece` holds most vectors: those are plain loads, the others masked."""
    axis, starts, lanes = _axis(node), _starts(node), _lane_count(index, mask)
    result, first = block.alloc("concat", node.dtype, 1, lanes=lanes), ix.first_lane(index[axis])
    count, size = len(node.inputs), node.inputs[piece].shape[axis]

    def read_piece(b: Block) -> None:
        value = em.value(b, node.inputs[piece], _shifted(b, index, axis, starts[piece]), mask)
        b.store(result, ZERO, k.splat(value, lanes))

    def read_masked(b: Block, low: int, high: int) -> None:
        value = _masked_pieces(em, b, node, _shifted(b, index, axis, 0), mask, low, high)
        b.store(result, ZERO, k.splat(value, lanes))

    def read_from_start(b: Block) -> None:
        if piece + 1 == count:
            return read_piece(b)
        is_within = k.binary("le", k.add(first, integer(index[axis].lanes)), dim_expr(starts[piece + 1]))
        return b.when(is_within, read_piece, lambda c: read_masked(c, piece, count))

    if piece:
        # a piece of symbolic size may end before the vector does
        high = piece + 1 if isinstance(size, int) else count
        block.when(k.binary("ge", first, dim_expr(starts[piece])), read_from_start, lambda b: read_masked(b, 0, high))
    else:
        read_from_start(block)
    return block.let(k.load(result, ZERO), "c")


def _branch_to_piece(em: Values, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    """The value of a concat by branches: masked-off loads are slow if they would fall outside of mapped memory."""
    axis, starts, lanes = _axis(node), _starts(node), _lane_count(index, mask)
    first = ix.first_lane(index[axis])
    static_starts = [at for at in starts if isinstance(at, int)]
    if isinstance(first, Lit) and len(static_starts) == len(starts):
        piece = max(i for i, at in enumerate(static_starts[:-1]) if at <= first.value)
        at = ix.sub(index[axis], integer(static_starts[piece]))
        return em.value(block, node.inputs[piece], (*index[:axis], at, *index[axis + 1 :]), mask)
    result = block.alloc("concat", node.dtype, 1, lanes=lanes)

    def search(b: Block, low: int, high: int) -> None:
        """Binary search for the piece of the position among low ... high - 1."""
        if high - low > 1:
            middle = (low + high) // 2
            is_below = k.binary("lt", first, dim_expr(starts[middle]))
            b.when(is_below, lambda c: search(c, low, middle), lambda c: search(c, middle, high))
            return
        at = _shifted(b, index, axis, starts[low])
        b.multiples[getattr(ix.first_lane(at[axis]), "name", "")] = index[axis].lanes
        b.store(result, ZERO, k.splat(em.value(b, node.inputs[low], at, mask), lanes))

    search(block, 0, len(node.inputs))
    return block.let(k.load(result, ZERO), "c")


__all__ = ["concat_at"]
