"""Random bits: Threefry 2x32 of 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

A number is a function of a key and of its place, so it is the same on any number of threads and on every target, and a
key says all that there is to repeat. A model's key is its state, (seed, calls) as i64[2]:

    random_key(draw)  ->  the key of this call, of this turn of a loop, of this draw        (`seeded`)
    random_bits(key)  ->  two words for each element, by the element's place

`ingot.ops.sampling` makes distributions of the bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, Op, Samples, const, rebuilt
from ingot.ir.types import Shape, TensorType, i64, static_shape, u32, u64
from ingot.ops import build as b
from ingot.ops.core.base import check_count
from ingot.ops.core.control import Control
from ingot.ops.nn.terms import Term, as_term, iota, where
from ingot.support.dataclass import dataclass

Word = TypeVar("Word", Term, np.ndarray)

KEY = TensorType(u32, (2,))
STATE = TensorType(i64, (2,))

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
# the second word of a count that makes a key; places of elements do not get there
_KEYS = 0xFFFFFFFF
_NEXT = 0xFFFFFFFF  # of the draws: the key of a loop's next turn


def threefry(key: tuple[Word, Word], count: tuple[Word, Word]) -> tuple[Word, Word]:
    """The block of `count` under `key`, each two words (u32) of any shapes that broadcast."""
    keys: tuple[Any, ...] = (*key, key[0] ^ key[1] ^ _PARITY)  # Any: numpy's stubs lose the type that operators keep
    x, y = count[0] + keys[0], count[1] + keys[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << by | y >> 32 - by) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def words(x: Word) -> tuple[Word, Word]:
    """The low and the high word of 64-bit integers."""
    if isinstance(x, Term):
        return x.cast(u32), (x >> 32).cast(u32)
    return x.astype(np.uint32), (x >> 32).astype(np.uint32)


def fold_in(key: Node, number: int) -> Node:
    """A key of its own for each number below 2^32."""
    return b.index_axis(_folded(key, [number]), 0, 0)


def _folded(key: Node, numbers: Sequence[int]) -> Node:
    """u32[n, 2]: `fold_in` of each number."""
    column = Term(const(np.asarray(numbers, np.uint32)[:, None]))
    return _key(threefry(_of_key(key), (column, _word(_KEYS))), (len(numbers), 2))


def _of_key(key: Node) -> tuple[Term, Term]:
    return Term(b.index_axis(key, 0, 0)), Term(b.index_axis(key, 0, 1))


def _key(pair: tuple[Term, Term], shape: Shape) -> Node:
    """The words beside each other on the last axis: one kernel makes both, where a concat would take two."""
    first = iota(shape, len(shape) - 1).equals(0)
    return as_term(where(first, *pair)).node


def _word(value: int) -> Term:
    return Term(b.scalar(value, u32))


@dataclass(frozen=True)
class RandomBits(Op):
    """Two u32 of random bits for each element of `shape`, from a key u32[2]: the block that the element's place in
    row-major order counts."""

    name: ClassVar[str] = "random_bits"
    shape: Shape

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        check_count(self, inputs, 1)
        self.expect(inputs[0] == KEY, f"expected a key {KEY}, got {inputs[0]}")
        return (TensorType(u32, self.shape),) * 2

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        shape = static_shape(self.shape)
        place = np.arange(math.prod(shape), dtype=np.uint64)
        return tuple(v.reshape(shape) for v in threefry((inputs[0][:1], inputs[0][1:]), words(place)))

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        size = product(self.shape)
        if isinstance(size, int) and size <= 1 << 32:
            count = iota((size,), 0, u32).reshape(self.shape), _word(0)
        else:
            count = words(iota((size,), 0, u64).reshape(self.shape))
        return tuple(v.node for v in threefry(_of_key(inputs[0]), count))

    @classmethod
    def samples(cls) -> Samples:
        key = np.asarray([0x13198A2E, 0x03707344], np.uint32)
        for shape in ((), (0,), (7,), (3, 0, 2), (5, 3, 17), (1000,)):
            yield cls(shape), (key,)
        yield cls((2, 2)), (np.asarray([0xFFFFFFFF, 0], np.uint32),)


@dataclass(frozen=True)
class RandomKey(Op):
    """The key u32[2] of a draw, another one in each call and in each turn of a loop. `seeded` makes it of the state.

    draw: its number, other than those of a model's other draws. seed: its own instead of the model's, as a node of
    ONNX may have; None: the model's.
    """

    name: ClassVar[str] = "random_key"
    draws: ClassVar[bool] = True
    draw: int
    seed: int | None = None

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 0)
        return KEY

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        """That of a first call."""
        call = threefry(words(np.asarray([self.seed or 0])), words(np.zeros(1, np.int64)))
        count = np.full(1, self.draw, np.uint32), np.full(1, _KEYS, np.uint32)
        return np.concatenate(threefry(call, count))

    @classmethod
    def samples(cls) -> Samples:
        for draw, seed in ((0, None), (3, None), (3, -7), (0, 1 << 40)):
            yield cls(draw, seed), ()


def draws(graph: Graph) -> bool:
    """Whether a graph, or one inside it, draws random numbers."""
    return any(n.op.draws or any(map(draws, n.op.bodies)) for n in graph.nodes())


def seeded(graph: Graph, name: str) -> Graph:
    """A graph that draws, with (seed, calls) as the last of its state, of this name.

    bits = random_bits(random_key(0))     ->     bits = random_bits(fold_in(threefry(seed, calls), 0))
                                                 next = (seed, calls + 1)
    """
    if not draws(graph):
        return graph
    labels = {n.op.label for n in graph.inputs if isinstance(n.op, Input)}
    label = next(name for name in ("random", *(f"random_{i}" for i in range(len(labels)))) if name not in labels)
    state = Input(label, STATE)()
    calls = b.index_axis(state, 0, 1)
    seeds = dict.fromkeys(key.seed for key in _keys(graph))
    firsts = {seed: b.index_axis(state, 0, 0) if seed is None else b.scalar(seed, i64) for seed in seeds}
    keys = {seed: _key(threefry(words(Term(x)), words(Term(calls))), (2,)) for seed, x in firsts.items()}
    inner = _drawing(graph, keys)
    after = b.add(state, b.stack([b.scalar(0, i64), b.scalar(1, i64)]))
    held = len(graph.state)
    outputs = (*inner.outputs[:held], after, *inner.outputs[held:])
    names = (*graph.output_names[:held], f"next {label}", *graph.output_names[held:]) if graph.output_names else ()
    inputs, kept = (*graph.inputs, state), (*graph.state, name)
    return replace(inner, inputs=inputs, outputs=outputs, output_names=names, state=kept)


def _keys(graph: Graph) -> Iterator[RandomKey]:
    """The keys that a graph, and those inside it, draw with."""
    for n in graph.nodes():
        if isinstance(n.op, RandomKey):
            yield n.op
        for body in n.op.bodies:
            yield from _keys(body)


def _drawing(graph: Graph, keys: dict[int | None, Node]) -> Graph:
    """`graph` with its draws' keys made of `keys`, by seed."""
    own = [n.op for n in graph.nodes() if isinstance(n.op, RandomKey)]
    made: dict[RandomKey, Node] = {}
    for seed, key in keys.items():
        of_seed = [op for op in own if op.seed == seed]
        table = _folded(key, [op.draw for op in of_seed]) if of_seed else key
        made |= {op: b.index_axis(table, 0, i) for i, op in enumerate(of_seed)}

    def drawn(n: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(n.op, RandomKey):
            return made[n.op]
        if not any(map(draws, n.op.bodies)):
            return n.with_inputs(inputs)
        assert isinstance(n.op, Control)
        seeds = tuple(keys)
        op = n.op.with_extra_operands(lambda body: _threaded(body, seeds))
        done = op(*inputs, *keys.values(), loc=n.loc)
        # with the keys a loop has several results where it had one
        return done.results[0] if len(n.types) == 1 else done

    return replace(graph, outputs=rebuilt(graph.outputs, rule=drawn))


def _threaded(body: Graph, seeds: Sequence[int | None]) -> tuple[Graph, tuple[Node, ...]]:
    """`body` with keys as its last inputs, and the keys of the next turn."""
    given = [Input(f"random key {i}", KEY)() for i in range(len(seeds))]
    inner = _drawing(body, dict(zip(seeds, given, strict=True)))
    return replace(inner, inputs=(*body.inputs, *given)), tuple(fold_in(key, _NEXT) for key in given)
