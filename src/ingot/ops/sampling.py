"""Distributions: numbers of one shape and float type from a key (`ingot.ops.random`).

f16 and bf16 are f32's, rounded, but for uniform numbers, which have as many digits as the type.
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
from ingot.ops.core.elementwise import Ceil, Neg, Sqrt
from ingot.ops.core.functions import Cos, Log, Log1p, Tan
from ingot.ops.core.indexing import Sort
from ingot.ops.nn.selection import TopK
from ingot.ops.random import RandomBits, fold_in

_DIGITS = {f64: 53, f32: 24, f16: 11, bf16: 8}

FLOATS = frozenset(_DIGITS)

Sampler = Callable[..., Node]


def _in_f32(sampler: Sampler) -> Sampler:
    """Narrow floats as f32's, rounded."""

    @wraps(sampler)
    def rounded(key: Node, shape: Shape, dtype: DType = f32) -> Node:
        return b.cast(sampler(key, shape, wide(dtype)), dtype)

    return rounded


def wide(dtype: DType) -> DType:
    """What numbers that become `dtype` are computed in."""
    return f64 if dtype == f64 else f32


def bits(key: Node, shape: Shape) -> tuple[Node, Node]:
    """Two independent u32 for each element."""
    low, high = RandomBits(tuple(shape))(key).results
    return low, high


def _shifted(x: Node, by: int) -> Node:
    return ShiftRightLogical()(x, b.full(x.shape, by, x.dtype)) if by else x


def _real(x: Node, digits: int, dtype: DType) -> Node:
    """The first `digits` < 32 bits of a word as a number; of an i32, which machines convert at once."""
    return b.cast(b.cast(_shifted(x, 32 - digits), i32), dtype)


def uniform(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """In [0, 1), multiples of 2^-digits."""
    x, y = bits(key, shape)
    return _unit(x, y, dtype)


def _unit(x: Node, y: Node, dtype: DType) -> Node:
    digits = _DIGITS[dtype]
    if digits < 32:
        whole = _real(x, digits, f32)
        return b.cast(b.mul(whole, 2.0**-digits), dtype)
    return b.mul(b.add(b.mul(_real(x, 27, f64), 2.0**26), _real(y, 26, f64)), 2.0**-53)


def positive(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """In (0, 1), f32 or f64: as fine near 0 as a word allows, for logarithms."""
    x, y = bits(key, shape)
    return _open(x, y, dtype)


def _open(x: Node, y: Node, dtype: DType) -> Node:
    if dtype == f64:
        return b.add(_unit(x, y, f64), 2.0**-54)
    near = b.mul(b.add(b.cast(x, f32), 0.5), 2.0**-32)
    return b.minimum(near, 1 - 2.0**-24)


@_in_f32
def normal(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Mean 0, deviation 1, by Box and Muller's transform ("A note on the generation of random normal deviates",
    1958)."""
    x, y = bits(key, shape)
    radius, angle = (x, y), (y, x)
    if dtype == f64:
        radius, angle = (x, y), bits(fold_in(key, 0), shape)
    length = Sqrt()(b.mul(Log()(_open(*radius, dtype)), -2.0))
    return b.mul(length, Cos()(b.mul(_unit(*angle, dtype), 2 * math.pi)))


@_in_f32
def exponential(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Mean 1; above 0."""
    return Neg()(Log()(positive(key, shape, dtype)))


@_in_f32
def cauchy(key: Node, shape: Shape, dtype: DType = f32) -> Node:
    """Median 0, scale 1."""
    return Tan()(b.mul(b.sub(positive(key, shape, dtype), 0.5), math.pi))


def geometric(key: Node, shape: Shape, p: Operand, dtype: DType = f32) -> Node:
    """How many trials of probability `p` (of `dtype`, f32 or f64) it takes to succeed: 1 or more."""
    trials = b.div(Log()(positive(key, shape, dtype)), Log1p()(b.mul(p, b.scalar(-1.0, dtype))))
    return b.maximum(Ceil()(trials), 1.0)


def bernoulli(key: Node, shape: Shape, p: Operand) -> Node:
    """bool: true with probability `p`, a number or a node (f32 or f64) that broadcasts to `shape`."""
    dtype = p.dtype if isinstance(p, Node) else f32
    return b.compare("LT", uniform(key, shape, dtype), p)


def integers(key: Node, shape: Shape, low: DimLike, high: DimLike) -> Node:
    """i64 in [low, high), each with the same probability up to 2^-32."""
    span = high - low
    if isinstance(span, int) and span >= 1 << 64:
        return Convert(i64)(joined(*bits(key, shape)))
    drawn = below(key, shape, b.scalar(span, u64), span if isinstance(span, int) else None)
    return b.add(drawn, low)


def below(key: Node, shape: Shape, span: Node, known: int | None = None) -> Node:
    """i64 of [0, span), u64 that broadcasts to `shape`; known: what it is."""
    x, y = bits(key, shape)
    spread = b.broadcast_to(span, x.shape)
    if known is not None and known < 1 << 32:
        # the upper half of 64 bits times the span
        upper, lower = (b.mul(b.cast(v, u64), spread) for v in (x, y))
        return Convert(i64)(_shifted(b.add(upper, _shifted(lower, 32)), 32))
    return Convert(i64)(b.rem(joined(x, y), spread))


def joined(low: Node, high: Node) -> Node:
    """u64 of two words."""
    upper = ShiftLeft()(b.cast(high, u64), b.full(high.shape, 32, u64))
    return Or()(b.cast(low, u64), upper)


def permutation(key: Node, count: DimLike) -> Node:
    """i64[count]: 0 .. count - 1 in an order of which all are equally likely."""
    x, y = bits(key, (count,))
    return Sort(0, num_keys=2)(x, y, b.arange(count)).results[2]


def categorical(key: Node, weights: Node, count: DimLike) -> Node:
    """i64[..., count]: places on the last axis of `weights`, drawn in proportion to them, each time of all."""
    total = b.cumulative("sum", b.cast(weights, f64), -1)
    shape = (*weights.shape[:-1], count)
    x, _ = bits(key, shape)
    # 32 bits of f64's 53: a number is always below the last sum
    at = b.mul(b.mul(b.add(b.cast(x, f64), 0.5), 2.0**-32), b.slice_axis(total, -1, -1))
    below = b.compare("LE", b.expand_dims(total, -2), b.expand_dims(at, -1))
    return b.reduce_sum(b.cast(below, i64), -1)


def without_replacement(key: Node, weights: Node, count: DimLike) -> Node:
    """i64[..., count]: as `categorical`, each place once at most (Efraimidis and Spirakis 2006)."""
    rank = b.div(b.cast(weights, f32), exponential(key, weights.shape))
    return TopK(count, len(weights.shape) - 1)(rank).results[1]


def kept(key: Node, shape: Shape, rate: float | Node) -> Node:
    """bool: what a dropout of `rate` leaves."""
    if rate in (0.0, 1.0):
        return b.full(shape, rate == 0.0, boolean)
    return bernoulli(key, shape, _rest(rate))


def _rest(rate: float | Node) -> float | Node:
    """1 - rate; of a node in f32 or f64."""
    return b.sub(1.0, b.cast(rate, wide(rate.dtype))) if isinstance(rate, Node) else 1 - rate


def dropout(key: Node, x: Node, rate: float | Node, shape: Shape | None = None) -> tuple[Node, Node]:
    """`x` with each element 0 at probability `rate` and the others over 1 - rate, and which stayed.

    shape: of the draws, where one decides for several elements.
    """
    stays, rest = kept(key, x.shape if shape is None else shape, rate), _rest(rate)
    if isinstance(rest, Node):
        scale: Operand = b.cast(b.where(b.compare("GT", rest, 0.0), b.div(1.0, rest), 0.0), x.dtype)
    else:
        scale = 1 / rest if rest > 0 else 0.0
    return b.mul(x, b.mul(b.cast(stays, x.dtype), scale)), stays
