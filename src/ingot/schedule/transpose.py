"""Transposing square blocks of vectors in registers, and summing many vectors at once.

    4 rows of 4 lanes   ->   2 stages of pairwise shuffles   ->   4 columns of 4 lanes
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.schedule.block import Block


def transpose_block(block: Block, rows: Sequence[Expr]) -> list[Expr]:
    """Vector j of the result holds lane j of every row. As many rows as lanes, a power of two.

    log2(n) stages, each of which swaps the off-diagonal halves of blocks twice the size (Eklundh 1972).
    """
    out = list(rows)
    lanes = len(out)
    half = 1
    while half < lanes:
        low = tuple(j if not j & half else lanes + j - half for j in range(lanes))
        high = tuple(j + half if not j & half else lanes + j for j in range(lanes))
        for i in range(lanes):
            if i & half:
                continue
            a, b = out[i], out[i + half]
            out[i] = block.let(k.Shuffle(a.dtype, lanes, a, b, low), "t")
            out[i + half] = block.let(k.Shuffle(a.dtype, lanes, a, b, high), "t")
        half *= 2
    return out


def sum_lanes(block: Block, vectors: Sequence[Expr]) -> Expr:
    """One vector whose lane j is the sum over the lanes of `vectors[j]`; as many vectors as lanes, a power of two.

    Neighbours are interleaved and added until one vector is left: 3 (n - 1) operations for n sums.
    """
    level = list(vectors)
    lanes = len(level)
    half = 1
    while half < lanes:
        low = tuple(j if not j & half else lanes + j - half for j in range(lanes))
        high = tuple(j + half if not j & half else lanes + j for j in range(lanes))
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [
            block.let(
                k.add(k.Shuffle(a.dtype, lanes, a, b, low), k.Shuffle(a.dtype, lanes, a, b, high)), "t"
            )
            for a, b in pairs
        ]
        half *= 2
    return level[0]
