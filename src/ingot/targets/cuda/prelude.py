"""Triton functions that printed kernels call, prepended to each kernel. EARLY: whether a kernel may start before its
producers have ended."""

from functools import reduce

from ingot.targets.cuda.lanes import LANES_PRELUDE

PRELUDE = '''\
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice


@triton.jit
def await_producers():
    if EARLY:
        gdc_wait()


@triton.jit
def release_consumers():
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def meet(arrived, turn, rounds, programs):
    """All programs are here before one goes on. Behind the last round nobody waits; the last one clears the count."""
    tl.debug_barrier()  # one thread counts: what the others wrote is to be seen behind it
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    if turn == rounds - 1:
        if before == programs * rounds - 1:
            tl.store(arrived, 0)
    else:
        while tl.atomic_add(arrived, 0, sem="acquire") < programs * (turn + 1):
            pass


@triton.jit
def fold_add(a, b):
    return a + b


@triton.jit
def fold_mul(a, b):
    return a * b


@triton.jit
def fold_and(a, b):
    return a & b


@triton.jit
def fold_or(a, b):
    return a | b


@triton.jit
def fold_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fold_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exp2_narrow(a):
    """Results below 2^-126 are 0."""
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, is_pure=True, pack=1)


@triton.jit
def masked_or(a, mask, bits):
    """(a & mask) | bits as one instruction. Of two immediate operands the assembler makes two."""
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [a, mask, bits], tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def quotient(a, b):
    """a / b by the hardware's 1 / b and what is left, without the branch of `div_rn` for numbers at the ends of the
    range. Where a quotient and the remainder are too small, the first digits are right."""
    inverse = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], tl.float32, is_pure=True, pack=1)
    first = a * inverse
    return tl.fma(tl.fma(-b, first, a), inverse, first)


@triton.jit
def scaled_f32(a, n):
    """a * 2^n for even n, by two factors 2^(n/2)."""
    half = (((n * 0.5).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return a * half * half


@triton.jit
def scaled_f64(a, n):
    half = (((n * 0.5).to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return a * half * half
'''
PRELUDE = f"{PRELUDE}\n\n{LANES_PRELUDE}"

_CUDA_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice\n"
_CUDA_EXP2 = 'tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], tl.float32, is_pure=True, pack=1)'
_CUDA_INVERSE = 'tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], tl.float32, is_pure=True, pack=1)'
_CUDA_MASKED_OR = """tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [a, mask, bits], tl.uint32, is_pure=True, pack=1
    )"""
_HIP_FUNCTIONS = '''\
from triton.language.extra.hip import libdevice


@triton.jit
def gdc_wait():
    pass


@triton.jit
def gdc_launch_dependents():
    pass


@triton.jit
def rint(a):
    return libdevice.nearbyint(a)


@triton.jit
def _as_u64(a):
    if a.dtype.primitive_bitwidth == 64:
        return a.to(tl.uint64, bitcast=True)
    else:
        return a.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def popc(a):
    """The bits of an integer of 32 or 64 bits, as an int32."""
    n = _as_u64(a)
    n = n - ((n >> 1) & 0x5555555555555555)
    n = (n & 0x3333333333333333) + ((n >> 2) & 0x3333333333333333)
    n = (n + (n >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((n * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def clz(a):
    """The zeros in front of the highest bit."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    n = _as_u64(a)
    for i in tl.static_range(6):
        n = n | (n >> (1 << i))
    return width - popc(n.to(tl.int64, bitcast=True))
'''
# the same functions for AMD's GPUs, whose kernels never start early
_HIP_TEXTS = {
    _CUDA_IMPORT: _HIP_FUNCTIONS,
    _CUDA_EXP2: "tl.exp2(a)",
    _CUDA_INVERSE: "1.0 / b",
    _CUDA_MASKED_OR: "a & mask | bits",
}
assert all(text in PRELUDE for text in _HIP_TEXTS)
HIP_PRELUDE = reduce(lambda prelude, text: prelude.replace(text, _HIP_TEXTS[text]), _HIP_TEXTS, PRELUDE)

__all__ = ["HIP_PRELUDE", "PRELUDE"]
