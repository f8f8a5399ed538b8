"""Scalar ops are lowered to kernel expressions that compute what their references do, on all values that there are.

    exact ops of one operand                      every value of the types of 8 and 16 bits, bit by bit
    exact ops of two operands                     every pair of values of the types of 8 bits
    functions, f16 and bf16 as values of f32      within the bound of f32
    the same, rounded to f16 and bf16             the value nearest to the true one, or its neighbour
    all 2^32 floats of f32 (`all_floats`)         native code within the bound of f32; minutes for each function

Bounds are those of docs/reference/ops.md, from `tests.ir.kernel.math.test_math`. The truth is numpy's in 80-bit
floats, and for all floats in f64, whose own error is below 2^-28 ulp of f32.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from itertools import product

import numpy as np

from ingot import ops
from ingot.debug.build import build
from ingot.ir import kernel as k
from ingot.ir.node import Graph, Input, Op
from ingot.ir.types import DTYPES, DType, TensorType, bf16, f16, f32
from ingot.ops.core.elementwise import Elementwise
from ingot.pipeline.target import features_of
from ingot.support.errors import ShapeError
from tests.ir.kernel.math.test_math import BOUNDS, Real, ulps
from tests.ops.evaluate import evaluate
from tools.proofs.emulated import emulated
from tools.proofs.identities import all_values, apart
from tools.proofs.verdict import Verdict, by_values, timed

CHUNK = 1 << 22
# half an ulp for the rounding itself, and what an error of f32 moves a value that is halfway between two of bf16
_ROUNDED = 0.5 + 2.5 * 2.0**-13


def verdicts() -> Iterator[Verdict]:
    """On each exact op, on each function of one operand in f16 and bf16, and that the cosine is even, bit by bit."""
    yield from _exact_ops()
    for cls in BOUNDS:
        if cls.arity == 1:
            for dtype in (f16, bf16):
                yield timed(lambda cls=cls, dtype=dtype: in_f32(cls, dtype))
                yield timed(lambda cls=cls, dtype=dtype: rounded(cls, dtype))
    for dtype in (f16, bf16):
        yield timed(lambda dtype=dtype: _even(dtype))


def _exact_ops() -> Iterator[Verdict]:
    """Ops whose result is rounded once, from the same f32 values as the reference's."""
    directions = [ops.Compare(d) for d in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    plain = [
        cls() for cls in Op.REGISTRY.values() if issubclass(cls, Elementwise) and not fields(cls) and not cls.exact
    ]
    for op, name in product([*plain, *directions], ("f16", "bf16", "i8", "u8", "i16", "bool")):
        dtype = DTYPES[name]
        if dtype.kind in op.kinds and op.arity in (1, 2) and (op.arity == 1 or dtype.bits <= 8):
            try:
                op.result(*[TensorType(dtype)] * op.arity)
            except ShapeError:
                continue
            yield timed(lambda op=op, dtype=dtype: as_reference(op, dtype))


def as_reference(op: Elementwise, dtype: DType) -> Verdict:
    """The kernel expression on all values, or pairs of values, of `dtype`."""
    grids = np.meshgrid(*[all_values(dtype)] * op.arity)
    values = {f"v{i}": g.reshape(-1) for i, g in enumerate(grids)}
    got = evaluate(op.scalar(*(k.var(v, dtype) for v in values)), values)
    want = op.reference(*values.values())
    direction = getattr(op, "direction", "")
    return by_values(f"lowering of {op.name} {direction}".rstrip(), str(dtype), apart(got, want), got, want)


def in_f32(cls: type[Elementwise], dtype: DType) -> Verdict:
    """The kernel expression on each value of `dtype`, in f32, within its bound there."""
    truth, bound, _ = BOUNDS[cls]
    x = all_values(dtype).astype(np.float32)
    got = evaluate(cls().scalar(k.var("x", f32)), {"x": x})
    with np.errstate(all="ignore"):
        want = np.asarray(truth(x.astype(Real)))
        error = ulps(got, want)
    return by_values(f"lowering of {cls.name}", f"{dtype} in f32, {bound} ulp", error > bound, got, want)


def rounded(cls: type[Elementwise], dtype: DType) -> Verdict:
    """The whole op on `dtype`: computed in f32, rounded once."""
    truth, *_ = BOUNDS[cls]
    x = all_values(dtype)
    got = evaluate(cls().scalar(k.var("x", dtype)), {"x": x})
    with np.errstate(all="ignore"):
        want = np.asarray(truth(x.astype(Real)))
        error = ulps(got.astype(np.float32), want) * 2.0 ** (_significand(dtype) - 24)
        # below the smallest normal number values lie evenly
        smallest = float(np.float32(all_values(dtype)[1]))
        small = np.abs(got.astype(Real) - want) <= _ROUNDED * smallest
        nearest = want.astype(dtype.numpy)
        same = (got == nearest) | (np.isnan(got.astype(np.float32)) & np.isnan(nearest.astype(np.float32)))
    wrong = ~(same | small | (error <= _ROUNDED))
    return by_values(f"lowering of {cls.name}", f"{dtype}, rounded", wrong, got.astype(np.float32), want)


def _significand(dtype: DType) -> int:
    return {f16: 11, bf16: 8}[dtype]


def _even(dtype: DType) -> Verdict:
    x = all_values(dtype).astype(np.float32)
    expr = ops.Cos().scalar(k.var("x", f32))
    left, right = evaluate(expr, {"x": -x}), evaluate(expr, {"x": x})
    return by_values("lowering of cosine is even", f"{dtype} in f32", apart(left, right), left, right)


# functions whose truth numpy computes in f64 fast enough for 2^32 values
ALL_FLOATS = (
    "exponential",
    "exponential_minus_one",
    "log",
    "log_plus_one",
    "logistic",
    "tanh",
    "rsqrt",
    "sine",
    "cosine",
)


def all_floats(name: str, values: range = range(0, 1 << 32, CHUNK), target: str = "native") -> Verdict:
    """Code for a target, AArch64 in an emulator, on every float of f32, in chunks. values: the first bit pattern of
    each."""
    cls = next(c for c in BOUNDS if c.name == name)
    truth, bound, _ = BOUNDS[cls]
    x = Input("x", TensorType(f32, (CHUNK,)))()
    graph = Graph((x,), (cls()(x),))
    is_foreign = features_of(target).arch == "aarch64" != features_of("native").arch
    worst, at, start = 0.0, 0.0, time.process_time()
    with (
        emulated(graph, target)
        if is_foreign
        else nullcontext(build(graph, target=target, threads=1).model()) as program
    ):
        for first in values:
            given = np.arange(first, first + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)
            got = np.asarray(program(given))
            with np.errstate(all="ignore"):
                error = _ulps_in_f64(got, np.asarray(truth(given.astype(np.float64))))
            most = int(np.argmax(error))
            if error[most] > worst:
                worst, at = float(error[most]), float(given[most])
    state = "proved" if worst <= bound else "refuted"
    how = f"{target} code, {len(values) * CHUNK:,} values, worst {worst:.3f} ulp at {at!r}"
    return Verdict(f"lowering of {name}", f"all of f32, {bound} ulp", state, how, "", time.process_time() - start)


def _ulps_in_f64(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """As `test_math.ulps`, of f32 results and a truth in f64."""
    nearest = want.astype(np.float32)
    same = (got == nearest) & (np.signbit(got) == np.signbit(nearest)) | (np.isnan(got) & np.isnan(nearest))
    finite = np.isfinite(nearest) & np.isfinite(got) & (nearest != 0)
    exponent = np.maximum(np.frexp(want)[1] - 1, -126)
    distance = np.abs(got.astype(np.float64) - want) * np.exp2(23.0 - exponent)
    overflows = ~np.isfinite(nearest) & np.isfinite(want) & (np.abs(got) == np.finfo(np.float32).max)
    return np.where(same | overflows, np.where(finite, distance, 0.0), np.where(finite, distance, np.inf))
