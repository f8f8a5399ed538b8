"""BF16x6: products of f32 by those of bf16.

A number of f32 has 24 bits, and is the sum of three limbs of bf16, which have 8 and a sign each:

    x = x0 + 2^-8 x1 + 2^-16 x2         x0 = bf16(x), x1 = bf16(2^8 (x - x0)), ...
    x y = x0 y0 + 2^-8 (x0 y1 + x1 y0) + 2^-16 (x0 y2 + x1 y1 + x2 y0)

Limbs are scaled, so that those of small numbers are exact, too. What the six products leave out is below 2^-24 of x y,
as is the rounding of a multiply-add. Tensor cores cut what they add instead of rounding it, so they add a k-step alone,
which is then added to the total. Limbs of denormal numbers, whose first one has fewer bits, are NaN, as are those of
infinities and of what bf16 rounds to these. Where a result is not finite, its tile is computed again by multiply-adds.
"""

from __future__ import annotations

import math

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr
from ingot.ir.types import bf16, f32
from ingot.schedule.block import Block
from ingot.schedule.gpu.blocks import constant_tile

LIMBS, LIMB_SCALE = 3, 2.0**8


def product_by_limbs(block: Block, x: Expr, y: Expr, total: Expr) -> Expr:
    """x @ y + total of tiles of f32."""
    xs, ys = limbs(block, x), limbs(block, y)
    assert total.tile is not None
    own: Expr = constant_tile(f32, total.tile)
    for level in reversed(range(LIMBS)):
        for i in range(level + 1):
            own = block.let(k.tile_product(xs[i], ys[level - i], own), "own")
        if level:
            own = block.let(k.mul(own, constant_tile(f32, total.tile, 1 / LIMB_SCALE)), "own")
    return k.add(total, own)


def limbs(block: Block, x: Expr) -> list[Expr]:
    """Those of a tile of f32."""
    tile = x.tile
    assert tile is not None
    zero, min_normal, nan = (constant_tile(f32, tile, value) for value in (0, 2.0**-126, math.nan))
    is_denormal = k.binary("and", k.binary("lt", k.unary("abs", x), min_normal), k.binary("ne", x, zero))
    x = block.let(k.select(is_denormal, nan, x), "normal")
    found = [block.let(k.cast(x, bf16), "limb")]
    while len(found) < LIMBS:
        rest = k.sub(x, k.cast(found[-1], f32))
        x = block.let(k.mul(rest, constant_tile(f32, tile, LIMB_SCALE)), "rest")
        found.append(block.let(k.cast(x, bf16), "limb"))
    return found


__all__ = ["LIMBS", "LIMB_SCALE", "limbs", "product_by_limbs"]
