"""Transposing square blocks of vectors in registers, and folding many vectors at once.

4 rows of 4 lanes   ->   2 stages of pairwise shuffles   ->   4 columns of 4 lanes
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.types import DType, f16, i16
from ingot.schedule.block import Block

SEGMENT = 16  # bytes within which all machines interleave two vectors by one instruction


def stored_as(dtype: DType) -> DType:
    """What elements of `dtype` are moved as: LLVM 22 stores halves past the caches only as integers."""
    return i16 if dtype == f16 else dtype


def transpose_block(block: Block, rows: Sequence[Expr]) -> list[Expr]:
    """Vector j of the result holds lane j of every row. As many rows as lanes, a power of two.

    The place of an element is a number, its row before its lane: interleaving rows i and i + n / 2 rotates its bits to
    the left, taking rows 2i and 2i + 1 apart to the right, and by half of all bits that is a transposition (perfect
    shuffles; Stone 1971). Elements are interleaved within segments, then segments taken apart: one instruction each.
    """
    n, dtype = len(rows), rows[0].dtype
    if (bits := stored_as(dtype)) != dtype:
        return [block.let(k.bitcast(v, dtype), "t") for v in transpose_block(block, [k.bitcast(v, bits) for v in rows])]
    own = min(n, max(1, SEGMENT // dtype.nbytes))
    zipped = [_rotated(block, rows[i : i + own], own, 1) for i in range(0, n, own)]
    columns = [_rotated(block, [part[j] for part in zipped], own, -1) for j in range(own)]
    return [columns[j][i] for i in range(n // own) for j in range(own)]


def _rotated(block: Block, rows: Sequence[Expr], segment: int, way: int) -> list[Expr]:
    """A transposition of the elements within segments (`way` 1), or of whole segments (-1), of so many vectors."""
    out, count = list(rows), len(rows)
    lanes = out[0].lanes
    if way > 0:
        # lane j of each half of a segment, from both vectors
        inner = [[(half * segment + j) // 2 + j % 2 * lanes for j in range(segment)] for half in (0, 1)]
        halves = [tuple(at + j for at in range(0, lanes, segment) for j in half) for half in inner]
    else:
        halves = [
            tuple(at + j for at in range(half * segment, 2 * lanes, 2 * segment) for j in range(segment))
            for half in (0, 1)
        ]
    for _ in range(count.bit_length() - 1):
        pairs = [(out[i], out[i + count // 2]) if way > 0 else (out[2 * i], out[2 * i + 1]) for i in range(count // 2)]
        low, high = ([block.let(k.Shuffle(a.dtype, lanes, a, b, pick), "t") for a, b in pairs] for pick in halves)
        out = [v for pair in zip(low, high, strict=True) for v in pair] if way > 0 else [*low, *high]
    return out


def interleave_segments(block: Block, rows: Sequence[Expr]) -> list[Expr]:
    """Within each segment, the elements of all rows side by side: vector j of the result holds those of the j-th part
    of each segment. As many rows as a power of two, at most as a segment has elements."""
    lanes, dtype = rows[0].lanes, rows[0].dtype
    return _rotated(block, rows, min(lanes, max(1, SEGMENT // dtype.nbytes)), 1)


def fold_lanes(block: Block, vectors: Sequence[Expr], combine: str = "add") -> Expr:
    """One vector whose lane j holds all lanes of `vectors[j]`, combined; of a power of two of vectors.

    n vectors of more than n lanes are taken as segments of n, and segment s of vector j goes to lane s n + j.
    Neighbours are interleaved and combined until one vector is left: 3 (n - 1) operations.
    """
    level = list(vectors)
    lanes = level[0].lanes
    half = 1
    while len(level) > 1:
        low = tuple(j if not j & half else lanes + j - half for j in range(lanes))
        high = tuple(j + half if not j & half else lanes + j for j in range(lanes))
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [
            block.let(
                k.binary(combine, k.Shuffle(a.dtype, lanes, a, b, low), k.Shuffle(a.dtype, lanes, a, b, high)), "t"
            )
            for a, b in pairs
        ]
        half *= 2
    return level[0]
