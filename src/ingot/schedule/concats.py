"""Values of concats at an index, as kernel IR.

    concat(a, b)[i]   ->   i < len(a) ? a[i] : b[i - len(a)]

By a branch where all lanes of the index lie in one piece, lane by lane elsewhere; a concat of parts of one value, such
as a padded image, by the place in that value.
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
from ingot.schedule.index import ZERO, Index, both, dim_expr, integer
from ingot.support.errors import CompileError


class Values(Protocol):
    """Whoever knows the values of a concat's pieces: an emitter."""

    def value(self, block: Block, node: Node, index: Index, mask: Expr | None = None) -> Expr:
        """The value of `node` at `index`; where `mask` is off no memory is touched and the value is arbitrary."""
        ...


def concat_at(em: Values, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    """The value of a concat at an index; where `mask` is off no memory is touched."""
    op, pieces = node.op, node.inputs
    assert isinstance(op, ops.Concat)
    if not pieces:
        raise CompileError("concat of nothing")
    at = index[op.dimension]
    shared = _shared(block, node, index) if len(pieces) > 1 and at.lanes == 1 else None
    if shared is not None:
        return em.value(block, *shared, mask)
    if len(pieces) > 1 and _in_one_piece(block, pieces, at, op.dimension):
        return _chosen(em, block, node, index, mask)
    sizes = [estimate(x.shape[op.dimension]) for x in pieces]
    if len(pieces) > 1 and isinstance(at, Ramp) and at.step == 1 and max(sizes) >= 2 * at.lanes:
        return _mostly(em, block, node, index, mask, sizes.index(max(sizes)))
    return _by_masks(em, block, node, index, mask, 0, len(pieces))


def _by_masks(em: Values, block: Block, node: Node, index: Index, mask: Expr | None, low: int, high: int) -> Expr:
    """A concat's value lane by lane, in the pieces low ... high - 1: each is read where it is."""
    axis, starts = _axis(node), _starts(node)
    at, result = index[axis], None
    for i in range(low, high):
        own, here = (*index[:axis], ix.sub(at, dim_expr(starts[i])), *index[axis + 1 :]), None
        if i > low:
            here = k.binary("ge", at, dim_expr(starts[i]))
        if i + 1 < high:
            here = both(here, k.binary("lt", at, dim_expr(starts[i + 1])))
        if here is None:
            return em.value(block, node.inputs[i], own, mask)
        here = block.let(here, "in")
        value = em.value(block, node.inputs[i], own, both(mask, here))
        result = value if result is None else block.let(k.select(here, value, result))
    assert result is not None
    return result


def _shared(block: Block, concat: Node, index: Index) -> tuple[Node, Index] | None:
    """What all pieces are parts of, forwards or backwards, and the index in it of a scalar position: lines of a padded
    image are lines of the image. None where there is no such thing."""
    axis, starts = _axis(concat), _starts(concat)
    paths = [_origins(x, axis, ix.sub(index[axis], dim_expr(at))) for x, at in zip(concat.inputs, starts, strict=False)]
    origin = next((n for n in paths[0] if all(n in path for path in paths)), None)
    if origin is None:
        return None
    chosen = paths[-1][origin]
    for path, end in reversed([*zip(paths[:-1], starts[1:-1], strict=True)]):
        chosen = k.select(k.binary("lt", index[axis], dim_expr(end)), path[origin], chosen)
    own = block.home(chosen).let(chosen, "at")
    return origin, (*index[:axis], own, *index[axis + 1 :])


def _origins(node: Node, axis: int, at: Expr) -> dict[Node, Expr]:
    """A node and what it is a part of along `axis` alone, forwards, backwards or repeated, and the position there of
    the position `at` in the node."""
    found = {node: at}
    while isinstance(op := node.op, View):
        x, *_ = node.inputs
        others = (*x.shape[:axis], *x.shape[axis + 1 :]) == (*node.shape[:axis], *node.shape[axis + 1 :])
        match op:
            case ops.Slice() if others:
                at = ix.add(ix.mul(at, integer(op.strides[axis])), dim_expr(op.start[axis]))
            case ops.Reverse() if op.dims == (axis,):
                at = ix.sub(dim_expr(x.shape[axis] - 1), at)
            case ops.BroadcastInDim() if others and op.dims == tuple(range(node.type.rank)):
                at = ZERO if x.shape[axis] == 1 else at
            case _:
                break
        node = x
        found[node] = at
    return found


def _in_one_piece(block: Block, pieces: Sequence[Node], at: Expr, axis: int) -> bool:
    """Whether all lanes of the position `at` along `axis` surely lie in the same piece of a concat."""
    if ix.lane_step(at) == 0:
        return True
    aligned = isinstance(at, Ramp) and at.step == 1 and ix.multiple_of(at.base, block.multiples) % at.lanes == 0
    return aligned and all(isinstance(n := x.shape[axis], int) and n % at.lanes == 0 for x in pieces[:-1])


def _axis(concat: Node) -> int:
    assert isinstance(concat.op, ops.Concat)
    return concat.op.dimension


def _starts(concat: Node) -> list[DimLike]:
    """Where its pieces start, and where the last one ends."""
    return list(itertools.accumulate((x.shape[_axis(concat)] for x in concat.inputs), initial=0))


def _all_lanes(index: Index, mask: Expr | None) -> int:
    """A scalar position under a mask of many lanes is read in as many."""
    return max(e.lanes for e in (*index, *(() if mask is None else (mask,))))


def _moved(block: Block, index: Index, axis: int, by: DimLike) -> Index:
    """The index `by` further up along `axis`, by a name of this block's own, so that no load moves out of it."""
    first, own = ix.first_lane(index[axis]), block.fresh("at")
    block.stmts.append(k.Let(own, k.sub(first, dim_expr(by))))
    return (*index[:axis], k.ramp(own, index[axis].lanes), *index[axis + 1 :])


def _mostly(em: Values, block: Block, node: Node, index: Index, mask: Expr | None, piece: int) -> Expr:
    """A concat's value where most vectors lie in one long `piece`: these are plain reads, those before and behind
    masked."""
    axis, starts, lanes = _axis(node), _starts(node), _all_lanes(index, mask)
    result, first = block.alloc("concat", node.dtype, 1, lanes=lanes), ix.first_lane(index[axis])
    count, size = len(node.inputs), node.inputs[piece].shape[axis]

    def plain(b: Block) -> None:
        value = em.value(b, node.inputs[piece], _moved(b, index, axis, starts[piece]), mask)
        b.store(result, ZERO, k.splat(value, lanes))

    def masked(b: Block, low: int, high: int) -> None:
        value = _by_masks(em, b, node, _moved(b, index, axis, 0), mask, low, high)
        b.store(result, ZERO, k.splat(value, lanes))

    def from_start(b: Block) -> None:
        if piece + 1 == count:
            return plain(b)
        fits = k.binary("le", k.add(first, integer(index[axis].lanes)), dim_expr(starts[piece + 1]))
        return b.when(fits, plain, lambda c: masked(c, piece, count))

    if piece:
        # a piece of unknown size may end before the vector does
        high = piece + 1 if isinstance(size, int) else count
        block.when(k.binary("ge", first, dim_expr(starts[piece])), from_start, lambda b: masked(b, 0, high))
    else:
        from_start(block)
    return block.let(k.load(result, ZERO), "c")


def _chosen(em: Values, block: Block, node: Node, index: Index, mask: Expr | None) -> Expr:
    """A concat's value by branches: loads that are off are slow where they would fall outside of mapped memory."""
    axis, starts, lanes = _axis(node), _starts(node), _all_lanes(index, mask)
    first = ix.first_lane(index[axis])
    known = [at for at in starts if isinstance(at, int)]
    if isinstance(first, Lit) and len(known) == len(starts):
        piece = max(i for i, at in enumerate(known[:-1]) if at <= first.value)
        at = ix.sub(index[axis], integer(known[piece]))
        return em.value(block, node.inputs[piece], (*index[:axis], at, *index[axis + 1 :]), mask)
    result = block.alloc("concat", node.dtype, 1, lanes=lanes)

    def among(b: Block, low: int, high: int) -> None:
        """The value where the position lies in one of the pieces low ... high - 1."""
        if high - low > 1:
            middle = (low + high) // 2
            below = k.binary("lt", first, dim_expr(starts[middle]))
            b.when(below, lambda c: among(c, low, middle), lambda c: among(c, middle, high))
            return
        at = _moved(b, index, axis, starts[low])
        b.multiples[getattr(ix.first_lane(at[axis]), "name", "")] = index[axis].lanes
        b.store(result, ZERO, k.splat(em.value(b, node.inputs[low], at, mask), lanes))

    among(block, 0, len(node.inputs))
    return block.let(k.load(result, ZERO), "c")


__all__ = ["concat_at"]
