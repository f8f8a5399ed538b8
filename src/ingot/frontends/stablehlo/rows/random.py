"""Random bits: the counter-based generators of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

State and results are bit for bit those of XLA's RngBitGenerator.
"""

from __future__ import annotations

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.values import Call, Table
from ingot.ir.dims import product
from ingot.ir.node import Node
from ingot.ir.types import DTYPES, boolean, i64, static_shape, u64
from ingot.ops import sampling
from ingot.ops.nn.terms import Term

row = Table()

Pair = tuple[Node, Node]


def _word(x: Node, index: int) -> Node:
    return ops.index_axis(x, 0, index)


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
    wide = type.dtype.bits == 64
    if algorithm == "THREE_FRY":
        values, new = (_threefry_wide if wide else _threefry_narrow)(bits, shape)
    else:
        count = int(product(shape))
        words, new = _philox_words(bits, 2 * count if wide else count)
        pairs = ops.reshape(words, (count, 2)) if wide else words
        values = sampling.join_words(ops.index_axis(pairs, 1, 0), ops.index_axis(pairs, 1, 1)) if wide else words
    unsigned = ops.cast(values, DTYPES[f"u{type.dtype.bits}"])
    bits_ = ops.reshape(unsigned, shape)
    result = bits_ if bits_.dtype == type.dtype else ops.BitcastConvert(type.dtype)(bits_)
    return ops.cast(new, state.dtype), result


def _threefry_wide(state: Node, shape: tuple[int, ...]) -> Pair:
    """One block for each element."""
    halves, new = _threefry_blocks(state, shape)
    return sampling.join_words(*halves), new


def _threefry_narrow(state: Node, shape: tuple[int, ...]) -> Pair:
    """One block for two neighbours on the first axis of even size, else on the longest, with half a block unused."""
    if not shape:
        values, new = _threefry_narrow(state, (1,))
        return ops.reshape(values, ()), new
    axis = next((i for i, d in enumerate(shape) if d % 2 == 0), max(range(len(shape)), key=lambda i: shape[i]))
    half = (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])
    halves, new = _threefry_blocks(state, half)
    pairs = ops.reshape(ops.stack(halves, axis + 1), (*half[:axis], 2 * half[axis], *half[axis + 1 :]))
    return ops.slice_axis(pairs, axis, 0, shape[axis]), new


def _threefry_blocks(state: Node, shape: tuple[int, ...]) -> tuple[Pair, Node]:
    """The halves of blocks with row-major counters."""
    first, count = _word(state, 1), int(product(shape))
    at = ops.reshape(ops.add(ops.arange(count, u64), first), shape)
    low, high = ops.threefry(ops.words(Term(_word(state, 0))), ops.words(Term(at)))
    return (low.node, high.node), ops.stack([_word(state, 0), ops.add(first, count)], 0)


def _philox_words(state: Node, count: int) -> Pair:
    """`count` words, the four words of a block adjacent."""
    blocks = (count + 3) // 4
    low, high = _word(state, 1), _word(state, 2 if state.shape == (3,) else 0)
    words = ops.philox_blocks(_word(state, 0), low, high, ops.arange(blocks, u64))
    flat = ops.slice_axis(ops.reshape(words, (4 * blocks,)), 0, 0, count)
    end = ops.add(low, blocks)
    new_high = ops.add(high, ops.cast(ops.compare("LT", end, low), u64))
    # a state of two words has no room for the carry
    words_of_state = [_word(state, 0), end, new_high] if state.shape == (3,) else [_word(state, 0), end]
    return flat, ops.stack(words_of_state, 0)


@row("rng")
def rng(c: Call, low: Node, high: Node, shape: object) -> Node:
    """Numbers of the model's seed: uniform from `low` up to `high`, or normal of mean `low` and deviation `high`."""
    sizes, dtype, key = c.sizes(shape), c.dtype, c.importer.random_key()
    low, high = (ops.broadcast_to(v, sizes) for v in (low, high))
    if dtype.is_float and dtype in sampling.FLOATS:
        normal = c.word("rng_distribution") == "NORMAL"
        drawn = (sampling.normal if normal else sampling.uniform)(key, sizes, sampling.compute_dtype(dtype))
        by, first = (high, low) if normal else (ops.sub(high, low), low)
        return ops.cast(ops.add(ops.mul(drawn, ops.cast(by, drawn.dtype)), ops.cast(first, drawn.dtype)), dtype)
    if c.word("rng_distribution") == "NORMAL" or dtype.is_float:
        raise Unsupported(f"numbers of {dtype}")
    if dtype == boolean:
        return ops.cast(sampling.bernoulli(key, sizes, 0.5), dtype)
    span = ops.sub(ops.cast(high, i64), ops.cast(low, i64))
    return ops.cast(ops.add(ops.cast(low, i64), sampling.uniform_below(key, sizes, ops.cast(span, u64))), dtype)
