"""The machine model of CPU schedules: plain numbers, which the target fills in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ingot.ir.types import DType
from ingot.schedule.choice import Measured
from ingot.support.dataclass import dataclass

MEMORY_BYTES_PER_SECOND = 20e9  # bytes per second that a core reads from memory, at least


@dataclass(frozen=True)
class Machine:
    """One kind of core.

    vector_bits, registers: the vector register file. masks: masked loads and stores are cheap. fma_per_cycle,
    loads_per_cycle: of full vectors. l2_rate: bytes per cycle that the second-level cache sustains. fma_latency:
    cycles. gflops: peak f32 FMA rate of one core, for chunk sizes. l1, l2: bytes of a core's own caches. l3: bytes of
    the shared cache. bf16_dot, int8_dot: whether the core has dot-product instructions; dot_latency: cycles of the
    first. winograd: whether convolutions may use Winograd's algorithm if it is faster (see docs/winograd.md for its
    effect on rounding errors and NaN). measured: choices measured on this kind of core with this number of threads, by
    site key.
    """

    vector_bits: int = 256
    registers: int = 16
    masks: bool = False
    fma_per_cycle: int = 2
    fma_latency: int = 4
    loads_per_cycle: int = 2
    l2_rate: float = 24.0
    gflops: float = 100.0
    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    threads: int = 1
    bf16_dot: bool = False
    dot_latency: int = 6
    int8_dot: bool = False
    winograd: bool = True
    measured: Mapping[str, Measured] = field(default_factory=dict, repr=False, compare=False)

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // dtype.bits)


AVX512 = Machine(vector_bits=512, registers=32, masks=True, gflops=200.0)
AVX2 = Machine(vector_bits=256, registers=16)
NEON = Machine(vector_bits=128, registers=32, gflops=50.0)
SSE = Machine(vector_bits=128, registers=16, gflops=30.0)


def machine_of(
    arch: str,
    features: tuple[str, ...] | frozenset[str],
    threads: int = 1,
    l2: int = 1 << 20,
    winograd: bool = True,
    measured: Mapping[str, Measured] | None = None,
) -> Machine:
    """The machine for LLVM feature names of `arch`: "x86_64" or "aarch64"."""
    if arch == "aarch64":
        base = NEON
    elif "avx512f" in features and "avx512vl" in features:
        base = AVX512
    else:
        base = AVX2 if "avx2" in features and "fma" in features else SSE
    return Machine(
        vector_bits=base.vector_bits,
        registers=base.registers,
        masks=base.masks,
        gflops=base.gflops,
        l2=l2,
        threads=threads,
        bf16_dot="avx512bf16" in features and base is AVX512,
        int8_dot=("avx512vnni" in features and base is AVX512)
        or ("avxvnni" in features and base is AVX2)
        or (base is NEON and "i8mm" in features),
        winograd=winograd,
        measured=measured or {},
    )
