"""Normalizations. Statistics are computed in two passes (mean, then mean squared deviation), in f32 for narrow
floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from ingot.ir.dims import mod
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import Shape, TensorType, dtype_of, f32
from ingot.ops.build import broadcast_shapes
from ingot.ops.core.base import check_dims, round_to
from ingot.ops.core.binary import Pow
from ingot.ops.core.elementwise import Abs, Sqrt
from ingot.ops.core.reduce import ReduceWindow
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


def _check(op: Op, inputs: Sequence[TensorType], min_count: int, max_count: int, min_rank: int) -> TensorType:
    """Operand x, after checking the number, dtypes and rank of the operands x[, scale[, bias]]."""
    op.expect(min_count <= len(inputs) <= max_count, f"expected {min_count} to {max_count} operands, got {len(inputs)}")
    x = inputs[0]
    op.expect(x.dtype.is_float and x.rank >= min_rank, f"expected a float operand of rank {min_rank} or more, got {x}")
    for i, p in enumerate(inputs[1:], 1):
        op.expect(p.dtype.is_float, f"operand {i}: expected a float operand, got {p}")
    return x


def _check_channels(op: Op, inputs: Sequence[TensorType]) -> None:
    channels = inputs[0].shape[1]
    for i, p in enumerate(inputs[1:], 1):
        op.expect(p.shape == (channels,), f"operand {i}: expected one value for each of {channels} channels, got {p}")


def _standardize(x: Term, axes: Sequence[int], eps: float) -> Term:
    return _with_moments(x, axes, eps)[0]


def _with_moments(x: Term, axes: Sequence[int], eps: float) -> tuple[Term, Term, Term]:
    """x standardized over `axes`, the mean and the variance."""
    mean = x.mean(axes, keepdims=False)
    d = x - mean.restore(x.shape, axes)
    variance = (d * d).mean(axes, keepdims=False)
    return d * t.rsqrt(variance + eps).restore(x.shape, axes), mean, variance


def _standardize_reference(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    d = x - x.mean(axes, keepdims=True)
    return d / np.sqrt((d * d).mean(axes, keepdims=True) + eps)


def _align(p: Node, x: Term, dims: Sequence[int], shape: Shape | None = None) -> Term:
    """Parameter p in the dtype of x, broadcast to `shape` (x's by default): its dimension i becomes dims[i]."""
    return Term(p).cast(x.dtype).spread(shape or x.shape, dims)


def _align_channels(p: np.ndarray, rank: int) -> np.ndarray:
    """A per-channel parameter, reshaped to broadcast against x[N,C,*S]."""
    return t.as_f64(p).reshape(-1, *(1,) * (rank - 2))


def _data(*shape: int, dtype: DTypeLike = np.float32) -> np.ndarray:
    x = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape) * 2 + 3
    return x.astype(dtype)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) [* scale [+ bias]], with moments over `axes` (Ba et al. 2016).

    Operands: x[, scale[, bias]], floats; scale and bias broadcast to the sizes of `axes`, as in numpy. axes:
    non-negative, ascending.
    """

    name: ClassVar[str] = "layer_norm"
    axes: tuple[int, ...]
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 1, 3, 1)
        _check_axes(self, self.axes, *inputs)
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *parameters = (t.as_f64(v) for v in inputs)
        with np.errstate(all="ignore"):
            y = _standardize_reference(x, self.axes, self.eps)
            for i, p in enumerate(parameters):
                p = _align_to_axes_reference(p, x, self.axes)
                y = y + p if i else y * p
        return round_to(y, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x, *parameters = inputs
        y = _standardize(t.widen_narrow(x), self.axes, self.eps)
        for i, p in enumerate(parameters):
            aligned = _align_to_axes(p, y, self.axes)
            y = y + aligned if i else y * aligned
        return y.cast(x.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x, w, b = _data(2, 3, 7), _data(7), _data(7) - 2
        yield cls((2,)), (x,)
        yield cls((2,)), (x, w)
        yield cls((2,), 1e-2), (x, w, b)
        yield cls((1, 2)), (x, _data(3, 7), _data(3, 7))
        yield cls((1, 2)), (x, _data(7), _data(3, 1))
        yield cls((1,)), (x, _data(3), _data(3))
        yield cls((0, 1, 2)), (x,)
        yield cls((2,)), (np.ones((2, 3, 5), np.float32),)
        yield cls((1,)), (np.zeros((0, 5), np.float32), _data(5), _data(5))
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
            yield cls((2,)), tuple(v.astype(dtype) for v in (x, w, b))
        yield cls((2,)), (x.astype(np.float16), w, b)


def _check_axes(op: Op, axes: tuple[int, ...], x: TensorType, *parameters: TensorType) -> None:
    check_dims(op, axes, x.rank, "axes")
    op.expect(axes == tuple(sorted(axes)) and len(axes) > 0, f"axes: expected ascending ones, got {axes}")
    sizes = tuple(x.shape[a] for a in axes)
    for p in parameters:
        is_broadcastable = p.rank <= len(sizes) and broadcast_shapes(sizes, p.shape) == sizes
        op.expect(is_broadcastable, f"expected scale and bias that broadcast to {list(sizes)}, got {p}")


def _align_to_axes_reference(p: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    sizes = tuple(x.shape[a] for a in axes)
    return np.broadcast_to(p, sizes).reshape([x.shape[i] if i in axes else 1 for i in range(x.ndim)])


def _align_to_axes(p: Node, x: Term, axes: tuple[int, ...]) -> Term:
    """A parameter that broadcasts to the sizes of `axes`, broadcast to x."""
    return _align(p, x, axes[len(axes) - len(p.shape) :])


@dataclass(frozen=True)
class Standardize(Op):
    """x -> ((x - mean) / sqrt(var + eps), mean, var), with moments over `axes`: batch normalization in training mode.

    mean and var do not have `axes`; they are f32 if x is narrower. axes: non-negative, ascending.
    """

    name: ClassVar[str] = "standardize"
    axes: tuple[int, ...]
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x = _check(self, inputs, 1, 1, 1)
        _check_axes(self, self.axes, x)
        moment_shape = tuple(d for i, d in enumerate(x.shape) if i not in self.axes)
        moment = TensorType(x.dtype if x.dtype.bits >= 32 else f32, moment_shape)
        return x, moment, moment

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, dtype = t.as_f64(inputs[0]), dtype_of(inputs[0])
        with np.errstate(all="ignore"):
            count = np.float64(np.prod([x.shape[a] for a in self.axes]))
            mean = x.sum(self.axes, keepdims=True) / count
            var = ((x - mean) ** 2).sum(self.axes, keepdims=True) / count
            y = round_to((x - mean) / np.sqrt(var + self.eps), dtype)
            wide = dtype if dtype.bits >= 32 else f32
            return y, *(round_to(v.squeeze(self.axes), wide) for v in (mean, var))

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        (x,) = inputs
        y, mean, variance = _with_moments(t.widen_narrow(x), self.axes, self.eps)
        return y.cast(x.dtype).node, mean.node, variance.node

    @classmethod
    def samples(cls) -> Samples:
        x = _data(4, 3, 5, 7)
        yield cls((0, 2, 3)), (x,)
        yield cls((1, 3), 1e-2), (x,)
        yield cls((0,)), (_data(9, 21),)
        yield cls((0, 1)), (np.full((2, 3), np.inf, np.float32),)
        yield cls((0, 2)), (np.zeros((0, 4, 3), np.float32),)
        for dtype in (np.float16, np.float64):
            yield cls((0, 2, 3)), (x.astype(dtype),)


@dataclass(frozen=True)
class RMSNorm(Op):
    """x / sqrt(mean(x^2) + eps) [* scale], with the mean over `axes` (Zhang and Sennrich 2019).

    Operands: x[, scale]; scale broadcasts to the sizes of `axes`, as in LayerNorm.
    """

    name: ClassVar[str] = "rms_norm"
    axes: tuple[int, ...]
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 1, 2, 1)
        _check_axes(self, self.axes, *inputs)
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *scales = (t.as_f64(v) for v in inputs)
        with np.errstate(all="ignore"):
            y = x / np.sqrt((x * x).mean(self.axes, keepdims=True) + self.eps)
            for p in scales:
                y = y * _align_to_axes_reference(p, x, self.axes)
        return round_to(y, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        first, *scales = inputs
        x = t.widen_narrow(first)
        y = x * t.rsqrt((x * x).mean(self.axes, keepdims=False) + self.eps).restore(x.shape, self.axes)
        for p in scales:
            y = y * _align_to_axes(p, y, self.axes)
        return y.cast(first.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x, w = _data(2, 3, 7), _data(7)
        yield cls((2,)), (x,)
        yield cls((2,), 1e-2), (x, w)
        yield cls((1, 2)), (x, _data(3, 7))
        yield cls((1,)), (x, _data(3))
        yield cls((2,)), (np.zeros((2, 3, 5), np.float32), _data(5))
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
            yield cls((2,)), (x.astype(dtype), w.astype(dtype))


@dataclass(frozen=True)
class GroupNorm(Op):
    """x[N,C,*S] standardized over S and each of `groups` groups of channels [* scale[C] [+ bias[C]]] (Wu and He
    2018)."""

    name: ClassVar[str] = "group_norm"
    groups: int
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 1, 3, 2)
        channels = x.shape[1]
        divides = self.groups >= 1 and mod(channels, self.groups) == 0
        self.expect(divides, f"expected channels in {self.groups} groups, got {x}")
        _check_channels(self, inputs)
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *parameters = (t.as_f64(v) for v in inputs)
        grouped = x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])
        with np.errstate(all="ignore"):
            y = _standardize_reference(grouped, tuple(range(2, grouped.ndim)), self.eps).reshape(x.shape)
            for i, p in enumerate(parameters):
                y = y + _align_channels(p, x.ndim) if i else y * _align_channels(p, x.ndim)
        return round_to(y, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        n, c, *sizes = x.shape
        grouped = x.reshape((n, self.groups, c // self.groups, *sizes))
        y = _standardize(grouped, tuple(range(2, grouped.rank)), self.eps)
        for i, p in enumerate(inputs[1:]):
            column = Term(p).cast(x.dtype).reshape((self.groups, c // self.groups)).spread(y.shape, (1, 2))
            y = y + column if i else y * column
        return y.reshape(x.shape).cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x, w, b = _data(2, 6, 4, 3), _data(6), _data(6) - 2
        for groups in (1, 2, 3, 6):
            yield cls(groups), (x, w, b)
        yield cls(2), (x,)
        yield cls(2, 1e-2), (x, w)
        yield cls(3), (_data(2, 6), w, b)
        for dtype in (np.float16, np.float64):
            yield cls(2), tuple(v.astype(dtype) for v in (x, w, b))


@dataclass(frozen=True)
class InstanceNorm(Op):
    """x[N,C,*S] standardized over S for each sample and channel [* scale[C] [+ bias[C]]] (ONNX
    InstanceNormalization)."""

    name: ClassVar[str] = "instance_norm"
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 1, 3, 3)
        _check_channels(self, inputs)
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *parameters = (t.as_f64(v) for v in inputs)
        with np.errstate(all="ignore"):
            y = _standardize_reference(x, tuple(range(2, x.ndim)), self.eps)
            for i, p in enumerate(parameters):
                y = y + _align_channels(p, x.ndim) if i else y * _align_channels(p, x.ndim)
        return round_to(y, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        y = _standardize(x, tuple(range(2, x.rank)), self.eps)
        for i, p in enumerate(inputs[1:]):
            y = y + _align(p, x, (1,)) if i else y * _align(p, x, (1,))
        return y.cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x, w, b = _data(2, 3, 4, 5), _data(3), _data(3) - 2
        yield cls(), (x,)
        yield cls(1e-2), (x, w)
        yield cls(), (x, w, b)
        yield cls(), (_data(2, 3, 9), w, b)
        yield cls(), tuple(v.astype(np.float16) for v in (x, w, b))


@dataclass(frozen=True)
class BatchNorm(Op):
    """(x[N,C,*S] - mean[C]) / sqrt(var[C] + eps) * scale[C] + bias[C]: batch normalization in inference mode.

    Operands: x, scale, bias, mean, var, as in ONNX BatchNormalization. It lowers to one multiply-add per element.
    """

    name: ClassVar[str] = "batch_norm"
    eps: float = 1e-5

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 5, 5, 2)
        _check_channels(self, inputs)
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x, *parameters = (t.as_f64(v) for v in inputs)
        scale, bias, mean, var = (_align_channels(p, x.ndim) for p in parameters)
        with np.errstate(all="ignore"):
            return round_to((x - mean) / np.sqrt(var + self.eps) * scale + bias, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        scale, bias, mean, var = (Term(p).cast(x.dtype) for p in inputs[1:])
        factor = scale * t.rsqrt(var + self.eps)
        offset = bias - mean * factor
        return (x * factor.spread(x.shape, (1,)) + offset.spread(x.shape, (1,))).cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x = _data(2, 3, 4, 5)
        parameters = (_data(3), _data(3) - 2, _data(3) / 2, np.abs(_data(3)))
        yield cls(), (x, *parameters)
        yield cls(1e-2), (_data(4, 3), *parameters)
        yield cls(), (_data(2, 3, 9).astype(np.float16), *parameters)
        yield cls(), tuple(v.astype(np.float64) for v in (x, *parameters))


@dataclass(frozen=True)
class LocalResponseNorm(Op):
    """x / (bias + alpha / size * sum of x^2 over `size` neighboring channels)^beta, with the window of ONNX LRN.

    For x[N,C,*S], the window of channel c is c - (size - 1) // 2 to c + size // 2.
    """

    name: ClassVar[str] = "local_response_norm"
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, *inputs: TensorType) -> TensorType:
        self.expect(self.size >= 1, f"size: expected at least 1, got {self.size}")
        return _check(self, inputs, 1, 1, 2)

    @property
    def _reach(self) -> tuple[int, int]:
        return (self.size - 1) // 2, self.size // 2

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = t.as_f64(inputs[0])
        low, high = self._reach
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            total[:, c] = (x[:, max(0, c - low) : c + high + 1] ** 2).sum(1)
        return round_to(x / (self.bias + self.alpha / self.size * total) ** self.beta, dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        ones = (1,) * x.rank
        window = (1, self.size, *ones[2:])
        padding = ((0, 0), self._reach, *((0, 0) for _ in ones[2:]))
        total = (x * x).map(ReduceWindow("sum", window, ones, padding, ones, ones))
        base = total * (self.alpha / self.size) + self.bias
        beta = t.scalar(self.beta, x.dtype).broadcast(x.shape)
        return (x / Term(Pow()(base.node, beta.node))).cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x = _data(2, 7, 3, 2)
        for size in (1, 3, 4, 9):
            yield cls(size, 0.1, 0.75, 2.0), (x,)
        yield cls(5), (x.astype(np.float16),)


@dataclass(frozen=True)
class LpNorm(Op):
    """x divided by its p-norm along `axis`, for p = 1 or 2; 0 if the norm is 0 (ONNX LpNormalization)."""

    name: ClassVar[str] = "lp_norm"
    axis: int = -1
    p: int = 2

    def infer(self, *inputs: TensorType) -> TensorType:
        x = _check(self, inputs, 1, 1, 1)
        check_dims(self, (self.axis,), x.rank, "axis")
        self.expect(self.p in (1, 2), f"p: expected 1 or 2, got {self.p}")
        return x

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        x = t.as_f64(inputs[0])
        with np.errstate(all="ignore"):
            total = (np.abs(x) ** self.p).sum(self.axis, keepdims=True)
            norm = np.sqrt(total) if self.p == 2 else total
            return round_to(np.where(norm == 0, 0, x / norm), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        x = t.widen_narrow(inputs[0])
        powers = x * x if self.p == 2 else x.map(Abs())
        total = powers.sum((self.axis,), keepdims=False)
        norm = (total.map(Sqrt()) if self.p == 2 else total).restore(x.shape, (self.axis,))
        y = t.where(norm.equals(0), 0.0, x / norm)
        assert isinstance(y, Term)
        return y.cast(inputs[0].dtype).node

    @classmethod
    def samples(cls) -> Samples:
        x = _data(3, 4, 5)
        x[1] = 0
        for p in (1, 2):
            for axis in range(3):
                yield cls(axis, p), (x,)
        yield cls(1), (x.astype(np.float16),)
