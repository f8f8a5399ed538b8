"""The types in which a product reads its operands."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, estimate
from ingot.ir.kernel import Expr
from ingot.ir.node import Node
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f16, f32, i8
from ingot.ops import Convolution, Dequantize, DotGeneral
from ingot.schedule.block import Block
from ingot.schedule.gpu.contraction.limbs import product_by_limbs
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

PRODUCT_DTYPES = (f16, bf16, f32, i8)
F8_DTYPES = (f8e4m3fn, f8e5m2)  # from sm_89 on; either can be multiplied by the other
DTYPES_EXACT_IN_F16 = (*F8_DTYPES, f8e4m3fnuz, f8e5m2fnuz)
MIN_SIDE_BF16X6 = 64  # rows, columns and terms of products that gain from it
MIN_MULTIPLY_ADDS_BF16X6 = 1 << 29  # of these: fewer take less time than limbs


@dataclass(frozen=True)
class Multiplied:
    """dtypes: of tiles of A and B; None for types without products of tiles. tf32: whether these, of f32, are cut to
    TF32. bf16x6: whether these, of f32, are multiplied as limbs of bf16 (`limbs.py`). from_registers: whether these can
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
        if self.bf16x6:
            return product_by_limbs(block, x, y, total)
        return k.tile_product(x, y, total, self.tf32)


__all__ = ["Multiplied"]
