"""Fourier transforms, and the inverse short-time transform (torch decomposes `stft` itself)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.complex import on_complex
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Complex, Context, axis_of, with_size
from ingot.ir.dims import DimLike, dim_min
from ingot.ir.node import Node, const
from ingot.ir.types import f64

aten = Table()

Along = Callable[[Complex], Complex]


def _along_axis(z: Complex, axis: int, transform: Along) -> Complex:
    """`transform`, which works on the last axis, along `axis`."""

    def move_axis(x: Node, source: int, target: int) -> Node:
        order = [i for i in range(x.type.rank) if i != source]
        order.insert(target, source)
        return ops.transpose(x, order)

    last = z.real.type.rank - 1
    transformed = transform(
        Complex(move_axis(z.real, axis, last), None if z.imag is None else move_axis(z.imag, axis, last))
    )
    return Complex(
        move_axis(transformed.real, last, axis),
        None if transformed.imag is None else move_axis(transformed.imag, last, axis),
    )


def _axes(x: Node, dim: Sequence[int]) -> list[int]:
    return [axis_of(d, x.type.rank) for d in dim]


def _scale(shape: Sequence[DimLike], axes: Sequence[int], normalization: int) -> float | Node:
    """The factor of torch's fft_norm_mode: 0: none, 1: divide by the root of the length, 2: divide by the length."""
    power = (0.0, -0.5, -1.0)[normalization]
    lengths = [shape[a] for a in axes]
    static_factor = math.prod(n for n in lengths if isinstance(n, int)) ** power
    measured = [ops.scalar(n, f64) for n in lengths if not isinstance(n, int)]
    if not measured or not power:
        return static_factor
    return functools.reduce(ops.mul, (ops.pow(n, power) for n in measured), const(static_factor, np.float64))


def _length(n: DimLike) -> int:
    if not isinstance(n, int):
        raise Unsupported("a Fourier transform of a length that is known only at run time; fix this axis")
    return n


def _transform(z: Complex, axes: Sequence[int], scale: float | Node, inverse: bool) -> Complex:
    """Transform along each of `axes` in turn."""
    for axis in axes:
        z = _along_axis(z, axis, lambda v, s=scale: Complex(*ops.fourier(v.parts, inverse, s)))
        scale = 1.0
    return z


@aten("_fft_r2c.default")
def fft_r2c(c: Context, x: Node, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    axes = _axes(x, dim)
    scale = _scale(x.shape, axes, normalization)
    if not onesided:
        return _transform(Complex(x), axes, scale, False)
    *other_axes, last = axes
    half = _along_axis(Complex(x), last, lambda v: Complex(*ops.real_fourier(v.real, scale)))
    return _transform(half, other_axes, 1.0, False)


@on_complex("_fft_c2c.default")
def fft_c2c(c: Context, z: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = _axes(z.real, dim)
    return _transform(z, axes, _scale(z.real.shape, axes, normalization), not forward)


@on_complex("_fft_c2r.default")
def fft_c2r(c: Context, z: Complex, dim: Sequence[int], normalization: int, last_dim_size: int) -> Node:
    *other_axes, last = _axes(z.real, dim)
    scale = _scale(c.shape, (*other_axes, last), normalization)
    n = c.shape[last]
    z = Complex(*(with_size(c, v, last, n // 2 + 1) for v in _transform(z, other_axes, 1.0, True).parts))
    inverse = _along_axis(z, last, lambda v: Complex(ops.real_inverse((v.real, v.imaginary), n, scale)))
    return inverse.real


@on_complex("istft.default")
def istft(
    c: Context, z: Complex, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Node | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: DimLike | None = None, return_complex: bool = False,
) -> Node:  # fmt: skip
    """Inverse transforms of the frames, overlapped and added, divided by the sum of the squared windows."""
    if return_complex or not isinstance(length, int | None):
        raise Unsupported("a complex signal, or a length known only at run time")
    hop, size = hop_length or n_fft // 4, win_length or n_fft
    weight = filled((size,), 1, z.real.dtype) if window is None else window
    low_amount = (n_fft - size) // 2
    weight = ops.pad(weight, (low_amount,), (n_fft - size - low_amount,))
    scale = n_fft**-0.5 if normalized else 1.0 / n_fft
    # a spectrum of n_fft rows is two-sided; a real signal needs only the first side
    spectrum = [cut(ops.swap_axes(v, -1, -2), v.type.rank - 1, 0, n_fft // 2 + 1) for v in (z.real, z.imaginary)]
    frames = ops.real_inverse((spectrum[0], spectrum[1]), n_fft, scale)
    count = frames.shape[-2]
    squares = ops.broadcast_to(ops.mul(weight, weight), (count, n_fft))
    total, envelope = (_overlapped(v, hop) for v in (ops.mul(frames, weight), squares))
    start = n_fft // 2 if center else 0
    end = n_fft + hop * (count - 1) - (start if length is None else 0)
    end = end if length is None else dim_min(end, start + length)
    parts = [cut(v, v.type.rank - 1, start, end) for v in (total, envelope)]
    signal = ops.div(parts[0], parts[1])
    missing = 0 if length is None else length - (end - start)
    zeros = (0,) * (signal.type.rank - 1)
    return ops.pad(signal, (*zeros, 0), (*zeros, missing))


def _overlapped(frames: Node, hop: int) -> Node:
    """Overlap-add of frames [..., n, size], one every `hop` elements, block by block."""
    *lead, n, size = frames.shape
    count = -(-_length(size) // hop)
    rank = len(lead)
    zeros = (0,) * rank
    blocks = ops.pad(frames, (*zeros, 0, 0), (*zeros, 0, count * hop - size))
    blocks = ops.reshape(blocks, (*lead, n, count, hop))
    total: Node | None = None
    for i in range(count):
        block = ops.index_axis(blocks, rank + 1, i)
        shifted = ops.pad(block, (*zeros, i, 0), (*zeros, count - 1 - i, 0))
        total = shifted if total is None else ops.Add()(total, shifted)
    assert total is not None
    return ops.reshape(total, (*lead, (n + count - 1) * hop))


@aten("fft_fftfreq.default")
def fftfreq(c: Context, n: int, d: float = 1.0, **named: object) -> Node:
    return const(np.fft.fftfreq(n, d).astype(c.dtype.numpy))


@aten("fft_rfftfreq.default")
def rfftfreq(c: Context, n: int, d: float = 1.0, **named: object) -> Node:
    return const(np.fft.rfftfreq(n, d).astype(c.dtype.numpy))
