"""The machine model of CPU schedules: plain numbers, which the target fills in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ingot.ir.types import DType, f32, i8, i16, u8
from ingot.schedule.choice import Measured
from ingot.support.dataclass import dataclass

PAIR_RATE = 1.5  # products of 16 bits in the time of one in f32, as measured (1.65 in matrix products of long sums)
MEMORY_BYTES_PER_SECOND = 20e9  # bytes per second that a core reads from memory, at least


@dataclass(frozen=True)
class Machine:
    """One kind of core.

    vector_bits, registers: the vector register file. masks: masked loads and stores are cheap. fma_per_cycle,
    loads_per_cycle: of full vectors. l2_rate: bytes per cycle that the second-level cache sustains. fma_latency:
    cycles. in_order: loads and arithmetic take turns, an instruction a cycle. gflops: peak f32 FMA rate of one core,
    for chunk sizes. l1, l2: bytes of a core's own caches. l3: bytes of the shared cache. bf16_dot: whether the core has
    dot-product instructions of bf16; dot_latency: their cycles.
    int8_dot: the type of the values that it multiplies i8 weights with, four at a time, or i16 in pairs; None without
    such instructions. int8_rate: these products in the time of one in f32. least_weight: of those whose products are
    exact. dot_bytes: how many bytes a dot product sums in one lane. depthwise_sums: the type of sums of levels in
    depthwise convolutions, which both hold exactly. f16: whether it converts floats of 16 bits, other than
    bf16. winograd: whether convolutions may use Winograd's algorithm if it is faster (see docs/inside/winograd.md for
    its effect on rounding errors and NaN). measured: choices measured on this kind of core with this number of threads,
    by site key.
    """

    vector_bits: int = 256
    registers: int = 16
    masks: bool = False
    fma_per_cycle: int = 2
    fma_latency: int = 4
    loads_per_cycle: int = 2
    in_order: bool = False
    l2_rate: float = 24.0
    gflops: float = 100.0
    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    threads: int = 1
    bf16_dot: bool = False
    dot_latency: int = 6
    int8_dot: DType | None = None
    int8_rate: float = 4.0
    least_weight: int = -128
    dot_bytes: int = 4
    depthwise_sums: DType = f32
    f16: bool = False
    winograd: bool = True
    measured: Mapping[str, Measured] = field(default_factory=dict, repr=False, compare=False)

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // dtype.bits)


AVX512 = Machine(vector_bits=512, registers=32, masks=True, gflops=200.0, f16=True)
AVX2 = Machine(vector_bits=256, registers=16, f16=True)
NEON = Machine(vector_bits=128, registers=32, gflops=50.0, f16=True)
RVV = Machine(vector_bits=128, registers=32, gflops=20.0, fma_per_cycle=1, loads_per_cycle=1)
SSE = Machine(vector_bits=128, registers=16, gflops=30.0)


def machine_of(
    arch: str,
    features: tuple[str, ...] | frozenset[str],
    threads: int = 1,
    l2: int = 1 << 20,
    winograd: bool = True,
    measured: Mapping[str, Measured] | None = None,
) -> Machine:
    """The machine for LLVM feature names of `arch`: "x86_64", "aarch64" or "riscv64"."""
    if arch in ("aarch64", "riscv64"):
        lengths = [bits for bits in (256, 512) if f"zvl{bits}b" in features]
        base = NEON if arch == "aarch64" else replace(RVV, vector_bits=max(lengths, default=RVV.vector_bits))
    elif "avx512f" in features and "avx512vl" in features:
        base = AVX512
    else:
        base = AVX2 if "avx2" in features and "fma" in features else SSE
    has_mixed_dot = (
        ("avx512vnni" in features and base is AVX512)
        or ("avxvnni" in features and base is AVX2)
        or (base is NEON and "i8mm" in features)
    )
    int8_dot = u8 if has_mixed_dot else i8 if base is NEON else None
    int8_rate, least_weight = 4.0, -128
    if int8_dot is None and (base is AVX2 or (base is AVX512 and "avx512bw" in features)):
        int8_dot, int8_rate = i16, PAIR_RATE
    elif base is NEON and not has_mixed_dot and "dotprod" not in features:  # pairs of products are summed in 16 bits
        int8_rate, least_weight = 4 / 3, -127
    return Machine(
        vector_bits=base.vector_bits,
        registers=base.registers,
        masks=base.masks,
        gflops=base.gflops,
        l2=l2,
        threads=threads,
        fma_per_cycle=base.fma_per_cycle,
        loads_per_cycle=base.loads_per_cycle,
        bf16_dot=("avx512bf16" in features and base is AVX512) or ("bf16" in features and base is NEON),
        int8_dot=int8_dot,
        int8_rate=int8_rate,
        least_weight=least_weight,
        f16=base in (NEON, AVX512) or "f16c" in features,
        winograd=winograd,
        measured=measured or {},
    )
