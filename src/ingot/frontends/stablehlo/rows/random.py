"""Random bits: the counter-based generators of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

State and results are bit for bit those of XLA's RngBitGenerator.
"""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.dims import product
from ingot.ir.node import Node
from ingot.ir.types import DTYPES, TensorType, static_shape, u32, u64

row = Table()

Pair = tuple[Node, Node]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _rotated(x: Node, by: int) -> Node:
    left, right = (ops.full(x.shape, n, u32) for n in (by, 32 - by))
    return ops.Or()(ops.ShiftLeft()(x, left), ops.ShiftRightLogical()(x, right))


def threefry(key: Pair, count: Pair) -> Pair:
    """Threefry 2x32 with 20 rounds."""
    keys = (*key, ops.xor(ops.xor(key[0], key[1]), _PARITY))
    x, y = (ops.add(c, k) for c, k in zip(count, keys, strict=False))
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = ops.add(x, y)
            y = ops.xor(_rotated(y, by), x)
        x = ops.add(x, keys[(group + 1) % 3])
        y = ops.add(ops.add(y, keys[(group + 2) % 3]), group + 1)
    return x, y


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _wide_product(a: Node, by: int) -> Pair:
    """The high and the low word."""
    whole = ops.mul(ops.cast(a, u64), by)
    return _high(whole), ops.cast(whole, u32)


def _high(x: Node) -> Node:
    return ops.cast(ops.ShiftRightLogical()(x, ops.full(x.shape, 32, u64)), u32)


def philox(key: Pair, count: tuple[Node, Node, Node, Node]) -> tuple[Node, Node, Node, Node]:
    """Philox 4x32 with 10 rounds."""
    a, b, c, d = count
    for i in range(10):
        if i:
            key = (ops.add(key[0], _WEYL[0]), ops.add(key[1], _WEYL[1]))
        (high_a, low_a), (high_c, low_c) = _wide_product(a, _MULTIPLIERS[0]), _wide_product(c, _MULTIPLIERS[1])
        a, b, c, d = ops.xor(ops.xor(high_c, b), key[0]), low_c, ops.xor(ops.xor(high_a, d), key[1]), low_a
    return a, b, c, d


def _word(x: Node, index: int) -> Node:
    return ops.index_axis(x, 0, index)


def _joined(low: Node, high: Node) -> Node:
    upper = ops.ShiftLeft()(ops.cast(high, u64), ops.full(high.shape, 32, u64))
    return ops.Or()(ops.cast(low, u64), upper)


@row("rng_bit_generator")
def rng_bit_generator(c: Call, state: Node) -> Pair:
    algorithm = c.word("rng_algorithm", "DEFAULT")
    type = c.types[1]
    if type is None or None in type.shape:
        raise Unsupported("a result whose size is not written")
    shape = static_shape(tuple(d or 0 for d in type.shape))
    bits = ops.cast(state, u64) if state.dtype.bits == 64 else None
    if bits is None or state.type.rank != 1:
        raise Unsupported(f"a state of {state.type}")
    key = (ops.cast(_word(bits, 0), u32), _high(_word(bits, 0)))
    count, wide = int(product(shape)), type.dtype.bits == 64
    if algorithm == "PHILOX" or (algorithm == "DEFAULT" and state.shape == (3,)):
        words, new = _philox_words(bits, key, 2 * count if wide else count)
        pairs = ops.reshape(words, (count, 2)) if wide else words
        values = _joined(ops.index_axis(pairs, 1, 0), ops.index_axis(pairs, 1, 1)) if wide else words
    else:
        # a block is one wide number; narrow ones are the first halves of all blocks, then the second halves
        halves, new = _threefry_words(bits, key, count if wide else (count + 1) // 2)
        values = _joined(*halves) if wide else ops.slice_axis(ops.concat(halves, 0), 0, 0, count)
    unsigned = ops.cast(values, DTYPES[f"u{type.dtype.bits}"])
    out = ops.reshape(unsigned, shape)
    result = out if out.dtype == type.dtype else ops.BitcastConvert(type.dtype)(out)
    return ops.cast(new, state.dtype), result


def _threefry_words(state: Node, key: Pair, blocks: int) -> tuple[Pair, Node]:
    first = _word(state, 1)
    at = ops.add(ops.broadcast_to(first, (blocks,)), ops.Iota(TensorType(u64, (blocks,)), 0)())
    low, high = (ops.broadcast_to(k, (blocks,)) for k in key)
    halves = threefry((low, high), (ops.cast(at, u32), _high(at)))
    return halves, ops.stack([_word(state, 0), ops.add(first, blocks)], 0)


def _philox_words(state: Node, key: Pair, count: int) -> Pair:
    """`count` words, the four of a block beside each other."""
    blocks = (count + 3) // 4
    low = _word(state, 1)
    high = _word(state, 2) if state.shape == (3,) else _word(state, 0)
    step = ops.Iota(TensorType(u64, (blocks,)), 0)()
    at = ops.add(ops.broadcast_to(low, (blocks,)), step)
    carried = ops.cast(ops.compare("LT", at, ops.broadcast_to(low, (blocks,))), u64)
    over = ops.add(ops.broadcast_to(high, (blocks,)), carried)
    keys = tuple(ops.broadcast_to(k, (blocks,)) for k in key)
    words = philox((keys[0], keys[1]), (ops.cast(at, u32), _high(at), ops.cast(over, u32), _high(over)))
    flat = ops.slice_axis(ops.reshape(ops.stack(words, 1), (4 * blocks,)), 0, 0, count)
    end = ops.add(low, blocks)
    new_high = ops.add(high, ops.cast(ops.compare("LT", end, low), u64))
    # a state of two words has no room for the carry
    words_of_state = [_word(state, 0), end, new_high] if state.shape == (3,) else [_word(state, 0), end]
    return flat, ops.stack(words_of_state, 0)


@row("rng")
def rng(c: Call, *xs: Node) -> Node:
    raise Unsupported("numbers of no seed; generate them outside, or by rng_bit_generator")
