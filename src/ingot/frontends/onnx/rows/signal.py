"""Fourier transforms and mel filters."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import check_table, ints_of, iota
from ingot.frontends.onnx.tensors import Unsupported, dtype_from_code
from ingot.ir.node import Node, const


def fourier(x: Node, axis: int, length: int, inverse: bool, onesided: bool) -> Node:
    """The discrete Fourier transform along `axis` of [..., 1 | 2] (real | real, imaginary), by its matrix."""
    if inverse and onesided:
        return _real_inverse(x, axis, length)
    have = x.shape[axis]
    if isinstance(have, int) and have > length:
        x = ops.slice_axis(x, axis, 0, length)
    elif have != length:
        rank = len(x.shape)
        x = ops.pad(x, (0,) * rank, tuple(length - have if i == axis else 0 for i in range(rank)))
    count = length // 2 + 1 if onesided and not inverse else length
    check_table(length, count)
    angle = 2 * np.pi * ((np.arange(length)[:, None] * np.arange(count)[None, :]) % length) / length
    factor = 1.0 / length if inverse else 1.0
    cos, sin = (const((f(angle) * factor).astype(x.dtype.numpy)) for f in (np.cos, np.sin))
    (width,) = ints_of(x.shape[-1:], "the last axis")
    if width not in (1, 2):
        raise Unsupported(f"a transform of numbers of {width} parts")
    parts = ops.split(x, [1] * width, -1)
    lines = [_axis_last(ops.squeeze(p, (-1,)), axis) for p in parts]
    real, imaginary = ops.MatMul()(lines[0], cos), ops.MatMul()(lines[0], sin)
    if not inverse:
        imaginary = ops.Neg()(imaginary)
    if len(lines) == 2:
        across, along = ops.MatMul()(lines[1], sin), ops.MatMul()(lines[1], cos)
        real = ops.sub(real, across) if inverse else ops.add(real, across)
        imaginary = ops.add(imaginary, along)
    return ops.stack([_axis_back(v, axis) for v in (real, imaginary)], -1)


def _real_inverse(x: Node, axis: int, length: int) -> Node:
    """The real signal of a one-sided spectrum: the missing half is the mirrored conjugate, so it counts twice."""
    (have,) = ints_of(x.shape[axis : axis + 1], "the spectrum's length")
    count = length // 2 + 1
    x = ops.slice_axis(x, axis, 0, count) if have > count else x
    check_table(length, count)
    rank = len(x.shape)
    x = ops.pad(x, (0,) * rank, tuple(max(0, count - have) if i == axis else 0 for i in range(rank)))
    weight = np.full((count, 1), 2.0 / length)
    weight[0] = 1.0 / length
    if length % 2 == 0:
        weight[-1] = 1.0 / length
    angle = 2 * np.pi * ((np.arange(count)[:, None] * np.arange(length)[None, :]) % length) / length
    real, imaginary = (_axis_last(ops.index_axis(x, -1, i), axis) for i in (0, 1))
    cos, sin = (const((f(angle) * weight).astype(x.dtype.numpy)) for f in (np.cos, np.sin))
    signal = ops.sub(ops.MatMul()(real, cos), ops.MatMul()(imaginary, sin))
    return ops.expand_dims(_axis_back(signal, axis), -1)


def _axis_last(x: Node, axis: int) -> Node:
    order = [i for i in range(len(x.shape)) if i != axis] + [axis]
    return ops.transpose(x, order)


def _axis_back(x: Node, axis: int) -> Node:
    order = list(range(len(x.shape) - 1))
    order.insert(axis, len(x.shape) - 1)
    return ops.transpose(x, order)


def _dft(c: Call, axis: int) -> Result:
    x = c.x()
    axis = normal_axis(axis, c.rank())
    inverse, onesided = c.flag("inverse"), c.flag("onesided")
    natural = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    (length,) = ints_of((c.dims(1)[0] if c.has(1) else natural,), "the transform's length")
    return fourier(x, axis, length, inverse, onesided)


@onnx_op("DFT", since=17)
def dft_17(c: Call) -> Result:
    return _dft(c, c.int("axis", 1))


@onnx_op("DFT", since=20)
def dft(c: Call) -> Result:
    return _dft(c, c.ints(2)[0] if c.has(2) else -2)


@onnx_op("STFT", since=17)
def stft(c: Call) -> Result:
    x = c.x()
    (step,) = ints_of(c.dims(1), "the frame step")
    if c.has(3):
        (length,) = ints_of(c.dims(3), "the frame length")
    elif c.has(2):
        (length,) = ints_of(c.shape(2), "the window's length")
    else:
        raise Unsupported("a transform without window and frame length")
    x = x if len(x.shape) == 3 else ops.expand_dims(x, 2)
    frames = (x.shape[1] - length) // step + 1
    at = ops.add(ops.mul(iota((frames, length), 0), step), iota((frames, length), 1))
    framed = ops.Take(1)(x, at)
    if c.has(2):
        window = c.x(2)
        (width,) = ints_of(window.shape, "the window's length")
        if width < length:
            before = (length - width) // 2
            window = ops.pad(window, (before,), (length - width - before,))
        framed = ops.mul(framed, ops.expand_dims(window, 1))
    return fourier(framed, 2, length, False, c.flag("onesided", 1))


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(c: Call) -> Result:
    """A constant: triangular filters on the mel scale (ONNX operator reference, MelWeightMatrix)."""
    bins, length, rate = (int(c.array(i).reshape(())) for i in range(3))
    low, high = (float(c.array(i).reshape(())) for i in (3, 4))
    spectrum = length // 2 + 1
    check_table(spectrum, bins)

    def mel(f: float) -> float:
        return 2595 * np.log10(1 + f / 700)

    # the step is over bins + 2 as in ONNX's definition, so that the last edge lies below `high`
    edges = mel(low) + np.arange(bins + 2) * (mel(high) - mel(low)) / (bins + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    at = ((length + 1) * hertz // rate).astype(np.int64)
    out = np.zeros((spectrum, bins), np.float64)
    for i in range(bins):
        left, centre, right = at[i : i + 3]
        if centre == left:
            out[centre, i] = 1
        else:
            for j in range(left, centre + 1):
                out[j, i] = (j - left) / (centre - left)
        for j in range(centre, right):
            out[j, i] = (right - j) / (right - centre)
    return const(out.astype(dtype_from_code(c.int("output_datatype", 1)).numpy))
