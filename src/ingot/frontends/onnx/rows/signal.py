"""Fourier transforms and mel filters."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, normal_axis, onnx_op
from ingot.frontends.onnx.rows.common import check_table, ints_of
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import DimLike
from ingot.ir.node import Node, const
from ingot.ir.types import f64


def fourier(x: Node, axis: int, length: DimLike, inverse: bool, onesided: bool) -> Node:
    """The discrete Fourier transform along `axis` of [..., 1 | 2] (real | real, imaginary)."""
    if isinstance(length, int):
        if length < onesided:
            raise Unsupported(f"a transform of length {length}")
        if length == 0:
            return ops.full((*(0 if i == axis else d for i, d in enumerate(x.shape[:-1])), 2), 0, x.dtype)
        check_table(length, ops.MAX_STEP_FACTOR)
    want = length // 2 + 1 if inverse and onesided else length
    x = ops.slice_axis(x, axis, 0, want)
    size = x.shape[axis]
    if size != want:
        rank = len(x.shape)
        x = ops.pad(x, (0,) * rank, tuple(want - size if i == axis else 0 for i in range(rank)))
    (count,) = ints_of(x.shape[-1:], "the last axis")
    if count not in ((2,) if inverse and onesided else (1, 2)):
        raise Unsupported(f"a transform of numbers of {count} parts")
    parts = [_axis_last(ops.index_axis(x, -1, i), axis) for i in range(count)]
    scale = 1.0
    if inverse:
        scale = 1.0 / length if isinstance(length, int) else ops.div(1.0, ops.scalar(length, f64))
    if inverse and onesided:
        result = (ops.real_inverse((parts[0], parts[1]), length, scale),)
    elif onesided and count == 1:
        result = ops.real_fourier(parts[0], scale)
    else:
        result = ops.fourier(parts, inverse, scale)
        result = tuple(ops.slice_axis(v, -1, 0, length // 2 + 1) for v in result) if onesided else result
    return ops.stack([_axis_back(v, axis) for v in result], -1)


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
    return fourier(x, axis, c.dims(1)[0] if c.has(1) else natural, inverse, onesided)


@onnx_op("DFT", since=17)
def dft_17(c: Call) -> Result:
    return _dft(c, c.int("axis", 1))


@onnx_op("DFT", since=20)
def dft(c: Call) -> Result:
    return _dft(c, c.ints(2)[0] if c.has(2) else -2)


@onnx_op("STFT", since=17)
def stft(c: Call) -> Result:
    x = c.x()
    (step,) = c.ints(1)
    if c.has(3):
        (length,) = c.ints(3)
    elif c.has(2):
        (length,) = ints_of(c.shape(2), "the window's length")
    else:
        raise Unsupported("a transform without window and frame length")
    x = x if len(x.shape) == 3 else ops.expand_dims(x, 2)
    if step < 1 or length < 1:
        raise Unsupported(f"frames of {length} samples, {step} apart: expected 1 or more of both")
    frames = (x.shape[1] - length) // step + 1
    positions = ops.add(ops.mul(ops.iota((frames, length), 0), step), ops.iota((frames, length), 1))
    framed = ops.Take(1)(x, positions)
    if c.has(2):
        window = c.x(2)
        (width,) = ints_of(window.shape, "the window's length")
        if width < length:
            low_amount = (length - width) // 2
            window = ops.pad(window, (low_amount,), (length - width - low_amount,))
        framed = ops.mul(framed, ops.expand_dims(window, 1))
    return fourier(framed, 2, length, False, c.flag("onesided", 1))


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(c: Call) -> Result:
    """A constant: triangular filters on the mel scale (ONNX operator reference, MelWeightMatrix)."""
    bins, length, rate = (int(c.array(i).reshape(())) for i in range(3))
    low, high = (float(c.array(i).reshape(())) for i in (3, 4))
    spectrum = length // 2 + 1
    if min(bins, length, rate) < 1 or not 0 <= low <= high <= rate / 2:
        raise Unsupported(f"{bins} bands of {low} to {high} Hz of {length} samples at {rate} Hz: there are none such")
    check_table(spectrum, bins)

    def mel(f: float) -> float:
        return 2595 * np.log10(1 + f / 700)

    # the step divides by bins + 2 as in ONNX's definition, so that the last edge lies below `high`
    edges = mel(low) + np.arange(bins + 2) * (mel(high) - mel(low)) / (bins + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    bin_edges = ((length + 1) * hertz // rate).astype(np.int64)
    weights = np.zeros((spectrum, bins), np.float64)
    for i in range(bins):
        left, centre, right = bin_edges[i : i + 3]
        if centre == left:
            weights[centre, i] = 1
        else:
            for j in range(left, centre + 1):
                weights[j, i] = (j - left) / (centre - left)
        for j in range(centre, right):
            weights[j, i] = (right - j) / (right - centre)
    return const(weights.astype(dtype_from_code(c.int("output_datatype", 1)).numpy))
