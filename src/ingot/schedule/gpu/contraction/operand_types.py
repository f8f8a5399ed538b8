"""The types in which a product reads its operands, and products of f32 by those of bf16.

BF16x6. A number of f32 has 24 bits, and is the sum of three limbs of bf16, which have 8 and a sign each:

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
from ingot.ir.dims import DimLike, estimate
from ingot.ir.kernel import Expr
from ingot.ir.node import Node
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f16, f32, i8
from ingot.ops import Convolution, Dequantize, DotGeneral
from ingot.schedule.block import Block
from ingot.schedule.gpu.blocks import constant_tile
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

PRODUCT_DTYPES = (f16, bf16, f32, i8)
F8_DTYPES = (f8e4m3fn, f8e5m2)  # from sm_89 on; either can be multiplied by the other
DTYPES_EXACT_IN_F16 = (*F8_DTYPES, f8e4m3fnuz, f8e5m2fnuz)
LIMBS, LIMB_SCALE = 3, 2.0**8
MIN_SIDE_BF16X6 = 64  # rows, columns and terms of products that gain from it
MIN_MULTIPLY_ADDS_BF16X6 = 1 << 29  # of these: fewer take less time than limbs


@dataclass(frozen=True)
class Multiplied:
    """dtypes: of tiles of A and B; None for types without products of tiles. tf32: whether these, of f32, are cut to
    TF32. bf16x6: whether these, of f32, are multiplied as limbs of bf16 (see module). from_registers: whether these can
    be read from registers alone, in any order."""

    dtypes: tuple[DType, DType] | None
    tf32: bool = False
    bf16x6: bool = False
    from_registers: bool = False

    @staticmethod
    def of(anchor: Node, machine: Machine, sizes: tuple[DimLike, DimLike, DimLike]) -> Multiplied:
        """How `machine` multiplies the operands of a contraction. sizes: rows, columns and terms."""
        op, x, y = anchor.op, *(x.dtype for x in anchor.inputs)
        if machine.has_f8_products and x in F8_DTYPES and y in F8_DTYPES:
            return Multiplied((x, y))
        if x in DTYPES_EXACT_IN_F16 and y in DTYPES_EXACT_IN_F16:
            return Multiplied((f16, f16))
        if x != y or x not in PRODUCT_DTYPES:
            return Multiplied(None)
        assert isinstance(op, DotGeneral | Convolution)
        if x != f32 or anchor.dtype != f32:
            return Multiplied((x, y))
        if machine.has_tf32 and op.tf32:
            return Multiplied((x, y), tf32=True, from_registers=not machine.multiplies_shared_memory)
        rows, columns, terms = map(estimate, sizes)
        count = rows * columns * terms
        is_large = min(rows, columns, terms) >= MIN_SIDE_BF16X6 and count >= MIN_MULTIPLY_ADDS_BF16X6
        has_levels = isinstance(anchor.inputs[1].op, Dequantize)
        return Multiplied((x, y), bf16x6=op.tf32 is None and machine.gains_by_bf16x6 and is_large and not has_levels)

    @property
    def by_tensor_cores(self) -> bool:
        return self.dtypes is not None and (self.tf32 or self.bf16x6 or self.dtypes[0] != f32)

    @property
    def needs_contiguous_terms(self) -> bool:
        """Whether tensor cores read the operands only if their terms are contiguous in shared memory."""
        is_ordered = self.by_tensor_cores and not self.from_registers and not self.bf16x6
        return is_ordered and self.dtypes is not None and self.dtypes[0].bits != 16

    def product(self, block: Block, x: Expr, y: Expr, total: Expr) -> Expr:
        """x @ y + total of tiles of A and B."""
        if not self.bf16x6:
            return k.tile_product(x, y, total, self.tf32)
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


__all__ = ["LIMBS", "LIMB_SCALE", "Multiplied", "limbs"]
