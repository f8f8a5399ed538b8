"""Transpose square blocks of vectors in registers, and reduce the lanes of many vectors at once.

4 rows of 4 lanes   ->   2 stages of pairwise shuffles   ->   4 columns of 4 lanes
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.types import DType, f16, i16
from ingot.schedule.block import Block

SEGMENT_BYTES = 16  # bytes within which every machine interleaves two vectors with one instruction


def storage_type(dtype: DType) -> DType:
    """The type as which elements of `dtype` are moved: LLVM 22 has non-temporal stores of halves only as integers."""
    return i16 if dtype == f16 else dtype


def transpose_block(block: Block, rows: Sequence[Expr]) -> list[Expr]:
    """Vector j of the result holds lane j of every row. The number of rows is that of lanes, a power of two.

    Number an element by its row, then its lane. Interleaving rows i and i + n / 2 rotates the bits of this number left,
    deinterleaving rows 2i and 2i + 1 rotates them right, and a rotation by half of all bits is a transposition (perfect
    shuffles; Stone 1971). Elements are interleaved within segments, then segments are deinterleaved, each with one
    instruction.
    """
    n, dtype = len(rows), rows[0].dtype
    if (bits := storage_type(dtype)) != dtype:
        return [block.let(k.bitcast(v, dtype), "t") for v in transpose_block(block, [k.bitcast(v, bits) for v in rows])]
    segment = min(n, max(1, SEGMENT_BYTES // dtype.nbytes))
    interleaved = [_rotate(block, rows[i : i + segment], segment, 1) for i in range(0, n, segment)]
    columns = [_rotate(block, [part[j] for part in interleaved], segment, -1) for j in range(segment)]
    return [columns[j][i] for i in range(n // segment) for j in range(segment)]


def _rotate(block: Block, rows: Sequence[Expr], segment: int, direction: int) -> list[Expr]:
    """Transpose the elements within segments (`direction` 1), or full segments (-1), across the vectors."""
    out, count = list(rows), len(rows)
    lanes = out[0].lanes
    if direction > 0:
        # lane j of each half of a segment, from both vectors
        inner = [[(half * segment + j) // 2 + j % 2 * lanes for j in range(segment)] for half in (0, 1)]
        halves = [tuple(at + j for at in range(0, lanes, segment) for j in half) for half in inner]
    else:
        halves = [
            tuple(at + j for at in range(half * segment, 2 * lanes, 2 * segment) for j in range(segment))
            for half in (0, 1)
        ]
    for _ in range(count.bit_length() - 1):
        pairs = [
            (out[i], out[i + count // 2]) if direction > 0 else (out[2 * i], out[2 * i + 1]) for i in range(count // 2)
        ]
        low, high = ([block.let(k.Shuffle(a.dtype, lanes, a, b, pick), "t") for a, b in pairs] for pick in halves)
        out = [v for pair in zip(low, high, strict=True) for v in pair] if direction > 0 else [*low, *high]
    return out


def interleave_segments(block: Block, rows: Sequence[Expr]) -> list[Expr]:
    """Interleave the elements of all rows within each segment: vector j of the result holds those of the j-th part of
    each segment. The number of rows is a power of two, at most the elements of a segment."""
    lanes, dtype = rows[0].lanes, rows[0].dtype
    return _rotate(block, rows, min(lanes, max(1, SEGMENT_BYTES // dtype.nbytes)), 1)


def fold_lanes(block: Block, vectors: Sequence[Expr], combine: str = "add") -> Expr:
    """One vector whose lane j is the reduction of all lanes of `vectors[j]`. The number of vectors is a power of two.

    n vectors of more than n lanes are reduced in segments of n lanes, and segment s of vector j goes to lane s n + j.
    Adjacent vectors are interleaved and combined until one is left: 3 (n - 1) operations.
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
