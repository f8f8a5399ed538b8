"""What the tokens of a step see of their sequences: of one chunk, or row by row of many sequences.

Chunk: tokens of sequences of one length       Rows: a token or a chunk of each of several sequences
y = attention(q, keys, values of the caches)   for each sequence:  its pages -> y of its rows
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import i64
from ingot.language.architecture import Architecture
from ingot.language.cache import (
    Position,
    in_pages,
    read,
    read_pages,
    recent,
    ring_positions,
    through_ring,
    written,
)
from ingot.language.engine.paging import PAGE
from ingot.support.dataclass import dataclass

Kept = tuple[Node, ...]  # caches with the tokens of a step


class Tokens(Protocol):
    """The tokens of a step in their sequences."""

    def rows(self, table: Node, tokens: DimLike) -> Node:
        """Of [context, width] the rows of the tokens' positions."""
        ...

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, Kept]:
        """(f32[batch, heads, tokens, width], caches). window: the last tokens that a token sees; 0: all."""
        ...

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, Kept]:
        """Causal, of each channel: f32[batch, tokens, width], with taps f32[width, size]."""
        ...


@dataclass(frozen=True)
class Chunk(Position):
    """Tokens of sequences of one length, from a position on."""

    def rows(self, table: Node, tokens: DimLike) -> Node:
        return ops.Slice((self.size, 0), (self.size + tokens, table.shape[1]), (1, 1))(table)

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, Kept]:
        tokens, half = q.shape[2], len(caches) // 2
        if caches and window and caches[0].shape[2] == window:
            (keys, seen), (values, taken) = through_ring(caches[:half], k, self), through_ring(caches[half:], v, self)
            queries = ops.add(ops.arange(tokens), self.value)
            visible = _in_window(ring_positions(window, tokens, self), queries, window)
            return ops.Attention("none", a.attention_scale, a.attention_cap)(q, seen, taken, visible), (*keys, *values)
        if not caches:
            return _attention(a, self, window, q, k, v, 0, mask, is_cut=False), ()
        keys, values = written(caches[:half], k, self), written(caches[half:], v, self)
        (seen, first), (taken, _) = (read(cache, self, tokens, window) for cache in (keys, values))
        return _attention(a, self, window, q, seen, taken, first, mask), (*keys, *values)

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, Kept]:
        batch, _, width = x.shape
        past = recent(caches[0], self) if caches else ops.full((batch, taps.shape[1] - 1, width), 0.0)
        y, kept = _convolution(past, x, taps)
        return y, (kept,)


ROW_END, CHUNK_END, CHUNK_ROWS = symbol("$row_end"), symbol("$chunk_end"), symbol("$chunk_rows")
_Place = tuple[Node, Node, Chunk, DimLike]  # a sequence, the first of its rows, where they begin, how many
_Turn = Callable[[Sequence[Node], Sequence[Node], _Place], tuple[Node, ...]]  # (what is read, values) -> values


@dataclass(frozen=True)
class Rows:
    """Rows of several sequences, i64[rows] each: their positions, their sequences, and the slots of the pool where
    their keys and values go (outside of it: nowhere). tables: i64[sequences, pages].

    The first `singles` rows, i64[], are computed one by one: a row sees what stands before it in its sequence, rows of
    this step included. The others are `chunks`, i64[], of neighbours in one sequence each, which begin at the rows
    `starts` and are of `lengths` rows, i64[sequences]. A row has the same bits whatever the others are.
    """

    positions: Node
    sequences: Node
    slots: Node
    tables: Node
    singles: Node
    chunks: Node
    starts: Node
    lengths: Node

    def rows(self, table: Node, tokens: DimLike) -> Node:
        return ops.Take(0)(table, self.positions)

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, Kept]:
        half = len(caches) // 2
        pools = (*in_pages(caches[:half], k, self.slots), *in_pages(caches[half:], v, self.slots))
        heads, width = a.heads, a.head_width

        def turn(read: Sequence[Node], values: Sequence[Node], place: _Place) -> tuple[Node, ...]:
            (q, tables, *pools), (y,) = read, values
            sequence, row, at, tokens = place
            zero = ops.scalar(0, i64)
            own = ops.DynamicSlice((1, heads, tokens, width))(q, zero, zero, row, zero)
            table = ops.reshape(ops.DynamicSlice((1, tables.shape[1]))(tables, sequence, zero), (tables.shape[1],))
            (seen, first), (taken, _) = (
                read_pages(part, table, at, tokens, window) for part in (pools[:half], pools[half:])
            )
            done = _attention(a, at, window, own, seen, taken, first, None, is_cut=False)
            return (ops.DynamicUpdateSlice()(y, done, zero, zero, row, zero),)

        (y,) = self._for_each(turn, (q, self.tables, *pools), (ops.full(q.shape, 0.0),))
        return y, pools

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, Kept]:
        width, size = taps.shape

        def turn(read: Sequence[Node], values: Sequence[Node], place: _Place) -> tuple[Node, ...]:
            (x, taps), (y, cache) = read, values
            sequence, row, at, tokens = place
            zero = ops.scalar(0, i64)
            own = ops.DynamicSlice((1, tokens, width))(x, zero, row, zero)
            past = recent(ops.DynamicSlice((1, size - 1, width))(cache, sequence, zero, zero), at)
            done, kept = _convolution(past, own, taps)
            update = ops.DynamicUpdateSlice()
            return update(y, done, zero, row, zero), update(cache, kept, sequence, zero, zero)

        y, cache = self._for_each(turn, (x, taps), (ops.full(x.shape, 0.0), caches[0]))
        return y, (cache,)

    def _for_each(self, turn: _Turn, read: Sequence[Node], values: Sequence[Node]) -> tuple[Node, ...]:
        """The values after a turn for each single row, then for each chunk. read: what all turns read."""
        most = self.tables.shape[1] * PAGE

        def single(i: Node, read: Sequence[Node], values: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
            positions, sequences, *read = read
            position = _at(positions, i)
            after = turn(read, values, (_at(sequences, i), i, Chunk(ROW_END - 1, position), 1))
            return after, (ops.add(position, 1),)

        def chunk(i: Node, read: Sequence[Node], values: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
            positions, sequences, starts, lengths, *read = read
            row, rows = _at(starts, i), _at(lengths, i)
            position = _at(positions, row)
            at = Chunk(CHUNK_END - CHUNK_ROWS, position)
            return turn(read, values, (_at(sequences, row), row, at, CHUNK_ROWS)), (rows, ops.add(position, rows))

        facts = (self.positions, self.sequences)
        values = loop(self.singles, (*facts, *read), values, single, ((str(ROW_END), most),))
        sizes = ((str(CHUNK_ROWS), self.positions.shape[0]), (str(CHUNK_END), most))
        return loop(self.chunks, (*facts, self.starts, self.lengths, *read), values, chunk, sizes)


def loop(
    count: Node,
    read: Sequence[Node],
    values: Sequence[Node],
    body: Callable[[Node, Sequence[Node], Sequence[Node]], tuple[tuple[Node, ...], tuple[Node, ...]]],
    sizes: tuple[tuple[str, DimLike], ...] = (),
) -> tuple[Node, ...]:
    """The values after `count` turns. body: (the turn, what all turns read, values) -> (values, what `sizes` are)."""
    before = (ops.scalar(0, i64), count, *read, *values)
    i, last, *rest = inputs = [Input(f"value {n}", node.type)() for n, node in enumerate(before)]
    own, rest = rest[: len(read)], rest[len(read) :]
    after, found = body(i, own, rest)
    cond = Graph(tuple(inputs), (ops.compare("LT", i, last),))
    turn = Graph(tuple(inputs), (ops.add(i, 1), last, *own, *after, *found), sizes=sizes)
    return ops.While(cond, turn)(*before).results[len(before) - len(values) :]


def _at(values: Node, i: Node) -> Node:
    return ops.reshape(ops.DynamicSlice((1,))(values, i), ())


def _attention(
    a: Architecture, at: Position, window: int, q: Node, k: Node, v: Node, first: DimLike, mask: Node | None,
    *, is_cut: bool = True,
) -> Node:  # fmt: skip
    """Of queries from `at` on to keys from `first` on. is_cut: a single token sees all that was read."""
    tokens = q.shape[2]
    operands = [q, k, v, *([] if mask is None else [mask])]
    if window and (tokens != 1 or not is_cut):
        # the first key that a token sees
        rows = ops.add(ops.arange(tokens), ops.scalar(at.size - first - window + 1, i64))
        operands.append(ops.compare("GE", ops.arange(k.shape[2]), ops.expand_dims(rows, 1)))
    causal = "lower_right" if a.causal and tokens != 1 else "none"
    return ops.Attention(causal, a.attention_scale, a.attention_cap)(*operands)


def _in_window(keys: Node, queries: Node, window: int) -> Node:
    """bool[queries, keys], of their positions: those that are not below 0 nor behind the query, within its window."""
    queries = ops.expand_dims(queries, 1)
    is_near = ops.compare("GT", keys, ops.sub(queries, window))
    return ops.and_(ops.and_(is_near, ops.compare("LE", keys, queries)), ops.compare("GE", keys, 0))


def _convolution(past: Node, x: Node, taps: Node) -> tuple[Node, Node]:
    """(y, what the next tokens need of these), f32[batch, tokens, width] behind past, f32[batch, size - 1, width]."""
    size, tokens = taps.shape[1], x.shape[1]
    assert isinstance(size, int)
    line = ops.concat([past, x], 1)
    parts = [ops.mul(ops.slice_axis(line, 1, j, tokens + j), ops.index_axis(taps, 1, j)) for j in range(size)]
    return functools.reduce(ops.add, parts), ops.slice_axis(line, 1, tokens, tokens + size - 1)
