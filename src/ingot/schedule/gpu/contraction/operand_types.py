"""The types in which a product reads its operands."""

from __future__ import annotations

from ingot.ir.node import Node
from ingot.ir.types import DType, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f16, f32, i8
from ingot.ops import Convolution, DotGeneral
from ingot.schedule.gpu.machine import Machine
from ingot.support.dataclass import dataclass

PRODUCT_DTYPES = (f16, bf16, f32, i8)
F8_DTYPES = (f8e4m3fn, f8e5m2)  # from sm_89 on; either can be multiplied by the other
DTYPES_EXACT_IN_F16 = (*F8_DTYPES, f8e4m3fnuz, f8e5m2fnuz)


@dataclass(frozen=True)
class Multiplied:
    """dtypes: of tiles of A and B; None for types without products of tiles. tf32: whether these, of f32, are cut to
    TF32. from_registers: whether these can be read from registers alone, in any order."""

    dtypes: tuple[DType, DType] | None
    tf32: bool = False
    from_registers: bool = False

    @staticmethod
    def of(anchor: Node, machine: Machine) -> Multiplied:
        """How `machine` multiplies the operands of a contraction."""
        op, x, y = anchor.op, *(x.dtype for x in anchor.inputs)
        if machine.has_f8_products and x in F8_DTYPES and y in F8_DTYPES:
            return Multiplied((x, y))
        if x in DTYPES_EXACT_IN_F16 and y in DTYPES_EXACT_IN_F16:
            return Multiplied((f16, f16))
        if x != y or x not in PRODUCT_DTYPES:
            return Multiplied(None)
        assert isinstance(op, DotGeneral | Convolution)
        tf32 = machine.has_tf32 and bool(op.tf32) and x == anchor.dtype == f32
        return Multiplied((x, y), tf32, tf32 and not machine.multiplies_shared_memory)

    @property
    def by_tensor_cores(self) -> bool:
        return self.dtypes is not None and (self.tf32 or self.dtypes[0] != f32)

    @property
    def needs_contiguous_terms(self) -> bool:
        """Whether tensor cores read the operands only if their terms are contiguous in shared memory."""
        is_ordered = self.by_tensor_cores and not self.from_registers
        return is_ordered and self.dtypes is not None and self.dtypes[0].bits != 16


__all__ = ["Multiplied"]
