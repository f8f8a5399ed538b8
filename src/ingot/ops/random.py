"""Random bits: Threefry 2x32 of 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

A number is a function of a key and of the element's position, so it is the same for any number of threads and on every
target, and a key is all that is needed to repeat it. A model's key is derived from its state, (seed, calls) as i64[2]:

    random_key(draw)  ->  the key of this call, loop iteration and draw      (`with_random_state`)
    random_bits(key)  ->  two words for each element, by its position

`ingot.ops.sampling` builds distributions from the bits. The dropout of attention has bits of its own, from Philox 2x32
of 7 rounds (the same paper): kernels compute them next to each score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, Op, Samples, const, rebuild
from ingot.ir.types import DType, Shape, TensorType, i64, static_shape, u32, u64
from ingot.ops import build as b
from ingot.ops.core.base import check_count
from ingot.ops.core.control import Control
from ingot.ops.nn.terms import Term, as_term, iota, where
from ingot.support.dataclass import dataclass

Word = TypeVar("Word")  # a Term, an array, or another value with their operators

KEY = TensorType(u32, (2,))
STATE = TensorType(i64, (2,))

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)  # what a round adds to the key
_PAIR_FACTOR, _PAIR_ROUNDS = 0xD256D193, 7  # of Philox 2x32
# the second word of counters that derive keys; positions of elements are always smaller
_KEY_WORD = 0xFFFFFFFF
_NEXT_ITERATION = 0xFFFFFFFF  # the draw number that derives the key of a loop's next iteration


def threefry(key: tuple[Word, Word], count: tuple[Word, Word]) -> tuple[Word, Word]:
    """The Threefry 2x32 block of counter `count` under `key`; each is two u32 words, of shapes that broadcast."""
    keys: list[Any] = list(key)  # Any: numpy's stubs lose the operand type
    keys.append(keys[0] ^ keys[1] ^ _PARITY)
    x, y = count[0] + keys[0], count[1] + keys[1]
    for round_group in range(5):
        for rotation in _ROTATIONS[round_group % 2]:
            x = x + y
            y = (y << rotation | y >> 32 - rotation) ^ x
        x = x + keys[(round_group + 1) % 3]
        y = y + keys[(round_group + 2) % 3] + (round_group + 1)
    return x, y


def words(x: Word) -> tuple[Word, Word]:
    """The low and the high word of 64-bit integers."""
    return _convert(x, u32), _convert(cast(Any, x) >> 32, u32)


def _convert(x: Any, dtype: DType) -> Any:
    return x.astype(dtype.numpy) if isinstance(x, np.ndarray) else x.cast(dtype)


def philox(key: tuple[Node, Node], count: Sequence[Node]) -> tuple[Node, ...]:
    """The block of Philox 4x32 of 10 rounds (Salmon et al. 2011): four u32 words of four, under a key of two."""
    w, x, y, z = count
    for i in range(10):
        if i:
            key = (b.add(key[0], _PHILOX_KEYS[0]), b.add(key[1], _PHILOX_KEYS[1]))
        (low_w, high_w), (low_y, high_y) = (
            words(Term(b.mul(b.cast(v, u64), by))) for v, by in zip((w, y), _PHILOX_FACTORS, strict=True)
        )
        w, x = b.xor(b.xor(high_y.node, x), key[0]), low_y.node
        y, z = b.xor(b.xor(high_w.node, z), key[1]), low_w.node
    return w, x, y, z


def philox_blocks(key: Node, low: Node, high: Node, places: Node) -> Node:
    """u32[n, 4]: the blocks at a 128-bit counter (low, high) plus places, u64[n]. key, low, high: u64[]."""
    at = b.add(places, low)
    carry = b.cast(b.compare("LT", at, low), u64)
    high_words = b.add(b.broadcast_to(high, at.shape), carry)
    count = (v.node for part in (at, high_words) for v in words(Term(part)))
    first, second = (b.broadcast_to(v.node, at.shape) for v in words(Term(key)))
    return b.stack(philox((first, second), tuple(count)), 1)


def philox_pair(key: Word, count: tuple[Word, Word]) -> tuple[Word, Word]:
    """The Philox 2x32 block of counter `count` under `key`; each is a u32 word, of shapes that broadcast."""
    (x, y), round_key = count, cast(Any, key)  # Any: numpy's stubs lose the operand type
    for i in range(_PAIR_ROUNDS):
        low, high = words(_convert(x, u64) * _PAIR_FACTOR)
        x, y = high ^ (round_key + i * _PHILOX_KEYS[0] % (1 << 32)) ^ y, low
    return x, y


def score_keys(seed: Word, head: Word) -> tuple[Word, Word]:
    """The keys of a head's scores under the 64 bits of a seed. head: its number among those of all samples, u32."""
    low, high = words(seed)
    return philox_pair(low, (head, high))


def kept_scores(keys: tuple[Any, Any], row: tuple[Any, Any], column: tuple[Any, Any], rate: float) -> Any:
    """The scores of a head that a dropout of `rate` keeps. row, column: their positions, by `without_bit_3`.

    A block has 16 bits for each of four scores, whose rows and columns differ in bit 3 alone: the same thread has them
    in a tile of products, and in its transpose.
    """
    (row_pair, is_lower), (column_pair, is_right) = row, column
    x, y = philox_pair(keys[0], (column_pair, row_pair ^ keys[1]))
    word = x + (y - x) * is_lower
    # the bits shifted to the top, for one comparison
    return word * (is_right * 0xFFFF + 1) < min(round((1 - rate) * (1 << 16)), (1 << 16) - 1) << 16


def without_bit_3(position: Any) -> tuple[Any, Any]:
    """A position, in u32, without bit 3; bit 3."""
    return position >> 4 << 3 | position & 7, position >> 3 & 1


def counted_key(seed: Node, count: Node) -> Node:
    """The key u32[2] of a draw that is identified by a seed and a count, each i64[]."""
    return _pack_key(threefry(words(Term(seed)), words(Term(count))), (2,))


def fold_in(key: Node, number: int) -> Node:
    """The key derived from `key` by `number`, below 2^32."""
    return b.index_axis(_fold_in_all(key, [number]), 0, 0)


def _fold_in_all(key: Node, numbers: Sequence[int]) -> Node:
    """u32[n, 2]: `fold_in` of each number."""
    column = Term(const(np.asarray(numbers, np.uint32)[:, None]))
    return _pack_key(threefry(_key_words(key), (column, _word(_KEY_WORD))), (len(numbers), 2))


def _key_words(key: Node) -> tuple[Term, Term]:
    return Term(b.index_axis(key, 0, 0)), Term(b.index_axis(key, 0, 1))


def _pack_key(pair: tuple[Term, Term], shape: Shape) -> Node:
    """The two words along the last axis. A select needs one kernel, a concat would need two."""
    first = iota(shape, len(shape) - 1).equals(0)
    return as_term(where(first, *pair)).node


def _word(value: int) -> Term:
    return Term(b.scalar(value, u32))


@dataclass(frozen=True)
class RandomBits(Op):
    """Two u32 tensors of `shape` of random bits, from a key u32[2].

    The two words of an element are the Threefry block whose counter is its row-major index.
    """

    name: ClassVar[str] = "random_bits"
    shape: Shape

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        self.expect(inputs[0] == KEY, f"expected a key {KEY}, got {inputs[0]}")
        return (TensorType(u32, self.shape),) * 2

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        shape = static_shape(self.shape)
        position = np.arange(math.prod(shape), dtype=np.uint64)
        return tuple(v.reshape(shape) for v in threefry((inputs[0][:1], inputs[0][1:]), words(position)))

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        size = product(self.shape)
        if isinstance(size, int) and size <= 1 << 32:
            count = iota((size,), 0, u32).reshape(self.shape), _word(0)
        else:
            count = words(iota((size,), 0, u64).reshape(self.shape))
        return tuple(v.node for v in threefry(_key_words(inputs[0]), count))

    @classmethod
    def samples(cls) -> Samples:
        key = np.asarray([0x13198A2E, 0x03707344], np.uint32)
        for shape in ((), (0,), (7,), (3, 0, 2), (5, 3, 17), (1000,)):
            yield cls(shape), (key,)
        yield cls((2, 2)), (np.asarray([0xFFFFFFFF, 0], np.uint32),)


@dataclass(frozen=True)
class RandomKey(Op):
    """The key u32[2] of a draw, another in each call and iteration. `with_random_state` derives it from the state.

    draw: the number of the draw, unique in the model. seed: a seed instead of the model's, which ONNX nodes may have;
    None: the model's seed.
    """

    name: ClassVar[str] = "random_key"
    draws: ClassVar[bool] = True
    draw: int
    seed: int | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 0)
        return KEY

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        """The key in the first call."""
        call = threefry(words(np.asarray([self.seed or 0])), words(np.zeros(1, np.int64)))
        count = np.full(1, self.draw, np.uint32), np.full(1, _KEY_WORD, np.uint32)
        return np.concatenate(threefry(call, count))

    @classmethod
    def samples(cls) -> Samples:
        for draw, seed in ((0, None), (3, None), (3, -7), (0, 1 << 40)):
            yield cls(draw, seed), ()


def draws_random(graph: Graph) -> bool:
    """Whether `graph`, or a graph nested in it, draws random numbers."""
    return any(n.op.draws or any(map(draws_random, n.op.bodies)) for n in graph.nodes())


def with_random_state(graph: Graph, name: str) -> Graph:
    """`graph` with its random keys derived from (seed, calls), a new last state `name`; unchanged if it has no draws.

    bits = random_bits(random_key(0))     ->     bits = random_bits(fold_in(threefry(seed, calls), 0))
                                                 next = (seed, calls + 1)
    """
    if not draws_random(graph):
        return graph
    labels = {n.op.label for n in graph.inputs if isinstance(n.op, Input)}
    label = next(name for name in ("random", *(f"random_{i}" for i in range(len(labels)))) if name not in labels)
    state = Input(label, STATE)()
    calls = b.index_axis(state, 0, 1)
    seeds = dict.fromkeys(key.seed for key in _keys(graph))
    seed_values = {seed: b.index_axis(state, 0, 0) if seed is None else b.scalar(seed, i64) for seed in seeds}
    keys = {seed: counted_key(x, calls) for seed, x in seed_values.items()}
    inner = _with_keys(graph, keys)
    next_state = b.add(state, b.stack([b.scalar(0, i64), b.scalar(1, i64)]))
    n_state = len(graph.state)
    outputs = (*inner.outputs[:n_state], next_state, *inner.outputs[n_state:])
    names = (
        (*graph.output_names[:n_state], f"next {label}", *graph.output_names[n_state:]) if graph.output_names else ()
    )
    inputs, state_names = (*graph.inputs, state), (*graph.state, name)
    return replace(inner, inputs=inputs, outputs=outputs, output_names=names, state=state_names)


def _keys(graph: Graph) -> Iterator[RandomKey]:
    """The random keys of `graph` and of graphs nested in it."""
    for n in graph.nodes():
        if isinstance(n.op, RandomKey):
            yield n.op
        for body in n.op.bodies:
            yield from _keys(body)


def _with_keys(graph: Graph, keys: dict[int | None, Node]) -> Graph:
    """`graph` with the keys of its draws derived from `keys`, by seed."""
    key_ops = [n.op for n in graph.nodes() if isinstance(n.op, RandomKey)]
    key_nodes: dict[RandomKey, Node] = {}
    for seed, key in keys.items():
        seed_ops = [op for op in key_ops if op.seed == seed]
        table = _fold_in_all(key, [op.draw for op in seed_ops]) if seed_ops else key
        key_nodes |= {op: b.index_axis(table, 0, i) for i, op in enumerate(seed_ops)}

    def rule(n: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(n.op, RandomKey):
            return key_nodes[n.op]
        if not any(map(draws_random, n.op.bodies)):
            return n.with_inputs(inputs)
        assert isinstance(n.op, Control)
        seeds = tuple(keys)
        op = n.op.with_extra_operands(lambda body: _with_key_inputs(body, seeds))
        result = op(*inputs, *keys.values(), loc=n.loc)
        # the keys turn a single result of a loop into one of several
        return result.results[0] if len(n.types) == 1 else result

    return replace(graph, outputs=rebuild(graph.outputs, rule=rule))


def _with_key_inputs(body: Graph, seeds: Sequence[int | None]) -> tuple[Graph, tuple[Node, ...]]:
    """`body` with keys as its last inputs, and the keys of the next iteration."""
    keys = [Input(f"random key {i}", KEY)() for i in range(len(seeds))]
    inner = _with_keys(body, dict(zip(seeds, keys, strict=True)))
    return replace(inner, inputs=(*body.inputs, *keys)), tuple(fold_in(key, _NEXT_ITERATION) for key in keys)
