"""Complex numbers as pairs of real tensors, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ingot import ops
from ingot.frontends.shared.composites import complex as f
from ingot.frontends.shared.composites import fourier
from ingot.frontends.shared.composites.complex import Complex
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.rows import check_operands
from ingot.frontends.tensorflow.values import Call, Result, Row, Table, Value
from ingot.ir.node import Node

row = Table()  # ops that build complex tensors
on_complex = Table()  # ops with a complex operand


@row("Complex")
def complex_(c: Call, real: Node, imag: Node) -> Complex:
    shape = ops.broadcast_shapes(real.shape, imag.shape)
    return Complex(ops.broadcast_to(real, shape), ops.broadcast_to(imag, shape))


@row("Real", "Conj")
def real(c: Call, x: Node) -> Node:
    return x


@row("Imag")
def imag(c: Call, x: Node) -> Node:
    return ops.full(x.shape, 0, x.dtype)


@on_complex("ConjugateTranspose")
def conjugate_transpose(c: Call, z: Complex, order: Node) -> Complex:
    permutation = c.numbers(order)
    return f.conj(Complex(ops.transpose(z.real, permutation), ops.transpose(z.imag, permutation)))


@on_complex("Cast")
def cast(c: Call, z: Complex) -> Value:
    """The real part, for a real type."""
    part = c.complex_part("DstT")
    if part is None:
        return ops.cast(z.real, c.dtype("DstT"))
    return Complex(ops.cast(z.real, part), ops.cast(z.imag, part))


_FUNCTIONS: dict[str, Callable[[Complex], Value]] = {
    "Exp": f.exp, "Log": f.log, "Sqrt": f.sqrt, "Rsqrt": f.rsqrt, "Square": f.square, "Tanh": f.tanh, "Sin": f.sin,
    "Cos": f.cos, "Tan": f.tan, "Sinh": f.sinh, "Cosh": f.cosh, "Sigmoid": f.logistic, "Sign": f.sign,
    "Reciprocal": f.reciprocal, "Inv": f.reciprocal, "Log1p": f.log1p, "Expm1": f.expm1, "ComplexAbs": f.modulus,
    "Asin": f.asin, "Acos": f.acos, "Atan": f.atan, "Asinh": f.asinh, "Acosh": f.acosh, "Atanh": f.atanh,
    "Conj": f.conj, "Angle": f.angle, "Real": lambda z: z.real, "Imag": lambda z: z.imag,
}  # fmt: skip


@on_complex(*_FUNCTIONS)
def function(c: Call, z: Complex) -> Value:
    return _FUNCTIONS[c.op](z)


_ARITHMETIC: dict[str, Callable[[Complex, Complex], Value]] = {
    "Add": f.add, "AddV2": f.add, "Sub": f.subtract, "Mul": f.multiply, "Div": f.divide, "RealDiv": f.divide,
    "Pow": f.power, "Equal": f.equal, "NotEqual": f.not_equal,
}  # fmt: skip


@on_complex(*_ARITHMETIC)
def arithmetic(c: Call, a: Complex, b: Complex) -> Value:
    shape = ops.broadcast_shapes(a.real.shape, b.real.shape)
    a, b = (Complex(*(ops.broadcast_to(v, shape) for v in (z.real, z.imag))) for z in (a, b))
    return _ARITHMETIC[c.op](a, b)


@on_complex("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
def product(c: Call, a: Complex, b: Complex) -> Complex:
    """Four products of parts; adjoint operands are conjugated, and transposed by the real op."""
    a, b = (f.conj(z) if c.flag(adjoint) else z for z, adjoint in ((a, "adj_x"), (b, "adj_y")))

    of_real = c.walk.row_of(c.node)
    assert isinstance(of_real, Row)

    def multiply(x: Node, y: Node) -> Node:
        result = of_real.fn(c, x, y)
        assert isinstance(result, Node)
        return result

    real = ops.sub(multiply(a.real, b.real), multiply(a.imag, b.imag))
    return Complex(real, ops.add(multiply(a.real, b.imag), multiply(a.imag, b.real)))


# ops that move or add elements, applied to both parts
PARTWISE_OPS = frozenset((
    "Neg", "Sum", "Mean", "AddN", "Reshape", "Transpose", "ExpandDims", "Squeeze", "Slice", "StridedSlice", "Concat",
    "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "Tile", "Pad", "PadV2", "GatherV2", "Gather", "GatherNd",
    "ReverseV2", "Roll", "BroadcastTo", "Select", "SelectV2", "ZerosLike", "MatrixDiagPartV3", "MatrixBandPart",
    "Cumsum", "Fill", "MatrixDiagV3",
))  # fmt: skip
# ops on shapes, applied to the real part
_SHAPE_OPS = frozenset(("Shape", "ShapeN", "Size", "Rank"))


def on_parts(c: Call, row: Row, operands: Sequence[Value]) -> Result:
    """The results of an op of complex operands. Raises Unsupported."""
    complex_row = on_complex.rows.get(c.op)
    if complex_row is not None:
        if not all(isinstance(v, Complex) for v in (operands[:1] if c.op in _OPS_OF_MIXED_OPERANDS else operands)):
            raise Unsupported("of complex numbers and others")
        check_operands(complex_row.fn, len(operands))
        return complex_row.fn(c, *operands)
    if c.op not in PARTWISE_OPS | _SHAPE_OPS:
        raise Unsupported("of complex numbers")
    if c.op in _SHAPE_OPS:
        return row.fn(c, *(v.real if isinstance(v, Complex) else v for v in operands))
    return f.partwise(partial(row.fn, c), operands)


_OPS_OF_MIXED_OPERANDS = frozenset(("ConjugateTranspose", "IRFFT", "IRFFT2D", "IRFFT3D"))


# --- Fourier transforms

_RANKS = {"FFT": 1, "FFT2D": 2, "FFT3D": 3}


@on_complex(*_RANKS, *(f"I{name}" for name in _RANKS))
def fft(c: Call, z: Complex) -> Complex:
    return fourier.fft(z, _RANKS[c.op.removeprefix("I")], c.op.startswith("I"))


@row("RFFT", "RFFT2D", "RFFT3D")
def rfft(c: Call, x: Node, lengths: Node) -> Complex:
    return fourier.rfft(x, c.numbers(lengths))


@on_complex("IRFFT", "IRFFT2D", "IRFFT3D")
def irfft(c: Call, z: Complex, lengths: Node) -> Node:
    return fourier.irfft(z, c.numbers(lengths))
