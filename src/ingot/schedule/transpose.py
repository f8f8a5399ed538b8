"""Transposing square blocks of vectors in registers, and folding many vectors at once.

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
