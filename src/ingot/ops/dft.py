"""Discrete Fourier transforms along the last axis, as matrix products.

A transform is a product with its matrix, a Cooley-Tukey step ("An algorithm for the machine calculation of complex
Fourier series", 1965), whose butterflies are products with the matrix of a small transform, or Bluestein's convolution
(1970) for lengths without small factors.

Complex values are pairs (real, imaginary) of nodes of one shape. Internally a pair is one node [..., 2, n], so that a
complex product of length n is a real one of length 2n; a real signal is [..., 1, n].

A length known only at run time always uses the matrix, whose elements are gathered from a table of n angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Node, const
from ingot.ir.types import DType, TensorType, f64, i64
from ingot.ops import build as ops
from ingot.ops.core.elementwise import Neg
from ingot.ops.core.functions import Cos, Sin
from ingot.ops.core.source import Iota
from ingot.ops.nn.index import Take
from ingot.ops.nn.matmul import MatMul

Pair = tuple[Node, Node]
Scale = float | Node  # a node: a scalar known only at run time, as a symbolic length is

# the largest first factor of a step
MAX_STEP_FACTOR = 128
# larger matrices are not worth their memory
_MAX_MATRIX_ROWS = 2048
# the cost of a step's twiddle factors and transposition, in products per element
_STEP_OVERHEAD = 64


def fourier(x: Sequence[Node], inverse: bool = False, scale: Scale = 1.0) -> Pair:
    """The transform scale * sum_j x[j] exp(-2 pi i jk / n); exp(+...) if `inverse`, without a factor 1/n.

    x: (real, imaginary), or (real,) for a real signal.
    """
    n = x[0].shape[-1]
    if isinstance(scale, Node):
        return _scale_pair(fourier(x, inverse), scale)
    if not isinstance(n, int):
        return _scale_pair(_dynamic_transform(x, n, n, inverse), scale)
    return _parts(_transform(ops.stack(x, -2), n, inverse, scale))


def real_fourier(x: Node, scale: Scale = 1.0) -> Pair:
    """The first n // 2 + 1 values of the transform of a real signal; the others are their conjugates, mirrored."""
    n = x.shape[-1]
    count = n // 2 + 1
    if isinstance(scale, Node):
        return _scale_pair(real_fourier(x), scale)
    if not isinstance(n, int):
        return _scale_pair(_dynamic_transform((x,), n, count, False), scale)
    if _plan(n) == n:
        angle = _angles(n, n)[:, :count]
        matrix = np.concatenate([np.cos(angle), -np.sin(angle)], 1) * scale
        y = MatMul()(x, _constant(matrix, x.dtype))
        return _parts(ops.reshape(y, (*x.shape[:-1], 2, count)))
    y = _transform(ops.expand_dims(x, -2), n, False, scale)
    return _parts(ops.slice_axis(y, -1, 0, count))


def real_inverse(x: Pair, n: DimLike, scale: Scale = 1.0) -> Node:
    """n * scale times the real signal of length n whose transform begins with the n // 2 + 1 values of `x`.

    The imaginary part of the first value is ignored, and for an even n that of the last one.
    """
    count = n // 2 + 1
    if isinstance(scale, Node):
        return ops.mul(real_inverse(x, n), ops.cast(scale, x[0].dtype))
    if not isinstance(n, int):
        k = ops.arange(count)
        is_self_conjugate = ops.or_(ops.compare("EQ", k, 0), ops.compare("EQ", ops.mul(k, 2), ops.scalar(n, i64)))
        angles = _dynamic_angles(n, count, n, x[0].dtype)
        weight = ops.cast(ops.where(is_self_conjugate, ops.scalar(scale, f64), ops.scalar(2 * scale, f64)), x[0].dtype)
        cos, sin = (MatMul()(ops.mul(v, weight), t) for v, t in zip(x, angles, strict=True))
        return ops.sub(cos, sin)
    # all values but the first, and the last for an even n, also stand for their mirrored conjugates: both together
    # contribute twice the real part of one
    weight = np.full(count, 2 * scale)
    weight[0] = scale
    if n % 2 == 0:
        weight[-1] = scale
    if _plan(n) != n:
        low, high = (0,) * len(x[0].shape), (*(0,) * (len(x[0].shape) - 1), n - count)
        factor = _constant(weight, x[0].dtype)
        return fourier([ops.pad(ops.mul(v, factor), low, high) for v in x], True)[0]
    angle = _angles(n, n)[:count]
    matrix = np.concatenate([np.cos(angle) * weight[:, None], -np.sin(angle) * weight[:, None]], 0)
    return MatMul()(_flatten_pair(ops.stack(x, -2)), _constant(matrix, x[0].dtype))


def _dynamic_transform(x: Sequence[Node], n: DimLike, count: DimLike, inverse: bool) -> Pair:
    """The first `count` values of a transform of length n, which is known only at run time."""
    products = MatMul()(ops.stack(x, -2), ops.concat(_dynamic_angles(n, n, count, x[0].dtype), 1))
    # the parts of x times cosines, and times sines, whose sign is opposite in a forward transform
    cos, sin = (ops.slice_axis(products, -1, start, start + count) for start in (0, count))
    (a, b), (c, d) = ([ops.index_axis(v, -2, i % len(x)) for i in (0, 1)] for v in (cos, sin))
    if len(x) == 1:
        return a, d if inverse else Neg()(d)
    return (ops.sub(a, d), ops.add(b, c)) if inverse else (ops.add(a, d), ops.sub(b, c))


def _dynamic_angles(n: DimLike, rows: DimLike, columns: DimLike, dtype: DType) -> Pair:
    """Cosines and sines of 2 pi jk / n, [rows, columns]."""
    size = ops.scalar(n, i64)
    angle = ops.div(ops.mul(ops.cast(ops.arange(n), f64), 2 * np.pi), ops.cast(size, f64))
    j, k = (Iota(TensorType(i64, (rows, columns)), axis)() for axis in (0, 1))
    index = ops.rem(ops.mul(j, k), size)
    cos, sin = (Take(0)(ops.cast(table, dtype), index) for table in (Cos()(angle), Sin()(angle)))
    return cos, sin


def _scale_pair(x: Pair, scale: Scale) -> Pair:
    factor = ops.cast(scale, x[0].dtype) if isinstance(scale, Node) else scale
    return ops.mul(x[0], factor), ops.mul(x[1], factor)


def _transform(x: Node, n: int, inverse: bool, scale: float) -> Node:
    """[..., 1 | 2, n] to [..., 2, n]."""
    first = _plan(n)
    if first == n:
        matrix = _complex_matrix(n, inverse, scale)[:, : _size(x, -2) * n]
        y = MatMul()(_flatten_pair(x), _constant(matrix.T, x.dtype))
        return ops.reshape(y, (*x.shape[:-2], 2, n))
    return _bluestein(x, n, inverse, scale) if first == 0 else _cooley_tukey(x, n, first, inverse, scale)


def _cooley_tukey(x: Node, n: int, a: int, inverse: bool, scale: float) -> Node:
    """n = a b:   X[k + a l] = sum_s w^(sk) (sum_r x[b r + s] exp(2 pi i rk / a)) exp(2 pi i sl / b)."""
    b, lead, rows = n // a, x.shape[:-2], _size(x, -2) * a
    matrix = _complex_matrix(a, inverse, scale)[:, :rows]
    # rows (part, k) to (k, part), so that pairs are contiguous for the transform of length b
    matrix = matrix.reshape(2, a, rows).transpose(1, 0, 2).reshape(2 * a, rows)
    y = MatMul()(_constant(matrix, x.dtype), ops.reshape(x, (*lead, rows, b)))
    y = ops.reshape(y, (*lead, a, 2, b))
    angle = _angles(n, a)[:b].T * (1 if inverse else -1)
    twiddled = _product(_parts(y), (np.cos(angle), np.sin(angle)))
    y = _transform(ops.stack(twiddled, -2), b, inverse, 1.0)
    rank = len(lead)
    return ops.reshape(ops.transpose(y, (*range(rank), rank + 1, rank + 2, rank)), (*lead, 2, n))


def _bluestein(x: Node, n: int, inverse: bool, scale: float) -> Node:
    """Bluestein: jk = (j^2 + k^2 - (k - j)^2) / 2 makes a transform a convolution, whose length is a power of two."""
    m = 1 << (2 * n - 2).bit_length()
    sign = 1 if inverse else -1
    chirp_values = np.exp(1j * np.pi * sign * (np.arange(n) ** 2 % (2 * n)) / n)
    kernel = np.zeros(m, np.complex128)
    kernel[:n] = chirp_values.conj()
    kernel[m - n + 1 :] = chirp_values[1:][::-1].conj()
    spectrum = np.fft.fft(kernel) * (scale / m)
    chirp, filtered = (np.real(chirp_values), np.imag(chirp_values)), (np.real(spectrum), np.imag(spectrum))
    parts = [ops.index_axis(x, -2, i) for i in range(_size(x, -2))]
    real, imaginary = _product(parts, chirp)
    low, high = (0,) * len(real.shape), (*(0,) * (len(real.shape) - 1), m - n)
    y = fourier((ops.pad(real, low, high), ops.pad(imaginary, low, high)))
    y = fourier(_product(y, filtered), True)
    y = (ops.slice_axis(y[0], -1, 0, n), ops.slice_axis(y[1], -1, 0, n))
    return ops.stack(_product(y, chirp), -2)


@cache
def _plan(n: int) -> int:
    """The first factor of a transform of length n; n for the matrix, 0 for Bluestein's convolution."""
    return _cheapest_plan(n)[1]


@cache
def _cheapest_plan(n: int) -> tuple[float, int]:
    """(products per signal, first factor)."""
    options = [(4.0 * n * n, n)] if n <= _MAX_MATRIX_ROWS else []
    for a in range(2, min(n, MAX_STEP_FACTOR + 1)):
        if n % a == 0 and n // a > 1:
            options.append((n * (4.0 * a + _STEP_OVERHEAD) + a * _cheapest_plan(n // a)[0], a))
    if not options:
        m = 1 << (2 * n - 2).bit_length()
        options = [(2 * _cheapest_plan(m)[0] + _STEP_OVERHEAD * m, 0)]
    return min(options)


def _angles(n: int, columns: int) -> np.ndarray:
    """2 pi jk / n, [n, columns]; jk is reduced modulo n, so that no digits are lost for large n."""
    return 2 * np.pi * (np.outer(np.arange(n), np.arange(columns)) % n) / n


def _complex_matrix(n: int, inverse: bool, scale: float) -> np.ndarray:
    """[[cos, -sin], [sin, cos]] of a transform's angles: maps a column (real, imaginary) to another."""
    angle = _angles(n, n) * (1 if inverse else -1)
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    return np.block([[cos, -sin], [sin, cos]])


def _product(x: Sequence[Node], factors: tuple[np.ndarray, np.ndarray]) -> Pair:
    a, b = (_constant(v, x[0].dtype) for v in factors)
    if len(x) == 1:
        return ops.mul(x[0], a), ops.mul(x[0], b)
    return (
        ops.sub(ops.mul(x[0], a), ops.mul(x[1], b)),
        ops.add(ops.mul(x[0], b), ops.mul(x[1], a)),
    )


def _size(x: Node, axis: int = -1) -> int:
    n = x.shape[axis]
    assert isinstance(n, int), "a transform's length is known"
    return n


def _parts(x: Node) -> Pair:
    return ops.index_axis(x, -2, 0), ops.index_axis(x, -2, 1)


def _flatten_pair(x: Node) -> Node:
    return ops.reshape(x, (*x.shape[:-2], _size(x, -2) * _size(x)))


def _constant(value: np.ndarray, dtype: DType) -> Node:
    return const(value.astype(dtype.numpy))
