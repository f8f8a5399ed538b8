"""Distributions: random numbers of a given shape and dtype from a key (`ingot.ops.random`).

f16 and bf16 samples are rounded from f32, except uniform ones, which are generated with the precision of the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import DType, Shape, bf16, boolean, f16, f32, f64, i32, i64, u64
from ingot.ops import build as b
from ingot.ops.build import Operand
from ingot.ops.core.binary import Convert, Or, ShiftLeft, ShiftRightLogical
from ingot.ops.core.elementwise import Ceil, IsFinite, Neg, Sqrt
from ingot.ops.core.functions import Cos, Exp, Log, Log1p, Tan
from ingot.ops.core.indexing import Sort
from ingot.ops.nn.selection import TopK
from ingot.ops.random import RandomBits, fold_in

_DIGITS = {f64: 53, f32: 24, f16: 11, bf16: 8}

FLOATS = frozenset(_DIGITS)

Sampler = Callable[..., Node]


def _in_f32(sampler: Sampler) -> Sampler:
    """A sampler of f32 and f64 that also samples narrow floats, rounded from f32."""

    @wraps(sampler)
    def sample(key: Node, shape: Shape, dtype: DType = f32) -> Node:
        return b.cast(sampler(key, shape, compute_dtype(dtype)), dtype)

    return sample


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which samples of `dtype` are computed."""
    return f64 if dtype == f64 else f32


def bits(key: Node, shape: Shape) -> tuple[Node, Node]:
    """Two independent u32 words for each element."""
    low, high = RandomBits(tuple(shape))(key).results
    return low, high


def _shift_right(x: Node, by: int) -> Node:
    return ShiftRightLogical()(x, b.full(x.shape, by, x.dtype)) if by else x


def _leading_bits(x: Node, digits: int, dtype: DType) -> Node:
    """The leading `digits` < 32 bits of a word as a float, converted from i32, for which CPUs have an instruction."""
    return b.cast(b.cast(_shift_right(x, 32 - digits), i32), dtype)


def uniform(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Uniform in [0, 1): multiples of 2^-digits of the dtype."""
    x, y = bits(key, shape)
    return _unit(x, y, dtype)


def _unit(x: Node, y: Node, dtype: DType) -> Node:
    digits = _DIGITS[dtype]
    if digits < 32:
        number = _leading_bits(x, digits, f32)
        return b.cast(b.mul(number, 2.0**-digits), dtype)
    return b.mul(b.add(b.mul(_leading_bits(x, 27, f64), 2.0**26), _leading_bits(y, 26, f64)), 2.0**-53)


def uniform_open(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Uniform in (0, 1), f32 or f64, with the full resolution of a word near 0, for logarithms."""
    x, y = bits(key, shape)
    return _unit_open(x, y, dtype)


def _unit_open(x: Node, y: Node, dtype: DType) -> Node:
    if dtype == f64:
        return b.add(_unit(x, y, f64), 2.0**-54)
    value = b.mul(b.add(b.cast(x, f32), 0.5), 2.0**-32)
    return b.minimum(value, 1 - 2.0**-24)


@_in_f32
def normal(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Normal with mean 0 and standard deviation 1, by the Box-Muller transform.

    Box and Muller, "A note on the generation of random normal deviates" (1958).
    """
    x, y = bits(key, shape)
    radius, angle = (x, y), (y, x)
    if dtype == f64:
        radius, angle = (x, y), bits(fold_in(key, 0), shape)
    length = Sqrt()(b.mul(Log()(_unit_open(*radius, dtype)), -2.0))
    return b.mul(length, Cos()(b.mul(_unit(*angle, dtype), 2 * math.pi)))


@_in_f32
def exponential(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Exponential with mean 1; always positive."""
    return Neg()(Log()(uniform_open(key, shape, dtype)))


@_in_f32
def cauchy(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Cauchy with median 0 and scale 1."""
    return Tan()(b.mul(b.sub(uniform_open(key, shape, dtype), 0.5), math.pi))


def geometric(key: Node, shape: Shape, p: Operand, dtype: DType = f32) -> Node:
    """The number of trials of probability `p` (of `dtype`, f32 or f64) up to the first success, 1 or more."""
    trials = b.div(Log()(uniform_open(key, shape, dtype)), Log1p()(b.mul(p, b.scalar(-1.0, dtype))))
    return b.maximum(Ceil()(trials), 1.0)


def bernoulli(key: Node, shape: Shape, p: Operand) -> Node:
    """bool: true with probability `p`, a number or a node (f32 or f64) that broadcasts to `shape`."""
    dtype = p.dtype if isinstance(p, Node) else f32
    return b.compare("LT", uniform(key, shape, dtype), p)


def integers(key: Node, shape: Shape, low: DimLike, high: DimLike) -> Node:
    """i64 uniform in [low, high); probabilities are equal up to 2^-32."""
    span = high - low
    if isinstance(span, int) and span >= 1 << 64:
        return Convert(i64)(join_words(*bits(key, shape)))
    offset = uniform_below(key, shape, b.scalar(span, u64), span if isinstance(span, int) else None)
    return b.add(offset, low)


def uniform_below(key: Node, shape: Shape, span: Node, static_span: int | None = None) -> Node:
    """i64 uniform in [0, span). span: u64, broadcasts to `shape`. static_span: its value, if known."""
    x, y = bits(key, shape)
    spans = b.broadcast_to(span, x.shape)
    if static_span is not None and static_span < 1 << 32:
        # the upper half of 64 bits times the span
        upper, lower = (b.mul(b.cast(v, u64), spans) for v in (x, y))
        return Convert(i64)(_shift_right(b.add(upper, _shift_right(lower, 32)), 32))
    return Convert(i64)(b.rem(join_words(x, y), spans))


def join_words(low: Node, high: Node) -> Node:
    """The u64 of two u32 words."""
    upper = ShiftLeft()(b.cast(high, u64), b.full(high.shape, 32, u64))
    return Or()(b.cast(low, u64), upper)


def permutation(key: Node, count: DimLike) -> Node:
    """i64[count]: a uniformly random permutation of 0, ..., count - 1."""
    x, y = bits(key, (count,))
    return Sort(0, num_keys=2)(x, y, b.arange(count)).results[2]


def categorical(key: Node, weights: Node, count: DimLike) -> Node:
    """i64[..., count]: indices along the last axis of `weights`, drawn in proportion to them, with replacement."""
    cumulative_weights = b.cumulative("sum", b.cast(weights, f64), -1)
    shape = (*weights.shape[:-1], count)
    x, _ = bits(key, shape)
    # 32 bits are exact in f64, so a number is always below the last sum
    target = b.mul(b.mul(b.add(b.cast(x, f64), 0.5), 2.0**-32), b.slice_axis(cumulative_weights, -1, -1))
    is_below = b.compare("LE", b.expand_dims(cumulative_weights, -2), b.expand_dims(target, -1))
    return b.reduce_sum(b.cast(is_below, i64), -1)


def categorical_of_logits(key: Node, logits: Node, count: DimLike) -> Node:
    """As `categorical`, of the weights' logarithms."""
    wide = b.cast(logits, f64)
    top = b.reduce_max(wide, -1, keepdims=True)
    return categorical(key, Exp()(b.sub(wide, b.where(IsFinite()(top), top, 0.0))), count)


def without_replacement(key: Node, weights: Node, count: DimLike) -> Node:
    """i64[..., count]: as `categorical`, but each index at most once (Efraimidis and Spirakis 2006)."""
    priority = b.div(b.cast(weights, f32), exponential(key, weights.shape))
    return TopK(count, len(weights.shape) - 1)(priority).results[1]


def dropout_mask(key: Node, shape: Shape, rate: float | Node) -> Node:
    """bool: the elements that a dropout of `rate` keeps."""
    if rate in (0.0, 1.0):
        return b.full(shape, rate == 0.0, boolean)
    return bernoulli(key, shape, _keep_probability(rate))


def _keep_probability(rate: float | Node) -> float | Node:
    """1 - rate; for a node, in f32 or f64."""
    return b.sub(1.0, b.cast(rate, compute_dtype(rate.dtype))) if isinstance(rate, Node) else 1 - rate


def dropout(key: Node, x: Node, rate: float | Node, shape: Shape | None = None) -> tuple[Node, Node]:
    """(y, mask): x with each element set to 0 with probability `rate`, the others divided by 1 - rate.

    The mask is true for elements that are kept. shape: the shape of the draws, if one decides for several elements.
    """
    keep_mask, keep_probability = dropout_mask(key, x.shape if shape is None else shape, rate), _keep_probability(rate)
    if isinstance(keep_probability, Node):
        scale: Operand = b.cast(
            b.where(b.compare("GT", keep_probability, 0.0), b.div(1.0, keep_probability), 0.0), x.dtype
        )
    else:
        scale = 1 / keep_probability if keep_probability > 0 else 0.0
    return b.mul(x, b.mul(b.cast(keep_mask, x.dtype), scale)), keep_mask
