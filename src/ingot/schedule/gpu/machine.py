"""The machine description that GPU schedules use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot.schedule.choice import Measured
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Machine:
    """One kind of GPU. capability: 90 for sm_90a. processors: multiprocessors. shared_bytes: of shared memory per
    program, at most. registers: 32-bit registers that a program's tiles may occupy without spills. has_box_copies:
    whether there is a bulk copy engine for tiles of matrices. has_f8_products: whether tensor cores multiply 8-bit
    floats. product_rate: multiply-adds of 16 bits that a multiprocessor does in a microsecond on tiles copied in boxes;
    0: not measured. measured: tuned choices, by the key of their site."""

    capability: int = 90
    processors: int = 132
    shared_bytes: int = 227 << 10
    registers: int = 1 << 14
    has_box_copies: bool = True
    has_f8_products: bool = True
    product_rate: float = 0
    measured: Mapping[str, Measured] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_tf32(self) -> bool:
        """Whether tensor cores multiply f32 cut to TF32."""
        return self.capability >= 80

    @property
    def gains_by_bf16x6(self) -> bool:
        """Whether tensor cores make six products of bf16 in less time than one multiply-add of f32 takes, and this was
        measured: they are 15 times as fast on Hopper, on GPUs for graphics 2 to 4 times."""
        return self.capability == 90

    @property
    def multiplies_shared_memory(self) -> bool:
        """Whether tensor cores read their operands from shared memory (wgmma, tcgen05), else from registers alone."""
        return self.capability // 10 in (9, 10)

    @property
    def starts_early(self) -> bool:
        """Whether a kernel's programs can start before those of the kernel that it waits for have ended."""
        return self.capability >= 90

    @property
    def target_programs(self) -> int:
        """Programs that keep the GPU busy: several per multiprocessor hide each other's latencies."""
        return 4 * self.processors


H100 = Machine(product_rate=3.2e6)
A100 = Machine(80, 108, 163 << 10, has_box_copies=False, has_f8_products=False)
A40 = Machine(86, 84, 99 << 10, has_box_copies=False, has_f8_products=False)
L40 = Machine(89, 142, 99 << 10, has_box_copies=False)
B200 = Machine(100, 148, 227 << 10)
RTX5090 = Machine(120, 170, 99 << 10)
MACHINES = {m.capability: m for m in (A100, A40, L40, H100, B200, RTX5090)}
# AMD's, by architecture: `capability` is none of theirs. processors: compute units. shared_bytes: of local memory
MI200 = Machine(0, 104, 64 << 10, has_box_copies=False, has_f8_products=False)
MI300 = Machine(0, 304, 64 << 10, has_box_copies=False, has_f8_products=False)
MI350 = Machine(0, 256, 160 << 10, has_box_copies=False, has_f8_products=False)
RX7900 = Machine(0, 96, 64 << 10, has_box_copies=False, has_f8_products=False)
AMD_MACHINES = {"gfx90a": MI200, "gfx942": MI300, "gfx950": MI350, "gfx1100": RX7900}

__all__ = ["A40", "A100", "AMD_MACHINES", "B200", "H100", "L40", "MACHINES", "RTX5090", "Machine"]
