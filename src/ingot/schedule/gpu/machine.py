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
    floats. measured: tuned choices, by the key of their site."""

    capability: int = 90
    processors: int = 132
    shared_bytes: int = 227 << 10
    registers: int = 1 << 14
    has_box_copies: bool = True
    has_f8_products: bool = True
    measured: Mapping[str, Measured] = field(default_factory=dict, repr=False, compare=False)

    @property
    def target_programs(self) -> int:
        """Programs that keep the GPU busy: several per multiprocessor hide each other's latencies."""
        return 4 * self.processors


H100 = Machine()
A100 = Machine(80, 108, 163 << 10, has_box_copies=False, has_f8_products=False)
A40 = Machine(86, 84, 99 << 10, has_box_copies=False, has_f8_products=False)
L40 = Machine(89, 142, 99 << 10, has_box_copies=False)
B200 = Machine(100, 148, 227 << 10)
RTX5090 = Machine(120, 170, 99 << 10)
MACHINES = {m.capability: m for m in (A100, A40, L40, H100, B200, RTX5090)}

__all__ = ["A40", "A100", "B200", "H100", "L40", "MACHINES", "RTX5090", "Machine"]
