"""Rounding errors of the bounds' own arithmetic, which is in f64, and of the program that is bounded.

A sum of n products in any order, with or without fused multiply-adds, errs by at most gamma(n) = n u / (1 - n u) times
the sum of their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1). Winograd's
algorithm errs by more: see `error_of_winograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, product
from ingot.ir.node import Node, Op, const
from ingot.ir.types import DType, f32, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.schedule.cpu.winograd.plan import TILE_SIZES
from ingot.schedule.cpu.winograd.toom_cook import array, transform
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

F64_EPSILON = 2.0**-52  # twice the unit roundoff: it includes the rounding of the error terms themselves
F64_UNDERFLOW = 2.0**-1000  # more than what underflows in a sum of f64 products
_TF32_PRODUCT = 1.01 * 2.0**-9  # of a product of two operands cut to 10 bits; 1%: what their sum adds to its rounding
_FUNCTION_ULPS = 8  # of a transcendental function in f64; at most 3.2 were measured (docs/reference/ops.md)


@dataclass(frozen=True)
class Rounding:
    """The errors that bounds include. unit: the unit roundoff of the program's floats, 0 for the real numbers. tiny:
    their smallest normal number. winograd: whether convolutions may be computed by Winograd's algorithm."""

    unit: float = 0.0
    tiny: float = 0.0
    winograd: bool = False

    def of_sum(self, count: DimLike) -> float:
        """The error of a sum of `count` products, relative to the sum of their magnitudes. Raises InputError for a
        symbolic count, and for one so large that no digit of the sum is certain."""
        if not isinstance(count, int):
            raise InputError(
                "bounds", expected="static sizes", got=f"a sum of {count} products", fix="fix them by dynamic"
            )
        return _gamma(count + 16, F64_EPSILON) + _gamma(count + 2, self.unit)

    def of_contraction(self, node: Node, count: DimLike) -> float:
        """The error of a contraction that sums `count` products, as `of_sum`: the program may cut its operands."""
        is_cut = self.unit and node.dtype == f32 and getattr(node.op, "tf32", False)
        return self.of_sum(count) + (_TF32_PRODUCT if is_cut else 0.0)

    def of_function(self, ulps: float = 4.0) -> float:
        """The relative error of a function that errs by `ulps` in the program."""
        return 2 * _FUNCTION_ULPS * F64_EPSILON + 2 * ulps * self.unit

    @property
    def floor(self) -> float:
        """The absolute error of an operation whose result may be subnormal, the program's included."""
        return F64_UNDERFLOW + self.tiny


def unit_and_tiny(dtype: DType) -> tuple[float, float]:
    """Upper bounds of the error of rounding to a type: the relative one, and the absolute one of small numbers."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype.numpy)
    return float(info.eps), float(info.smallest_subnormal)


def _gamma(count: int, unit: float) -> float:
    if count * unit >= 0.5:
        raise InputError("bounds", expected="sums whose rounding leaves a digit", got=f"{count} products in its type")
    return count * unit / (1 - count * unit)


def outward(lower: Term, upper: Term, relative: float, absolute: float = F64_UNDERFLOW) -> tuple[Term, Term]:
    """lower and upper, widened by the errors of computing them."""
    return (
        lower - (absolute_value(lower) * relative + absolute),
        upper + (absolute_value(upper) * relative + absolute),
    )


def absolute_value(x: Term) -> Term:
    return t.term(t.absolute(x))


def maximum(a: Term, b: t.Operand) -> Term:
    return t.term(t.maximum(a, b))


def minimum(a: Term, b: t.Operand) -> Term:
    return t.term(t.minimum(a, b))


def where(condition: Term, a: t.Operand, b: t.Operand) -> Term:
    return t.term(t.where(condition, a, b))


@dataclass(frozen=True, eq=False)
class Interval:
    """Bounds of a value, in f64. For a bool: whether it is certainly true, and whether it may be true."""

    lower: Term
    upper: Term

    @property
    def magnitude(self) -> Term:
        """The largest magnitude of each element."""
        return maximum(absolute_value(self.lower), absolute_value(self.upper))

    @property
    def center(self) -> Term:
        return (self.lower + self.upper) * 0.5

    @property
    def radius(self) -> Term:
        """An upper bound of the distance from the center, as computed, to either bound."""
        half = maximum(self.upper - self.center, self.center - self.lower)
        return half * (1 + 4 * F64_EPSILON) + self.magnitude * (2 * F64_EPSILON)


def from_f64(lower: Term, upper: Term, dtype: DType) -> tuple[Term, Term]:
    """Bounds in `dtype`, rounded outwards; NaN becomes -inf or inf."""
    lower = where(lower.equals(lower), lower, -float("inf"))
    upper = where(upper.equals(upper), upper, float("inf"))
    if dtype == f64:
        return lower, upper
    import ml_dtypes

    # conversion rounds to nearest: half a unit in the last place, which the shift exceeds
    lower, upper = outward(lower, upper, *unit_and_tiny(dtype))
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    lower = minimum(lower, largest)
    upper = maximum(upper, -largest)
    return lower.cast(dtype), upper.cast(dtype)


def overflow_share(magnitude: Term, dtype: DType) -> Term:
    """The largest element as a share of the largest number of a type."""
    import ml_dtypes

    return magnitude.max(tuple(range(magnitude.rank)), False) * (1 / float(ml_dtypes.finfo(dtype.numpy).max))


def rounding_to_bytes(magnitude: Term, dims: Sequence[int]) -> Term:
    """The most by which `ops.RoundToBytes` changes an element: half a level of the largest magnitude, the rounding of
    the quotient, and all of an element so small that 127 / largest overflows."""
    return magnitude.max(dims).broadcast(magnitude.shape) * (0.5001 / 127) + 4e-37


# --- sums of products


def summed_terms(node: Node) -> int:
    """The number of terms of each element of a sum, at most."""
    op, (x,) = node.op, node.inputs
    if isinstance(op, ops.Reduce):
        count = product(x.shape[d] for d in op.dims)
    else:
        assert isinstance(op, (ops.ReduceWindow, ops.CumReduce))
        count = product(op.window) if isinstance(op, ops.ReduceWindow) else x.shape[op.dim]
    assert isinstance(count, int)
    return count


def in_f64(op: Op) -> Op:
    """A contraction with results in f64."""
    return op.with_sums(f64) if isinstance(op, (ops.DotGeneral, ops.Convolution)) else op


def contracted_terms(node: Node) -> int:
    """The number of products that each element of a contraction sums."""
    op, (a, b) = node.op, node.inputs
    if isinstance(op, ops.DotGeneral):
        count = product(a.shape[d] for d in op.contract[0])
    else:
        assert isinstance(op, ops.Convolution)
        count = product(d for d, c in zip(b.shape, op.rhs_layout, strict=True) if c != "O")
    assert isinstance(count, int)
    return count


def is_winograd(node: Node) -> bool:
    """Whether Winograd's algorithm may compute the node (see `schedule.cpu.winograd.plan`)."""
    op = node.op
    if not isinstance(op, ops.Convolution) or len(op.spatial) not in (2, 3) or op.batch_groups != 1:
        return False
    window = dict(zip(op.rhs_layout, node.inputs[1].shape, strict=True))
    rows, columns = (window[letter] for letter in op.spatial[-2:])
    return rows == columns and rows in TILE_SIZES and all(v == 1 for v in (*op.strides, *op.lhs_dilation))


def error_of_winograd(rounding: Rounding, node: Node, x: Term, w: Term) -> Term | None:
    """The error of a convolution by Winograd's algorithm; None if it is computed otherwise. x, w: magnitudes of its
    operands.

    Barabasz et al. 2020: the error of an output is at most gamma times the result of the same algorithm on the
    magnitudes of operands and transform matrices. There every element of a tile contributes, so this is a convolution
    with a wider window, whose weights here are the largest over all positions of an output in its tile.
    """
    op = node.op
    if not rounding.winograd or not isinstance(op, ops.Convolution) or not is_winograd(node):
        return None
    row, column = op.spatial[-2:]
    r = node.inputs[1].shape[op.rhs_layout.index(row)]
    assert isinstance(r, int)
    reach, alpha = max(TILE_SIZES[r]) - 1, max(TILE_SIZES[r]) + r - 1
    factors = Term(const(_window_factors(r)))
    rest = [letter for letter in op.rhs_layout if letter not in (row, column)]
    permutation = [op.rhs_layout.index(letter) for letter in (*rest, row, column)]
    widened_weights = t.contract(
        t.contract(w.transpose(permutation), factors, [(len(rest), 1)]), factors, [(len(rest), 1)]
    )
    kernel = widened_weights.transpose([(*rest, row, column).index(letter) for letter in op.rhs_layout])
    extra_padding = [reach * d for d in op.rhs_dilation[-2:]]
    outer = op.padding[-2:]
    padding = (*op.padding[:-2], *((lo + m, hi + m) for (lo, hi), m in zip(outer, extra_padding, strict=True)))
    sums = replace(op, padding=padding, dtype=f64, zeros=())
    terms = contracted_terms(node) // (r * r)
    return Term(sums(x.node, kernel.node)) * (rounding.of_sum(6 * alpha + terms + 8) * 1.01)


@cache
def _window_factors(r: int) -> np.ndarray:
    """[offset of an input, tap]: the largest sum over k of |A^T||G||B^T| over outputs and inputs of a tile and over all
    F(m, r). Offset 0 is the input farthest before the output."""
    reach = max(TILE_SIZES[r]) - 1
    sums = np.zeros((2 * reach + r, r))
    for m in TILE_SIZES[r]:
        matrices = transform(m, r)
        abs_at, abs_g, abs_bt = (np.abs(array(matrix)) for matrix in (matrices.at, matrices.g, matrices.bt))
        products = np.einsum("ik,kp,ks->isp", abs_at, abs_g, abs_bt)
        for i in range(m):
            for s in range(matrices.alpha):
                sums[s - i + reach] = np.maximum(sums[s - i + reach], products[i, s])
    return sums * (1 + 1e-12)
