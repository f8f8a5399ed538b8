"""Functions, comparisons and linear algebra of complex tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ingot import ops
from ingot.frontends.shared.composites import complex as f
from ingot.frontends.shared.composites import movement
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.rows import merged
from ingot.frontends.torch.aten import elementwise, logic, reduce, selection, shape
from ingot.frontends.torch.aten.algebra import factorizations, linalg
from ingot.frontends.torch.aten.complex import on_complex, pair, power_of
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.elementwise import compare
from ingot.frontends.torch.table import Handler
from ingot.frontends.torch.values import Complex, Context, Operand, aligned, axis_of, cast, scalar_like
from ingot.ir.node import Node

_REAL: Mapping[str, Handler] = merged(
    m.aten for m in (elementwise, factorizations, linalg, logic, reduce, selection, shape)
)


def pairs(*values: object, dtype_of: Context) -> tuple[f.Complex, ...]:
    """The operands broadcast to one shape, with both parts."""
    operands = [pair(v, dtype_of) for v in values]
    flat = aligned(tuple(p for z in operands for p in (z.real, z.imaginary)))
    return tuple(f.Complex(a, b) for a, b in zip(flat[::2], flat[1::2], strict=True))


def _function(name: str, function: Callable[[f.Complex], f.Complex]) -> None:
    def applied(c: Context, z: Complex) -> Complex:
        value = function(*pairs(z, dtype_of=c))
        return Complex(value.real, value.imag)

    on_complex(f"{name}.default")(applied)


def _log(scale: float) -> Callable[[f.Complex], f.Complex]:
    return lambda z: f.scale(f.log(z), scale)


for _name, _of in {
    "sqrt": f.sqrt, "rsqrt": f.rsqrt, "expm1": f.expm1, "log1p": f.log1p, "sigmoid": f.logistic, "sgn": f.sign,
    "sin": f.sin, "cos": f.cos, "tan": f.tan, "asin": f.asin, "acos": f.acos, "atan": f.atan,
    "sinh": f.sinh, "cosh": f.cosh, "tanh": f.tanh, "asinh": f.asinh, "acosh": f.acosh, "atanh": f.atanh,
    "exp2": lambda z: f.exp(f.scale(z, 0.6931471805599453)),
    "log2": _log(1.4426950408889634), "log10": _log(0.4342944819032518),
}.items():  # fmt: skip
    _function(_name, _of)


@on_complex("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(c: Context, base: object, exponent: Operand | Complex | complex) -> Complex:
    """A power; small integer exponents are products."""
    if isinstance(exponent, int | float) and exponent == int(exponent) and abs(exponent) <= 64:
        return power_of(c, pair(base, c), int(exponent))
    value = f.sqrt(*pairs(base, dtype_of=c)) if exponent == 0.5 else f.power(*pairs(base, exponent, dtype_of=c))
    return Complex(value.real, value.imag)


# --- comparisons: an element is true unless it is 0


@on_complex("eq.Tensor", "eq.Scalar")
def eq(c: Context, a: object, b: object) -> Node:
    return _compared("EQ", ops.And(), a, b)


@on_complex("ne.Tensor", "ne.Scalar")
def ne(c: Context, a: object, b: object) -> Node:
    return _compared("NE", ops.Or(), a, b)


def _compared(direction: str, combine: ops.And | ops.Or, a: object, b: object) -> Node:
    (complex_operand,) = [v for v in (a, b) if isinstance(v, Complex)][:1]
    real, other = ((v if isinstance(v, Complex) else _of_type(v, complex_operand)) for v in (a, b))
    parts = [aligned(p) for p in ((real.real, other.real), (real.imaginary, other.imaginary))]
    return combine(*aligned([compare(direction, x, y) for x, y in parts]))


def _of_type(value: object, like: Complex) -> Complex:
    if isinstance(value, Node):
        return Complex(cast(value, like.real.dtype))
    number = complex(value)  # type: ignore[arg-type]
    return Complex(scalar_like(number.real, like.real), scalar_like(number.imag, like.real))


def _nonzero(z: Complex) -> Node:
    return _compared("NE", ops.Or(), z, 0)


def _of_truth(name: str) -> None:
    def on_truth(c: Context, *args: object, **named: object) -> object:
        arguments = [_nonzero(a) if isinstance(a, Complex) else a for a in args]
        return _REAL[f"aten.{name}"](c, *arguments, **named)

    on_complex(name)(on_truth)


for _name in (
    "logical_not.default", "logical_and.default", "logical_or.default", "logical_xor.default", "any.default", "any.dim",
    "all.default", "all.dim", "nonzero.default", "count_nonzero.default", "count_nonzero.dim_IntList",
):  # fmt: skip
    if f"aten.{_name}" in _REAL:
        _of_truth(_name)


def _of_parts(name: str, combine: ops.And | ops.Or) -> None:
    on_complex(name)(lambda c, z: combine(*(_of_real(name, c, p) for p in (z.real, z.imaginary))))


def _of_real(name: str, c: Context, *args: object, **named: object) -> Node:
    result = _REAL[f"aten.{name}"](c, *args, **named)
    assert isinstance(result, Node)
    return result


_of_parts("isnan.default", ops.Or())
_of_parts("isinf.default", ops.Or())
if "aten.isfinite.default" in _REAL:
    _of_parts("isfinite.default", ops.And())


# --- reductions


@on_complex("linalg_vector_norm.default")
def vector_norm(c: Context, z: Complex, *args: object, **named: object) -> Node:
    return _of_real("linalg_vector_norm.default", c, f.modulus(_full_pair(z)), *args, **named)


@on_complex("var.correction")
def var(c: Context, z: Complex, *args: object, **named: object) -> Node:
    """E|z - E z|^2 is the sum of the parts' variances."""
    return ops.Add()(*(_of_real("var.correction", c, p, *args, **named) for p in (z.real, z.imaginary)))


def _full_pair(z: Complex) -> f.Complex:
    return f.Complex(z.real, z.imaginary)


@on_complex("cumprod.default")
def cumprod(c: Context, z: Complex, dim: int, dtype: object = None) -> Complex:
    """By doubling (Hillis and Steele, 1986)."""
    axis = axis_of(dim, z.real.type.rank)
    size = z.real.shape[axis] if z.real.type.rank else 1
    if not isinstance(size, int):
        raise Unsupported("complex products of as many factors as a dynamic size says")
    product_, step = _full_pair(z), 1
    while step < size:
        shifted = [
            ops.Concat(axis)(
                filled((*p.shape[:axis], step, *p.shape[axis + 1 :]), first, p.dtype),
                movement.cut(p, axis, 0, size - step),
            )
            for p, first in ((product_.real, 1), (product_.imag, 0))
        ]
        product_, step = f.multiply(product_, f.Complex(*shifted)), 2 * step
    return Complex(product_.real, product_.imag)


@on_complex("prod.default", "prod.dim_int")
def prod(c: Context, z: Complex, dim: int | None = None, keepdim: bool = False, *, dtype: object = None) -> Complex:
    if dim is None or z.real.type.rank == 0:
        z, dim = Complex(*(ops.reshape(p, (-1,)) for p in z.parts)), 0
    axis = axis_of(dim, z.real.type.rank)
    if z.real.shape[axis] == 0:
        return Complex(filled(c.shape, 1, c.dtype))
    products = cumprod(c, z, axis)
    last = [shape.select_index(p, axis, p.shape[axis] - 1) for p in products.parts]
    return Complex(*(ops.reshape(p, c.shape) for p in last))


# --- linear algebra: [[A, -B], [B, A]] represents A + Bi in products, inverses and power series


def _embedded(z: Complex) -> Node:
    a, b = z.real, z.imaginary
    rank = a.type.rank
    return ops.Concat(rank - 2)(ops.Concat(rank - 1)(a, ops.Neg()(b)), ops.Concat(rank - 1)(b, a))


def _restored(x: Node) -> Complex:
    """The complex matrix that a real matrix [[A, -B], [B, A]] represents."""
    rank = x.type.rank
    rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
    columns_ = movement.cut(x, rank - 1, 0, columns)
    return Complex(*(movement.cut(columns_, rank - 2, row, row + rows) for row in (0, rows)))


def _of_matrices(name: str) -> None:
    """A row that applies a real op to the embedded matrices and converts matrix results back."""

    def done(c: Context, *args: object, **named: object) -> object:
        arguments = [_embedded(a) if isinstance(a, Complex) else a for a in args]
        results = _REAL[f"aten.{name}"](c, *arguments, **named)
        if isinstance(results, Node):
            return _restored(results)
        assert isinstance(results, tuple)
        return (_restored(results[0]), *(None for _ in results[1:-1]), results[-1])

    on_complex(name)(done)


for _name in ("linalg_inv_ex.default", "linalg_matrix_exp.default", "linalg_pinv.atol_rtol_tensor"):
    _of_matrices(_name)


@on_complex("_linalg_solve_ex.default")
def solve(c: Context, a: object, b: object, *, left: bool = True, check_errors: bool = False) -> tuple[object, ...]:
    matrix, rhs = (v if isinstance(v, Complex) else Complex(v) for v in (a, b) if isinstance(v, Complex | Node))
    if not left:
        # x a = b is a^T x^T = b^T
        matrix, rhs = (Complex(*(ops.swap_axes(p, -1, -2) for p in z.parts)) for z in (matrix, rhs))
        *batch, rows, columns = c.results[0].shape
        context = replace(c, results=(c.results[0].with_shape((*batch, columns, rows)), *c.results[1:]))
        solution, *other_results = solve(context, matrix, rhs)
        assert isinstance(solution, Complex)
        return (Complex(*(ops.swap_axes(p, -1, -2) for p in solution.parts)), *other_results)
    rank = rhs.real.type.rank
    axis = rank - 1 if rank < matrix.real.type.rank else rank - 2
    embedded, n = _embedded(matrix), matrix.real.shape[-1]
    solution = list(c.results[0].shape)
    place = len(solution) - rank + axis
    solution[place] = 2 * n
    x = factorizations.solved(embedded, ops.Concat(axis)(rhs.real, rhs.imaginary), tuple(solution), True)
    _, _, info = factorizations.lu_factor_ex(c, embedded)
    return (Complex(*(movement.cut(x, place, row, row + n) for row in (0, n))), None, None, info)
