"""Random numbers: those of a seed bit for bit as TensorFlow draws them (Philox), others by the model's generator."""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import ceildiv, product
from ingot.ir.node import Node, const
from ingot.ir.types import DTYPES, DType, Shape, f32, f64, i32, u32, u64
from ingot.ops import distributions, sampling, special
from ingot.ops.nn.terms import Term

row = Table()
_SCRAMBLE = (0x3EC8F720, 0x02461E29)
_PHILOX, _AUTO = 1, 3


def _halves(x: Node) -> tuple[Node, Node]:
    """The low and the high word of u64."""
    low, high = ops.words(Term(x))
    return low.node, high.node


def _scrambled(seed: Node) -> tuple[Node, Node]:
    """(key u64[1], counter u64[2]) of a seed of two numbers."""
    bits = ops.cast(seed, u64) if seed.dtype.bits == 64 else ops.cast(ops.cast(seed, DTYPES["i64"]), u64)
    words = [ops.reshape(w, (1,)) for i in (0, 1) for w in _halves(ops.index_axis(bits, 0, i))]
    key = tuple(ops.full((1,), k, u32) for k in _SCRAMBLE)
    a, b, c, d = ops.philox((key[0], key[1]), (words[0], words[1], words[2], words[3]))
    return sampling.join_words(a, b), ops.concat([ops.full((1,), 0, u64), sampling.join_words(c, d)], 0)


@row("StatelessRandomGetKeyCounter", results=("key", "counter"))
def key_counter(c: Call, seed: Node) -> Result:
    return _scrambled(seed)


@row("StatelessRandomGetKeyCounterAlg", results=("key", "counter", "alg"))
def key_counter_algorithm(c: Call, seed: Node) -> Result:
    return [*_scrambled(seed), const(_PHILOX, i32.numpy)]


@row("StatelessRandomGetAlg")
def algorithm(c: Call) -> Node:
    return const(_PHILOX, i32.numpy)


def _words(key: Node, counter: Node, count: object) -> Node:
    """u32[blocks, 4]: as many words at least."""
    return _blocks(key, counter, ops.arange(ceildiv(count, 4), u64))  # type: ignore[arg-type]


def _blocks(key: Node, counter: Node, places: Node) -> Node:
    """u32[n, 4]: the numbers at the positions u64[n] after the counter."""
    key, low, high = ops.index_axis(key, 0, 0), ops.index_axis(counter, 0, 0), ops.index_axis(counter, 0, 1)
    return ops.philox_blocks(key, low, high, places)


def _drawn(key: Node, counter: Node, shape: Shape, wide: bool) -> Node:
    """u32, or u64 where `wide`, of this shape."""
    count = product(shape)
    words = ops.reshape(_words(key, counter, 2 * count if wide else count), (-1,))
    if wide:
        pairs = ops.reshape(words, (-1, 2))
        words = sampling.join_words(ops.index_axis(pairs, 1, 0), ops.index_axis(pairs, 1, 1))
    return ops.reshape(ops.slice_axis(words, 0, 0, count), shape)


def _unit(bits: Node) -> Node:
    """[0, 1) of a word's low bits: those of a mantissa."""
    digits, one_bits, dtype = (52, 1023 << 52, f64) if bits.dtype == u64 else (23, 127 << 23, f32)
    raw = ops.or_(ops.and_(bits, (1 << digits) - 1), one_bits)
    if dtype == f64:  # the first word of a pair is the upper one
        low, high = _halves(bits)
        raw = ops.or_(ops.and_(sampling.join_words(high, low), (1 << digits) - 1), one_bits)
    return ops.sub(ops.BitcastConvert(dtype)(raw), 1.0)


def _normal(key: Node, counter: Node, shape: Shape, dtype: DType) -> Node:
    count = product(shape)
    even = 2 * ceildiv(count, 2)
    pairs = _box_muller(ops.reshape(_drawn(key, counter, (even,), dtype == f64), (-1, 2)))
    return ops.reshape(ops.slice_axis(ops.reshape(pairs, (-1,)), 0, 0, count), shape)


def _box_muller(bits: Node) -> Node:
    """Pairs of words [n, 2] as pairs of normal numbers."""
    unit = _unit(bits)
    first = ops.maximum(ops.index_axis(unit, 1, 0), 1e-7)
    angle = ops.mul(ops.index_axis(unit, 1, 1), 2 * math.pi)
    length = ops.Sqrt()(ops.mul(ops.Log()(first), -2.0))
    return ops.stack([ops.mul(ops.Sin()(angle), length), ops.mul(ops.Cos()(angle), length)], 1)


_TRUNCATION_DEVIATIONS = 2.0  # of truncated normals
_GROUP_SIZE, _BLOCKS_PER_GROUP, _CANDIDATES = 4, 256, 16


def _truncated(key: Node, counter: Node, shape: Shape) -> Node:
    """Of each four results the first four of their numbers below the cut: 256 blocks belong to them, of which
    TensorFlow draws until four are there. Of 16 numbers fewer than four are below it once in 10^15."""
    count = product(shape)
    groups, blocks = ceildiv(count, _GROUP_SIZE), _CANDIDATES // 4
    first = ops.expand_dims(ops.mul(ops.arange(groups, u64), _BLOCKS_PER_GROUP), 1)
    positions = ops.reshape(ops.add(first, ops.arange(blocks, u64)), (-1,))
    words = ops.reshape(_blocks(key, counter, positions), (-1, 2))
    numbers = ops.reshape(_box_muller(words), (groups, _CANDIDATES))
    is_beyond = ops.cast(ops.compare("GE", ops.Abs()(numbers), _TRUNCATION_DEVIATIONS), i32)
    ordered = ops.Sort(1, False, True, 1)(is_beyond, numbers).results[1]
    return ops.reshape(
        ops.slice_axis(ops.reshape(ops.slice_axis(ordered, 1, 0, _GROUP_SIZE), (-1,)), 0, 0, count), shape
    )


def _source(c: Call, operands: tuple[Node, ...]) -> tuple[Node, Node, tuple[Node, ...]]:
    """(key, counter, what is behind) of (seed, ...), or of (key, counter, algorithm, ...)."""
    if not c.op.endswith("V2"):
        return *_scrambled(operands[0]), operands[1:]
    key, counter, alg, *rest = operands
    if c.size(alg) not in (_PHILOX, _AUTO):
        raise Unsupported(f"algorithm {c.size(alg)}, which is not Philox")
    return key, counter, tuple(rest)


@row("StatelessTruncatedNormal", "StatelessTruncatedNormalV2")
def stateless_truncated(c: Call, sizes: Node, *operands: Node) -> Node:
    key, counter, _ = _source(c, operands)
    if c.dtype("dtype", f32) != f32:
        raise Unsupported(f"of {c.dtype('dtype')}")
    return _truncated(key, counter, c.lengths(sizes))


@row("StatelessRandomUniform", "StatelessRandomUniformV2", "StatelessRandomNormal", "StatelessRandomNormalV2")
def stateless_float(c: Call, sizes: Node, *operands: Node) -> Node:
    key, counter, _ = _source(c, operands)
    shape, dtype = c.lengths(sizes), c.dtype("dtype", f32)
    if dtype not in (f32, f64):
        raise Unsupported(f"of {dtype}")
    if "Normal" in c.op:
        return _normal(key, counter, shape, dtype)
    return _unit(_drawn(key, counter, shape, dtype == f64))


@row("StatelessRandomUniformInt", "StatelessRandomUniformIntV2")
def stateless_int(c: Call, sizes: Node, *operands: Node) -> Node:
    """From the least up to the greatest, by the rest of a division."""
    key, counter, (low, high) = _source(c, operands)
    unsigned = DTYPES[f"u{low.dtype.bits}"]
    span = ops.cast(ops.sub(high, low), unsigned)
    bits = _drawn(key, counter, c.lengths(sizes), low.dtype.bits == 64)
    return ops.add(ops.cast(ops.rem(bits, ops.broadcast_to(span, bits.shape)), low.dtype), low)


@row("StatelessRandomUniformFullInt", "StatelessRandomUniformFullIntV2")
def stateless_bits(c: Call, sizes: Node, *operands: Node) -> Node:
    key, counter, _ = _source(c, operands)
    dtype = c.dtype("dtype")
    return ops.cast(_drawn(key, counter, c.lengths(sizes), dtype.bits == 64), dtype)


@row("RandomUniform", "RandomStandardNormal")
def of_the_model(c: Call, sizes: Node) -> Node:
    draw = sampling.normal if "Normal" in c.op else sampling.uniform
    return draw(c.walk.random_key(), c.lengths(sizes), c.dtype("dtype", f32))


@row("TruncatedNormal")
def truncated_of_the_model(c: Call, sizes: Node) -> Node:
    """By the inverse of the distribution's function between the cuts."""
    tail = math.erfc(_TRUNCATION_DEVIATIONS / math.sqrt(2)) / 2
    unit = sampling.uniform(c.walk.random_key(), c.lengths(sizes), f64)
    return ops.cast(special.ndtri(ops.add(ops.mul(unit, 1 - 2 * tail), tail)), c.dtype("dtype", f32))


@row("RandomGamma", "RandomPoissonV2")
def of_rates(c: Call, sizes: Node, rates: Node) -> Node:
    """[*sizes, *rates]"""
    draw = distributions.gamma if c.op == "RandomGamma" else distributions.poisson
    wide = ops.broadcast_to(rates, (*c.lengths(sizes), *rates.shape))
    return ops.cast(draw(c.walk.random_key(), wide), c.dtype("dtype", rates.dtype))


@row("RandomShuffle")
def shuffle(c: Call, x: Node) -> Node:
    return ops.Take(0)(x, sampling.permutation(c.walk.random_key(), x.shape[0]))


@row("RandomUniformInt")
def int_of_the_model(c: Call, sizes: Node, low: Node, high: Node) -> Node:
    span = ops.cast(ops.sub(high, low), u64)
    return ops.add(ops.cast(sampling.uniform_below(c.walk.random_key(), c.lengths(sizes), span), low.dtype), low)


@row("Multinomial")
def multinomial(c: Call, logits: Node, count: Node) -> Node:
    """Logarithms of weights [b, n] -> places [b, count]."""
    drawn = sampling.categorical_of_logits(c.walk.random_key(), logits, c.numbers(count)[0])
    return ops.cast(drawn, c.dtype("output_dtype", DTYPES["i64"]))
