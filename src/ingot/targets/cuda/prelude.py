"""Triton functions that printed kernels call, prepended to each kernel. EARLY: whether a kernel may start before its
producers have ended."""

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
def scaled_f32(a, n):
    """a * 2^n for even n, by two factors 2^(n/2)."""
    half = (((n * 0.5).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return a * half * half


@triton.jit
def scaled_f64(a, n):
    half = (((n * 0.5).to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return a * half * half
'''

__all__ = ["PRELUDE"]
