"""How far native results may lie from the reference, op by op."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ingot import ops
from ingot.ir.node import Op
from ingot.ir.types import DType, dtype_of
from tests.ir.kernel.math.test_math import BOUNDS

# min and max of zeros may give either zero: IEEE 754's maximum, of AArch64 and WebAssembly, and x86's differ
_EITHER_ZERO = (ops.Max, ops.Min, ops.Clamp)
_REDUCES_EITHER_ZERO = (ops.Reduce, ops.ReduceWindow, ops.CumReduce, ops.Scatter)
_SUMS = (
    ops.Reduce, ops.ReduceWindow, ops.CumReduce, ops.DotGeneral, ops.Convolution, ops.Scatter, ops.Conv,
    ops.ConvTranspose, ops.MatMul,
)  # fmt: skip
_EXACT_KINDS = ("max", "min", "and", "or", "set")
# a MODEL op is a chain of a few roundings and sums: in units of the type's epsilon, of the largest result
CHAIN = 16
# the reference computes f32 in f64; f64 functions of numpy err by about an ulp themselves
_REFERENCE = {4: 0.5, 8: 1.0}


def epsilon(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)


def check(op: Op, inputs: tuple[np.ndarray, ...], got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Assert that `got` is the result `want` of op(*inputs), within the bound that the op states."""
    assert dtype_of(got) == dtype_of(want), f"{what}: expected {dtype_of(want)}, got {dtype_of(got)}"
    assert got.shape == want.shape, f"{what}: expected shape {want.shape}, got {got.shape}"
    if not dtype_of(want).is_float:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    x, y = got.astype(np.float64), want.astype(np.float64)
    room = _room(op, inputs, want)
    with np.errstate(invalid="ignore"):
        wrong = ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.isfinite(y) & (np.abs(x - y) <= room)))
    if not np.any(room):
        signs = np.signbit(x) != np.signbit(y)
        wrong |= signs & (x == 0) & ~np.isnan(y) & (not _gives_either_zero(op))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        bound = np.broadcast_to(room, x.shape)[at]
        first = f"at {at} got {x[at]!r}, want {y[at]!r} +- {bound}"
        raise AssertionError(f"{what}: {wrong.sum()} of {x.size} wrong; {first}")


def _gives_either_zero(op: Op) -> bool:
    return isinstance(op, _EITHER_ZERO) or (isinstance(op, _REDUCES_EITHER_ZERO) and op.kind in ("max", "min"))


def _room(op: Op, inputs: tuple[np.ndarray, ...], want: np.ndarray) -> np.ndarray:
    dtype = dtype_of(want)
    y = np.abs(want.astype(np.float64))
    with np.errstate(over="ignore"):
        ulp = np.spacing(np.where(np.isfinite(y), y, 0).astype(dtype.numpy)).astype(np.float64)
    if isinstance(op, ops.Gelu):  # its left tail is next to nothing beside the operand
        return 4 * epsilon(dtype) * np.abs(np.nan_to_num(inputs[0].astype(np.float64))) + ulp
    if isinstance(op, ops.GeluDerivative):  # it has a zero, around which terms cancel
        return 2 * min(epsilon(dtype), 2.0**-23) + ulp
    if isinstance(op, ops.Elementwise):
        if not op.exact:
            return np.zeros(())
        if dtype.bits < 32:  # computed in f32, rounded once: at worst the neighbour
            return ulp
        f32_bound, f64_bound = BOUNDS[type(op)][1:]
        return ulp * ((f32_bound if dtype.bits == 32 else f64_bound) + _REFERENCE[dtype.nbytes])
    kind = getattr(op, "kind", "")
    if isinstance(op, _SUMS) and kind not in _EXACT_KINDS:
        return _of_sum(op, inputs, want)
    if isinstance(op, ops.CoreOp) and op.category is not ops.Category.OPAQUE:
        return np.zeros(())
    scale = np.max(y, where=np.isfinite(y), initial=0.0)
    like = [x for x in inputs if x.shape == want.shape and dtype_of(x) == dtype]
    if type(op).__module__.endswith("activation") and like:
        # of the operand's own size: exact to a few roundings of it, and not of the largest element
        scale = np.maximum(y, np.abs(np.nan_to_num(like[0].astype(np.float64))))
    roundings = 4.0 if dtype.bits < 32 else CHAIN
    if isinstance(op, ops.GridSample):
        roundings += _of_coordinates(*inputs)
    return roundings * epsilon(dtype) * scale + ulp


def _of_coordinates(x: np.ndarray, grid: np.ndarray) -> float:
    """A coordinate errs by some four roundings, of half an epsilon each, of its size before it is reflected. Along each
    axis, the image changes by at most twice its largest element from one element to the next."""
    g = np.abs(grid.astype(np.float64))
    return 2.0 * (1 + np.max(g, where=np.isfinite(g), initial=0.0)) * sum(x.shape[2:])


def _of_sum(op: Op, inputs: tuple[np.ndarray, ...], want: np.ndarray) -> np.ndarray:
    """A sum in any order errs by at most (terms - 1) roundings of the sum of magnitudes (Higham, 2002, 4.2)."""
    dtype = dtype_of(want)
    y = np.abs(np.nan_to_num(want.astype(np.float64)))
    if getattr(op, "kind", "") in ("prod", "mul"):
        terms = max((x.size for x in inputs), default=1)
        return terms * epsilon(dtype) * y
    sized = tuple(np.abs(x) if dtype_of(x).is_float else x for x in inputs)
    with np.errstate(all="ignore"):
        total = np.nan_to_num(np.abs(np.asarray(op.reference(*sized)).astype(np.float64)), posinf=0.0)
    terms = max(max(x.shape, default=1) for x in inputs) * 4
    accumulator = 2.0**-52 if dtype.bits == 64 else 2.0**-23
    rounding = epsilon(dtype) * y if dtype.bits < 32 else 0.0
    return terms * accumulator * total + rounding + np.spacing(np.zeros((), dtype.numpy)).astype(np.float64)
