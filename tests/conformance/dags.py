"""Random graphs of CORE ops: what fusion, layout assignment and storage have to get right in any combination.

A graph grows op by op from values that already exist, so values have many users; sizes come from a small set, so shapes
meet; some sizes are symbols. Outputs are drawn from all values: inputs, constants, views, one value twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, bounds, exact_quotient, substitute, symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DTYPES, DType, Shape, TensorType, boolean, f32, i64
from ingot.support.errors import ShapeError

SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 24, 33, 40)
FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
INTEGERS = ("i32", "i64", "i8", "u8", "i16", "u16", "u32", "u64")
LARGEST = 60_000
OTHER = {"s": 1, "t": 5}  # what a dynamic graph runs at beside its own sizes
# sums in another order, and functions that the reference computes in more bits
INEXACT = (
    "tanh", "logistic", "erf", "exponential", "dot_general", "convolution", "reduce", "reduce_window", "cum_reduce",
)  # fmt: skip


@dataclass
class Dag:
    """The graph under construction."""

    rng: np.random.Generator
    dtype: DType
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)
    values: list[Node] = field(default_factory=list)
    rounded: set[Node] = field(default_factory=set)  # floats that may differ in their last bits

    def add(self, node: Node) -> None:
        self.values.append(node)
        inexact = node.op.name in INEXACT or any(self.is_rounded(i) for i in node.inputs)
        if inexact and node.dtype.is_float:
            self.rounded.add(node)

    def is_rounded(self, node: Node) -> bool:
        return node in self.rounded or (node not in self.values and any(map(self.is_rounded, node.inputs)))

    def pick_exact(self) -> Node:
        """For ops whose result jumps."""
        return self.pick([v for v in self.values if v not in self.rounded])

    def pick(self, options: list[Node]) -> Node:
        """Later values more often: chains grow long."""
        options = options or self.values
        weights = np.linspace(1, 3, len(options))
        return options[int(self.rng.choice(len(options), p=weights / weights.sum()))]

    def one(self, *options: object) -> object:
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> DimLike:
        if self.sizes and self.rng.random() < 0.25:
            return symbol(list(self.sizes)[int(self.rng.integers(len(self.sizes)))])
        return int(self.rng.choice(SIZES))

    def shape(self, rank: int | None = None) -> Shape:
        rank = int(self.rng.choice([0, 1, 2, 2, 3, 3, 4])) if rank is None else rank
        dims: list[DimLike] = []
        for _ in range(rank):
            dims.append(self.size())
            if self.count(tuple(dims)) > LARGEST:
                dims[-1] = 1
        return tuple(dims)

    def number(self, d: DimLike) -> int:
        return int(substitute(d, self.sizes))

    def count(self, shape: Shape) -> int:
        return int(np.prod([self.number(d) for d in shape], dtype=np.int64))

    def fits(self, shape: Shape) -> bool:
        """Not too large, and no size below zero at any of the sizes that the graph will run at."""
        some = self.count(shape) <= LARGEST
        return some and all(int(substitute(d, at)) >= 0 for d in shape for at in (self.sizes, OTHER))  # type: ignore[arg-type]

    def input(self, shape: Shape, dtype: DType) -> Node:
        node = Input(f"x{len(self.inputs)}", TensorType(dtype, shape))()
        self.inputs.append(node)
        self.values.append(node)
        return node

    def of(self, dtype: DType, rank: Callable[[int], bool] = lambda r: True) -> list[Node]:
        return [v for v in self.values if v.dtype == dtype and rank(v.type.rank)]

    def some(self, rank: int) -> tuple[int, ...]:
        """Some of `rank` dimensions, at least one, ascending."""
        return tuple(sorted(self.rng.choice(rank, int(self.rng.integers(1, rank + 1)), False).tolist()))

    def constant(self, shape: tuple[int, ...], dtype: DType) -> Node:
        return const(data(self.rng, shape, dtype))

    def like(self, x: Node) -> Node:
        """Another value of x's type: an old one, a broadcast one, or a new input."""
        candidates = [v for v in self.values if v.type == x.type]
        which = self.rng.random()
        if which < 0.5:
            return self.pick(candidates)
        if which < 0.65:
            return ops.BroadcastInDim(x.shape, ())(self.constant((), x.dtype))
        if which < 0.9 and x.type.rank:
            dims = self.some(x.type.rank)
            shape = tuple(x.shape[d] if self.rng.random() < 0.8 else 1 for d in dims)
            return ops.BroadcastInDim(x.shape, dims)(self.input(shape, x.dtype))
        return self.input(x.shape, x.dtype)


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Small numbers, halves and quarters: sums of products of them are exact in f32."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "u" else -7, 8, shape).astype(dtype.numpy)
    return (rng.integers(-16, 17, shape) / 8).astype(dtype.numpy)


def unary(d: Dag) -> Node | None:
    if d.rng.random() < 0.1:
        x = d.pick_exact()
        return ops.Floor()(x) if x.dtype.is_float else None
    x = d.pick(d.values)
    if x.dtype == boolean:
        return ops.Not()(x)
    if x.dtype.is_float:
        return d.one(ops.Neg(), ops.Abs(), ops.Tanh(), ops.Logistic(), ops.Erf())(x)  # type: ignore[operator]
    return d.one(ops.Neg(), ops.Abs(), ops.Not())(x)  # type: ignore[operator]


def binary(d: Dag) -> Node | None:
    x = d.pick(d.values)
    y = d.like(x)
    if x.dtype == boolean:
        return d.one(ops.And(), ops.Or(), ops.Xor())(x, y)  # type: ignore[operator]
    return d.one(ops.Add(), ops.Sub(), ops.Mul(), ops.Max(), ops.Min(), ops.Add())(x, y)  # type: ignore[operator]


def compare(d: Dag) -> Node | None:
    x = d.pick_exact()
    y = d.like(x)
    return None if d.is_rounded(y) else ops.Compare(str(d.one("LT", "GE", "EQ")))(x, y)


def select(d: Dag) -> Node | None:
    flags = d.of(boolean)
    if not flags:
        return None
    p = d.pick(flags)
    candidates = [v for v in d.values if v.shape == p.shape and v.dtype != boolean]
    if not candidates:
        return None
    x = d.pick(candidates)
    return ops.Select()(p, x, d.like(x))


def convert(d: Dag) -> Node | None:
    x = d.pick_exact()
    return ops.Convert(DTYPES[str(d.one(d.dtype.name, "f32", "i32", "i64", "u8", "bool"))])(x)


def broadcast(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank <= 3])
    rank = x.type.rank + int(d.rng.integers(0, 3 if x.type.rank < 3 else 2))
    dims = tuple(sorted(d.rng.choice(rank, x.type.rank, False).tolist()))
    shape = list(d.shape(rank))
    for axis, at in enumerate(dims):
        if x.shape[axis] != 1 or d.rng.random() < 0.3:
            shape[at] = x.shape[axis]
    return ops.BroadcastInDim(tuple(shape), dims)(x)


def reshape(d: Dag) -> Node | None:
    x = d.pick(d.values)
    shape = list(x.shape)
    if len(shape) > 1 and d.rng.random() < 0.6:
        at = int(d.rng.integers(len(shape) - 1))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    for at in d.rng.permutation(len(shape)).tolist():
        for n in (2, 3, 5, 8):
            part = exact_quotient(shape[at], n)
            if len(shape) < 5 and shape[at] != n and part is not None and d.rng.random() < 0.5:
                shape[at : at + 1] = [n, part] if d.rng.random() < 0.5 else [part, n]
                break
    if len(shape) < 5 and d.rng.random() < 0.3:
        shape.insert(int(d.rng.integers(len(shape) + 1)), 1)
    elif 1 in shape and d.rng.random() < 0.3:
        shape.remove(1)
    return ops.Reshape(tuple(shape))(x)  # type: ignore[arg-type]


def transpose(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank > 1] or d.values)
    return ops.Transpose(tuple(d.rng.permutation(x.type.rank).tolist()))(x) if x.type.rank > 1 else None


def slices(d: Dag) -> Node | None:
    x = d.pick(d.values)
    start, limit, steps = [], [], []
    for n in x.shape:
        if isinstance(n, int) and n > 1 and d.rng.random() < 0.6:
            a = int(d.rng.integers(0, n - 1))
            start.append(a)
            limit.append(int(d.rng.integers(a + 1, n + 1)))
            steps.append(int(d.rng.choice([1, 1, 1, 2, 3])))
        else:
            start.append(0)
            limit.append(n)
            steps.append(1)
    return ops.Slice(tuple(start), tuple(limit), tuple(steps))(x) if x.type.rank else None


def reverse(d: Dag) -> Node | None:
    x = d.pick(d.values)
    return ops.Reverse((int(d.rng.integers(x.type.rank)),))(x) if x.type.rank else None


def pad(d: Dag) -> Node | None:
    x = d.pick(d.values)
    if not x.type.rank or x.dtype == boolean:
        return None
    amounts = ([0, 0, 1, 2], [0, 0, 1, 3], [0, 0, 0, 0, 0, 1])
    low, high, interior = ([int(v) for v in d.rng.choice(c, x.type.rank)] for c in amounts)
    if d.rng.random() < 0.1:
        low[0] = -1 if x.shape[0] != 1 and isinstance(x.shape[0], int) else low[0]
    interior = [0 if bounds(n)[0] == 0 else i for n, i in zip(x.shape, interior, strict=True)]  # see ops.Pad
    fill = const(np.zeros((), x.dtype.numpy)) if d.rng.random() < 0.7 else d.constant((), x.dtype)
    return ops.Pad(tuple(low), tuple(high), tuple(interior))(x, fill)


def concat(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank] or d.values)
    if not x.type.rank:
        return None
    axis = int(d.rng.integers(x.type.rank))
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    candidates = [
        v
        for v in d.values
        if v.dtype == x.dtype and v.type.rank == x.type.rank and v.shape[:axis] + v.shape[axis + 1 :] == rest
    ]
    parts = [x, *(d.pick(candidates) for _ in range(int(d.rng.integers(1, 5))))]
    return ops.Concat(axis)(*(parts[i] for i in d.rng.permutation(len(parts))))


def reduce(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank] or d.values)
    if not x.type.rank:
        return None
    dims = d.some(x.type.rank)
    if x.dtype == boolean:
        return ops.Reduce(str(d.one("and", "or")), dims)(x)
    return ops.Reduce(str(d.one("sum", "max", "min")), dims)(x)


def normalize(d: Dag) -> Node | None:
    """x - max(x) back in x's shape, and on: the pattern of softmax and norms."""
    x = d.pick([v for v in d.of(d.dtype) if v.type.rank] or d.values)
    if not x.type.rank or x.dtype == boolean:
        return None
    dims = d.some(x.type.rank)
    remaining_axes = tuple(a for a in range(x.type.rank) if a not in dims)
    top = ops.Reduce(str(d.one("max", "sum", "min")), dims)(x)
    y = ops.Sub()(x, ops.BroadcastInDim(x.shape, remaining_axes)(top))
    if d.rng.random() < 0.7:
        z = ops.Abs()(y) if d.rng.random() < 0.5 else y
        total = ops.Reduce("sum", dims)(z)
        y = ops.Add()(y, ops.BroadcastInDim(x.shape, remaining_axes)(total))
    return y


def arg_reduce(d: Dag) -> Node | None:
    x = d.pick_exact()
    if not x.type.rank or x.dtype == boolean or any((bounds(n)[0] or 0) < 1 for n in x.shape):
        return None
    return ops.ArgReduce(str(d.one("max", "min")), int(d.rng.integers(x.type.rank)), bool(d.rng.random() < 0.5))(x)


def dot(d: Dag) -> Node | None:
    x = d.pick([v for v in d.of(d.dtype) if v.type.rank > 1] or d.values)
    if x.type.rank < 1 or x.dtype == boolean:
        return None
    axis = int(d.rng.integers(x.type.rank))
    k = x.shape[axis]
    kind = d.rng.random()
    n = int(d.rng.choice([1, 3, 8, 17, 33]))
    if d.count(x.shape) // max(d.number(k), 1) * n > LARGEST:
        return None
    if kind < 0.4 and isinstance(k, int):
        y, other = d.constant((k, n), x.dtype), 0
    elif kind < 0.6 and isinstance(k, int):
        y, other = d.constant((n, k), x.dtype), 1
    elif kind < 0.8:
        y, other = d.input((k, n), x.dtype), 0
    else:
        candidates = [(v, a) for v in d.values if v.dtype == x.dtype for a in range(v.type.rank) if v.shape[a] == k]
        y, other = candidates[int(d.rng.integers(len(candidates)))]
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if y.type.rank > 1 and d.rng.random() < 0.5:
        pairs = [
            (i, j) for i in range(x.type.rank) for j in range(y.type.rank)
            if i != axis and j != other and x.shape[i] == y.shape[j]
        ]  # fmt: skip
        if pairs:
            i, j = pairs[int(d.rng.integers(len(pairs)))]
            batch = ((i,), (j,))
    return ops.DotGeneral(batch, ((axis,), (other,)))(x, y)


def conv(d: Dag) -> Node | None:
    x = d.pick(d.of(d.dtype, lambda r: r in (3, 4)) or d.values)
    if x.type.rank not in (3, 4) or x.dtype == boolean or not isinstance(x.shape[1], int) or 0 in x.shape:
        return None
    spatial = x.type.rank - 2
    c = x.shape[1]
    groups = int(d.one(1, 1, c, 2 if c % 2 == 0 else 1))  # type: ignore[call-overload]
    out_channels = groups * int(d.rng.choice([1, 2, 4, 16])) if groups == 1 or d.rng.random() < 0.5 else groups
    window = tuple(int(v) for v in d.rng.choice([1, 2, 3], spatial))
    w = d.constant((out_channels, c // groups, *window), x.dtype)
    if d.count(x.shape) // c * out_channels > LARGEST:
        return None
    letters = "HW"[:spatial] if spatial > 1 else "W"
    data_layout, kernel = f"NC{letters}", f"OI{letters}"
    strides = tuple(int(v) for v in d.rng.choice([1, 1, 2], spatial))
    padding = tuple((int(a), int(b)) for a, b in d.rng.choice([0, 1, 1, 2], (spatial, 2)))
    ones = (1,) * spatial
    dilation = tuple(int(v) for v in d.rng.choice([1, 1, 1, 2], spatial))
    return ops.Convolution(strides, padding, ones, dilation, data_layout, kernel, data_layout, groups)(x, w)


def pool(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank and v.dtype != boolean] or d.values)
    if not x.type.rank or x.dtype == boolean:
        return None
    r = x.type.rank
    window = tuple(int(v) for v in d.rng.choice([1, 1, 2, 3], r))
    strides = tuple(int(v) for v in d.rng.choice([1, 1, 2], r))
    padding = tuple((int(a), int(b)) for a, b in d.rng.choice([0, 0, 1], (r, 2)))
    return ops.ReduceWindow(str(d.one("max", "sum", "min")), window, strides, padding, (1,) * r, (1,) * r)(x)


def gather(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank] or d.values)
    if not x.type.rank:
        return None
    axis = int(d.rng.integers(x.type.rank))
    if 0 in (d.number(x.shape[axis]), int(substitute(x.shape[axis], OTHER))):  # type: ignore[arg-type]
        return None
    n = d.size()
    if d.number(n) * d.count(x.shape) // max(1, d.number(x.shape[axis])) > LARGEST:
        return None
    index = d.input((n,), i64) if d.rng.random() < 0.6 else ops.Iota(TensorType(i64, (n,)), 0)()
    sizes = tuple(1 if a == axis else s for a, s in enumerate(x.shape))
    offset = tuple(a for a in range(x.type.rank) if a != axis)
    return ops.Gather(offset, (axis,), (), (), (axis,), 1, sizes)(x, index)


def iota(d: Dag) -> Node | None:
    shape = d.shape(int(d.rng.integers(1, 4)))
    return ops.Iota(TensorType(DTYPES[str(d.one("f32", "i64", "i32"))], shape), int(d.rng.integers(len(shape))))()


def update(d: Dag) -> Node | None:
    x = d.pick([v for v in d.values if v.type.rank] or d.values)
    if not x.type.rank or not all(isinstance(n, int) and n for n in x.shape):
        return None
    piece = tuple(int(d.rng.integers(1, int(n) + 1)) for n in x.shape)
    starts = [const(np.asarray(int(d.rng.integers(-1, 4)), np.int64)) for _ in x.shape]
    if d.rng.random() < 0.5:
        return ops.DynamicSlice(piece)(x, *starts)
    return None


Steps = tuple[tuple[Callable[[Dag], Node | None], float], ...]  # what may be added, and how often
STEPS: Steps = (
    (unary, 3), (binary, 5), (compare, 0.6), (select, 1), (convert, 1), (broadcast, 1.5), (reshape, 3), (transpose, 3),
    (slices, 2), (reverse, 0.5), (pad, 2), (concat, 2.5), (reduce, 2), (normalize, 2), (arg_reduce, 0.5), (dot, 2),
    (conv, 2.5), (pool, 1), (gather, 1), (iota, 0.4), (update, 0.4),
)  # fmt: skip


def random_graph(seed: int, dynamic: bool, length: int = 14, vocabulary: Steps = STEPS) -> tuple[Graph, dict[str, int]]:
    """(graph, the sizes of its symbols)."""
    rng = np.random.default_rng(seed)
    floats = rng.random() < 0.75
    dtype = DTYPES[str(rng.choice(FLOATS if floats else INTEGERS))]
    d = Dag(rng, dtype, {"s": int(rng.choice([2, 7, 19])), "t": int(rng.choice([1, 3, 32]))} if dynamic else {})
    if dynamic:
        d.input(tuple(map(symbol, d.sizes)), dtype)  # symbols get their values from inputs
    for _ in range(2):
        d.input(d.shape(), dtype)
    image = (int(rng.choice([1, 2])), int(rng.choice([1, 3, 4, 16])), *(int(v) for v in rng.choice([5, 6, 9], 2)))
    d.input(image, dtype)
    if rng.random() < 0.3:
        d.values.append(d.constant((3, 4), f32))
    steps, weights = zip(*vocabulary, strict=True)
    p = np.asarray(weights) / sum(weights)
    while len(d.values) < length + 3:
        try:
            node = steps[int(rng.choice(len(steps), p=p))](d)
        except ShapeError:
            continue
        if node is not None and d.fits(node.shape):
            d.add(node)
    used = {v for n in d.values for v in n.inputs}
    outputs = [v for v in d.values if v not in used]
    outputs += [d.pick(d.values) for _ in range(int(rng.integers(0, 3)))]
    if rng.random() < 0.2:
        outputs.append(outputs[0])
    return Graph(tuple(d.inputs), tuple(outputs)), d.sizes


def operands(graph: Graph, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    """Inputs for the graph with its symbols at `sizes`."""
    rng = np.random.default_rng(seed + 1)
    return [data(rng, tuple(int(substitute(n, sizes)) for n in x.shape), x.dtype) for x in graph.inputs]
