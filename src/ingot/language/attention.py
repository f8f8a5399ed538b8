"""How the tokens of a step attend to their sequences: those of one chunk, or rows of many sequences.

Chunk: tokens of sequences of one length       Rows: a token or a chunk of each of several sequences
y = attention(q, keys, values of the caches)   for each sequence:  its pages -> y of its rows
                                               PagedRows: y = paged attention(q of all rows, pools, tables, lengths)
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
    pages_of,
    read,
    read_pages,
    recent,
    ring_positions,
    through_ring,
    with_rows,
)
from ingot.language.engine.paging import PAGE
from ingot.support.dataclass import dataclass

UpdatedCaches = tuple[Node, ...]  # the caches, updated with the tokens of a step


class Tokens(Protocol):
    """The tokens of a step, with their positions in their sequences."""

    def rows(self, table: Node, tokens: DimLike) -> Node:
        """The rows of a table, [context, width], at the tokens' positions."""
        ...

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, UpdatedCaches]:
        """(f32[batch, heads, tokens, width], updated caches). window: the tokens that a token attends to; 0: all."""
        ...

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, UpdatedCaches]:
        """A causal convolution of each channel: f32[batch, tokens, width], with taps f32[width, size]."""
        ...


@dataclass(frozen=True)
class Chunk(Position):
    """Tokens of sequences of equal length, from a position on."""

    def rows(self, table: Node, tokens: DimLike) -> Node:
        if self.size is None:
            return ops.DynamicSlice((1, table.shape[1]))(table, self.value, ops.scalar(0, i64))
        return ops.Slice((self.size, 0), (self.size + tokens, table.shape[1]), (1, 1))(table)

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, UpdatedCaches]:
        tokens, half = q.shape[2], len(caches) // 2
        if caches and window and caches[0].shape[2] == window:
            (keys, visible_keys), (values, visible_values) = (
                through_ring(caches[:half], k, self),
                through_ring(caches[half:], v, self),
            )
            queries = ops.add(ops.arange(tokens), self.value)
            window_mask = _in_window(ring_positions(window, tokens, self), queries, window)
            return ops.Attention("none", a.attention_scale, a.attention_cap)(
                q, visible_keys, visible_values, window_mask
            ), (*keys, *values)
        if not caches:
            return _attention(a, self, window, q, k, v, 0, mask, is_cut=False), ()
        keys, values = with_rows(caches[:half], k, self), with_rows(caches[half:], v, self)
        if self.size is None:
            batch = q.shape[0]
            tables = ops.expand_dims(ops.arange(batch), 1)
            ends = ops.broadcast_to(ops.add(self.value, 1), (batch,))
            return _paged_attention(a, window, q, keys, values, tables, ends), (*keys, *values)
        (visible_keys, first), (visible_values, _) = (read(cache, self, tokens, window) for cache in (keys, values))
        return _attention(a, self, window, q, visible_keys, visible_values, first, mask), (*keys, *values)

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, UpdatedCaches]:
        batch, _, width = x.shape
        past = recent(caches[0], self) if caches else ops.full((batch, taps.shape[1] - 1, width), 0.0)
        y, new_cache = _convolution(past, x, taps)
        return y, (new_cache,)


ROW_END, CHUNK_END, CHUNK_ROWS = symbol("$row_end"), symbol("$chunk_end"), symbol("$chunk_rows")
_Place = tuple[Node, Node, Chunk, DimLike]  # (sequence, its first row, the position of that, the number of rows)
_Body = Callable[[Sequence[Node], Sequence[Node], _Place], tuple[Node, ...]]  # (operands, values, place) -> values


@dataclass(frozen=True)
class Rows:
    """Rows of several sequences: i64[rows] with their positions, their sequences, and the slots of the pool for their
    keys and values (out of bounds: they are not stored). tables: the pages of each sequence, i64[sequences, pages].

    The first `singles` rows, i64[], are computed one by one: a row attends to all earlier tokens of its sequence,
    including rows of this step. The others form `chunks`, i64[], of consecutive rows of one sequence each, which begin
    at the rows `starts` and have `lengths` rows, i64[sequences]. The bits of a row do not depend on other rows.
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
    ) -> tuple[Node, UpdatedCaches]:
        half = len(caches) // 2
        pools = (*in_pages(caches[:half], k, self.slots), *in_pages(caches[half:], v, self.slots))
        heads, width = a.heads, a.head_width

        def body(operands: Sequence[Node], values: Sequence[Node], place: _Place) -> tuple[Node, ...]:
            (q, tables, *pools), (y,) = operands, values
            sequence, row, at, tokens = place
            zero = ops.scalar(0, i64)
            queries = ops.DynamicSlice((1, heads, tokens, width))(q, zero, zero, row, zero)
            table = ops.reshape(ops.DynamicSlice((1, tables.shape[1]))(tables, sequence, zero), (tables.shape[1],))
            (visible_keys, first), (visible_values, _) = (
                read_pages(part, table, at, tokens, window) for part in (pools[:half], pools[half:])
            )
            result = _attention(a, at, window, queries, visible_keys, visible_values, first, None, is_cut=False)
            return (ops.DynamicUpdateSlice()(y, result, zero, zero, row, zero),)

        (y,) = self._for_each(body, (q, self.tables, *pools), (ops.full(q.shape, 0.0),))
        return y, pools

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, UpdatedCaches]:
        width, size = taps.shape

        def body(operands: Sequence[Node], values: Sequence[Node], place: _Place) -> tuple[Node, ...]:
            (x, taps), (y, cache) = operands, values
            sequence, row, at, tokens = place
            zero = ops.scalar(0, i64)
            tokens_x = ops.DynamicSlice((1, tokens, width))(x, zero, row, zero)
            past = recent(ops.DynamicSlice((1, size - 1, width))(cache, sequence, zero, zero), at)
            result, new_cache = _convolution(past, tokens_x, taps)
            update = ops.DynamicUpdateSlice()
            return update(y, result, zero, row, zero), update(cache, new_cache, sequence, zero, zero)

        y, cache = self._for_each(body, (x, taps), (ops.full(x.shape, 0.0), caches[0]))
        return y, (cache,)

    def _for_each(self, body: _Body, operands: Sequence[Node], values: Sequence[Node]) -> tuple[Node, ...]:
        """The values after an iteration for each single row, then for each chunk. operands: loop invariants."""
        max_positions = self.tables.shape[1] * PAGE

        def single(
            i: Node, operands: Sequence[Node], values: Sequence[Node]
        ) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
            positions, sequences, *operands = operands
            position = _at(positions, i)
            after = body(operands, values, (_at(sequences, i), i, Chunk(ROW_END - 1, position), 1))
            return after, (ops.add(position, 1),)

        def chunk(
            i: Node, operands: Sequence[Node], values: Sequence[Node]
        ) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
            positions, sequences, starts, lengths, *operands = operands
            row, rows = _at(starts, i), _at(lengths, i)
            position = _at(positions, row)
            at = Chunk(CHUNK_END - CHUNK_ROWS, position)
            return body(operands, values, (_at(sequences, row), row, at, CHUNK_ROWS)), (rows, ops.add(position, rows))

        facts = (self.positions, self.sequences)
        values = loop(self.singles, (*facts, *operands), values, single, ((str(ROW_END), max_positions),))
        sizes = ((str(CHUNK_ROWS), self.positions.shape[0]), (str(CHUNK_END), max_positions))
        return loop(self.chunks, (*facts, self.starts, self.lengths, *operands), values, chunk, sizes)


@dataclass(frozen=True)
class PagedRows:
    """Rows as `Rows` has them, all at once, for targets whose attention finds each row's keys by itself. tables: the
    pages of each row's sequence, i64[rows, pages]. A row attends to earlier rows of this step, too: all keys are stored
    before. Convolutions, whose rows depend on each other, are not supported."""

    positions: Node
    slots: Node
    tables: Node

    def rows(self, table: Node, tokens: DimLike) -> Node:
        return ops.Take(0)(table, self.positions)

    def attended(
        self, a: Architecture, window: int, q: Node, k: Node, v: Node, caches: Sequence[Node], mask: Node | None
    ) -> tuple[Node, UpdatedCaches]:
        half = len(caches) // 2
        keys, values = in_pages(caches[:half], k, self.slots), in_pages(caches[half:], v, self.slots)
        by_row = ops.transpose(q, (2, 1, 0, 3))  # each row is a sequence of one query
        y = _paged_attention(a, window, by_row, keys, values, self.tables, ops.add(self.positions, 1))
        return ops.transpose(y, (2, 1, 0, 3)), (*keys, *values)

    def convolved(self, x: Node, taps: Node, caches: Sequence[Node]) -> tuple[Node, UpdatedCaches]:
        raise NotImplementedError("rows of a convolution depend on each other: see Rows")


def _paged_attention(
    a: Architecture, window: int, q: Node, keys: Sequence[Node], values: Sequence[Node], tables: Node, ends: Node
) -> Node:
    """Attention of one query of each row, [rows, heads, 1, width], to the last of the first `ends` tokens. keys,
    values: tensors of a cache."""
    (k, *key_scales), (v, *value_scales) = pages_of(keys), pages_of(values)
    op = ops.PagedAttention(a.attention_scale, a.attention_cap, window, scaled=bool(key_scales))
    return op(q, k, v, *key_scales, *value_scales, tables, ends)


def loop(
    count: Node,
    read: Sequence[Node],
    values: Sequence[Node],
    body: Callable[[Node, Sequence[Node], Sequence[Node]], tuple[tuple[Node, ...], tuple[Node, ...]]],
    sizes: tuple[tuple[str, DimLike], ...] = (),
) -> tuple[Node, ...]:
    """The values after `count` iterations. read: loop invariants. body: (iteration, invariants, values) -> (values, the
    values of `sizes`)."""
    before = (ops.scalar(0, i64), count, *read, *values)
    i, last, *rest = inputs = [Input(f"value {n}", node.type)() for n, node in enumerate(before)]
    shared, rest = rest[: len(read)], rest[len(read) :]
    after, size_values = body(i, shared, rest)
    cond = Graph(tuple(inputs), (ops.compare("LT", i, last),))
    body_graph = Graph(tuple(inputs), (ops.add(i, 1), last, *shared, *after, *size_values), sizes=sizes)
    return ops.While(cond, body_graph)(*before).results[len(before) - len(values) :]


def _at(values: Node, i: Node) -> Node:
    return ops.reshape(ops.DynamicSlice((1,))(values, i), ())


def _attention(
    a: Architecture, at: Position, window: int, q: Node, k: Node, v: Node, first: DimLike, mask: Node | None,
    *, is_cut: bool = True,
) -> Node:  # fmt: skip
    """Attention of queries from position `at` on to keys from position `first` on. is_cut: the keys are cut to the
    window of a single token."""
    tokens = q.shape[2]
    operands = [q, k, v, *([] if mask is None else [mask])]
    assert at.size is not None
    if window and (tokens != 1 or not is_cut):
        # the first key that each token attends to
        rows = ops.add(ops.arange(tokens), ops.scalar(at.size - first - window + 1, i64))
        operands.append(ops.compare("GE", ops.arange(k.shape[2]), ops.expand_dims(rows, 1)))
    causal = "lower_right" if a.causal and tokens != 1 else "none"
    return ops.Attention(causal, a.attention_scale, a.attention_cap)(*operands)


def _in_window(keys: Node, queries: Node, window: int) -> Node:
    """bool[queries, keys]: whether a key's position is not negative, not after the query's, and within its window."""
    queries = ops.expand_dims(queries, 1)
    is_near = ops.compare("GT", keys, ops.sub(queries, window))
    return ops.and_(ops.and_(is_near, ops.compare("LE", keys, queries)), ops.compare("GE", keys, 0))


def _convolution(past: Node, x: Node, taps: Node) -> tuple[Node, Node]:
    """(y, the last size - 1 tokens, for the next step), for x: f32[batch, tokens, width] after past:
    f32[batch, size - 1, width]."""
    size, tokens = taps.shape[1], x.shape[1]
    assert isinstance(size, int)
    sequence = ops.concat([past, x], 1)
    parts = [ops.mul(ops.slice_axis(sequence, 1, j, tokens + j), ops.index_axis(taps, 1, j)) for j in range(size)]
    return functools.reduce(ops.add, parts), ops.slice_axis(sequence, 1, tokens, tokens + size - 1)
