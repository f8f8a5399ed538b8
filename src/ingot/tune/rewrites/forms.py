"""Equal forms of a small graph, from terms over its inputs that are enumerated bottom-up and deduplicated.

    (x, c0, c1) -> dot(dot(x, c0), c1)      gives      (x, c0, c1) -> dot(x, dot(c0, c1))

As in TASO (Jia et al. 2019, section 3), terms are compared by their values at a random point: terms of equal values
count as equal. Here the values are in a finite field and sizes are small primes, so that a term costs microseconds;
forms are then proved at the model's own sizes. Terms are pruned if they cost more than the graph, or if they multiply
inputs that the graph does not: each product of inputs must divide one of the graph's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import permutations

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, substitute, symbols_of
from ingot.ir.node import Const, Graph, Node, Op, splat_of, topological
from ingot.ir.types import Shape
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.match import bare_symbol
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError, ShapeError

_FIELD = 8191  # a prime that keeps sums of up to 2^27 products exact in f64
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
_IMAGE_SIZE = 23  # in place of an open one
MAX_TERMS = 2000
MAX_FREE_OPS = 3  # of terms whose type may differ from the graph's
MIN_OPS = 2
MAX_CHOICES = 64
# a cost model that only prunes; measurements decide
_SECONDS_PER_FLOP, _SECONDS_PER_BYTE, _SECONDS_PER_OP = 1 / 50e9, 1 / 20e9, 1e-6


# The monomials of a polynomial, each as the exponents of the inputs
Products = frozenset[tuple[int, ...]]


def _products(is_product: bool, operands: Sequence[Products]) -> Products:
    if is_product:
        a, b = operands
        return frozenset(tuple(map(sum, zip(p, q, strict=True))) for p in a for q in b)
    return frozenset[tuple[int, ...]]().union(*operands)


@dataclass(frozen=True)
class Term:
    """node: over the inputs of the graph, at its own sizes. value: at small sizes, in the field. parts: the nodes that
    cost time: all that do not depend on constants alone. products: see `Products`."""

    node: Node
    value: np.ndarray = field(compare=False)
    constant: bool
    parts: frozenset[Node]
    products: Products


def forms(
    before: Graph,
    seconds: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
    sizes: Mapping[str, int] | None = None,
) -> list[Graph]:
    """Graphs that probably equal the graph `before` and should cost less, cheapest first. sizes: of its symbols, at
    which the cost model compares."""
    small = _small_sizes(before, sizes or {})
    if small is None:
        return []
    search = _Search(before, small, sizes or {}, clock() + seconds, clock)
    return search.run()


Sizes = Mapping[DimLike | str, int]  # of dimensions, and of symbols


def _small_sizes(before: Graph, sizes: Mapping[str, int]) -> Sizes | None:
    """A small prime for each size, except the spatial sizes of images, which stay, and are `_IMAGE_SIZE` if open. None
    if the graph cannot be shrunk so."""
    fixed_sizes: set[DimLike] = set()
    for n in before.nodes():
        if isinstance(n.op, ops.Slice) and any(step != 1 for step in n.op.strides):
            return None
        if isinstance(n.op, ops.Convolution):
            layouts = zip((n.op.lhs_layout, n.op.rhs_layout, n.op.out_layout), (*n.inputs, n), strict=True)
            fixed_sizes |= {d for layout, x in layouts for c, d in zip(layout, x.shape, strict=True) if c not in "NCOI"}
            fixed_sizes |= {n.op.feature_groups, n.op.batch_groups}
    sums = _sums(before)
    dims = {d for n in before.nodes() for d in n.shape if d not in (0, 1)} | {total for total, _ in sums}
    primes, small, symbols = iter(_PRIMES), dict[DimLike | str, int](), dict[DimLike | str, int]()
    for d in sorted(dims - fixed_sizes, key=lambda d: int(substitute(d, sizes))):
        parts = next((p for total, p in sums if total == d and all(q in small for q in p)), None)
        prime = sum(small[q] for q in parts) if parts else next(primes, None)
        if prime is None:
            return None
        small[d] = prime
        symbols |= dict.fromkeys(bare_symbol(d), prime)
    symbols = dict.fromkeys((name for d in fixed_sizes for name in symbols_of(d)), _IMAGE_SIZE) | symbols
    for attempt in (small | symbols, symbols):
        try:
            if sum(int(np.prod(_shape(n.shape, attempt))) for n in before.nodes()) <= 1 << 20:
                _evaluate(before, attempt, _points(before, attempt))
                return attempt
        except (IngotError, ValueError):
            continue
    return None


def _sums(before: Graph) -> list[tuple[DimLike, list[DimLike]]]:
    """(size, parts) for sizes that are sums of others: of concats, of limits of slices, and of results end to end."""
    sums: list[tuple[DimLike, list[DimLike]]] = []
    for n in before.nodes():
        if isinstance(n.op, ops.Concat):
            parts = [x.shape[n.op.dimension] for x in n.inputs]
            sums.append((n.shape[n.op.dimension], parts))
        elif isinstance(n.op, ops.Slice):
            bounds = zip(n.op.start, n.op.limit, n.shape, strict=True)
            sums += [(high, [low, size]) for low, high, size in bounds if low != 0]
    return sums + [(_total(parts), list(parts)) for parts in _joins(before)]


def _joins(before: Graph) -> list[tuple[DimLike, ...]]:
    """The sizes of results that may be joined along an axis, in all orders."""
    results = before.outputs
    joins: dict[tuple[DimLike, ...], None] = {}
    for count in range(2, len(results) + 1):
        for chosen in permutations(results, count):
            shapes = [n.shape for n in chosen]
            if len({len(s) for s in shapes}) > 1:
                continue
            differing = [d for d, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]
            axes = differing if differing else range(len(shapes[0]))
            joins |= {tuple(s[d] for s in shapes): None for d in axes if len(differing) <= 1}
    return list(joins)


def _total(parts: Sequence[DimLike]) -> DimLike:
    return sum(parts[1:], parts[0])


def _small(d: DimLike, small: Sizes) -> int:
    return small[d] if d in small else int(substitute(d, small))  # type: ignore[arg-type]


def _shape(shape: Shape, small: Sizes) -> tuple[int, ...]:
    return tuple(_small(d, small) for d in shape)


def _points(before: Graph, small: Sizes) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, _FIELD, _shape(n.shape, small)).astype(np.float64) for n in before.inputs]


def _evaluate(before: Graph, small: Sizes, points: Sequence[np.ndarray]) -> list[np.ndarray]:
    values = dict(zip(before.inputs, points, strict=True))
    for n in before.nodes():
        if isinstance(n.op, Const):
            values[n] = equality.literal(np.asarray(n.op.value), _FIELD)
        elif n not in values:
            values[n] = _small_result(n.op, small, [values[i] for i in n.inputs])
    return [values[n] for n in before.outputs]


def _small_result(op: Op, small: Sizes, operands: Sequence[np.ndarray]) -> np.ndarray:
    if isinstance(op, ops.DotGeneral | ops.Convolution):
        op = replace(op, dtype=None)
    elif isinstance(op, ops.Reshape | ops.BroadcastInDim):
        op = replace(op, shape=_shape(op.shape, small))
    elif isinstance(op, ops.Slice):
        op = replace(op, start=_shape(op.start, small), limit=_shape(op.limit, small))
    result = np.asarray(op.reference(*operands))
    return result if isinstance(op, equality.VIEWS) else np.mod(result, _FIELD)


class _Search:
    """The terms of a graph, and of each result those that may be part of a form of all results together."""

    def __init__(
        self, before: Graph, small: Sizes, sizes: Mapping[str, int], deadline: float, clock: Callable[[], float]
    ) -> None:
        self.graph, self.small_sizes, self.sizes, self.deadline, self.clock = before, small, sizes, deadline, clock
        self.types = {n.type for n in before.outputs}
        values = _evaluate(before, small, _points(before, small))
        self.keys = [(n.shape, v.tobytes()) for n, v in zip(before.outputs, values, strict=True)]
        # slightly below the graph's own cost: at equal costs its own form stays
        self.seconds_of: dict[Node, float] = {}
        self.limit = self.cost(_parts(before)) * (1 - 1e-3)
        self.products_of: dict[Node, Products] = {}
        for i, n in enumerate(before.inputs):
            self.products_of[n] = frozenset([tuple(int(i == j) for j in range(len(before.inputs)))])
        for n in before.nodes():
            if n not in self.products_of:
                constant_products = frozenset([(0,) * len(before.inputs)])  # of a literal
                self.products_of[n] = (
                    _products(isinstance(n.op, equality.PRODUCTS), [self.products_of[i] for i in n.inputs])
                    if n.inputs
                    else constant_products
                )
        self.known_products: dict[tuple[bool, tuple[Products, ...]], Products] = {}
        self.target_products = frozenset[tuple[int, ...]]().union(*(self.products_of[n] for n in before.outputs))
        self.terms: dict[tuple[Shape, bytes], Term] = {}
        self.candidates: dict[tuple[Shape, bytes], dict[Node, frozenset[Node]]] = {key: {} for key in self.keys}
        self.visited: set[Node] = set()
        self.binary_ops: dict[tuple[Shape, Shape], list[Op]] = {}
        nodes = before.nodes()
        self.scales = sorted({float(v) for n in nodes if (v := splat_of(n)) is not None and not n.type.rank})
        self.products = list(dict.fromkeys(n.op for n in nodes if isinstance(n.op, ops.DotGeneral | ops.Convolution)))
        self.views = list(dict.fromkeys(n.op for n in nodes if isinstance(n.op, ops.Reshape | ops.BroadcastInDim)))
        self.cuts = list(
            dict.fromkeys(c for n in nodes if isinstance(n.op, ops.Slice) for c in _cuts(n.op, n.inputs[0]))
        )
        self.splits = list(dict.fromkeys(split for parts in _joins(before) for split in _splits(parts)))
        self.elementwise = [ops.Add(), *dict.fromkeys(n.op for n in nodes if isinstance(n.op, ops.Sub))]
        muls = (n for n in nodes if isinstance(n.op, ops.Mul))
        if any(all(splat_of(i) is None for i in n.inputs) for n in muls):
            self.elementwise.append(ops.Mul())

    def run(self) -> list[Graph]:
        """Enumerate terms of 1, 2, 3... ops; terms of more than MAX_FREE_OPS only if they have a result's type."""
        for n, value in zip(self.graph.inputs, _points(self.graph, self.small_sizes), strict=True):
            self.add(n, value, n.op.label.startswith("c"), frozenset(), self.products_of[n])  # type: ignore[attr-defined]
        for n, key in zip(self.graph.outputs, self.keys, strict=True):
            self.candidates[key][n] = frozenset(_parts(self.graph.with_outputs([n])))
        by_size = [list(self.terms.values())]
        max_ops = sum(n.op.computes and not isinstance(n.op, ops.BroadcastInDim) for n in self.graph.nodes())
        count = len(self.graph.outputs)
        # what joins results takes a concat less than there are, the product, and a slice
        free_ops, max_ops = max(MAX_FREE_OPS, count), max(max_ops, MIN_OPS, count + 1 if count > 1 else 0)
        for size in range(1, max_ops + 1):
            known = len(self.terms)
            self.grow(by_size, size, last=size > free_ops)
            by_size.append(list(self.terms.values())[known:])
        return [self.graph.with_outputs(outputs) for outputs in self.together()]

    def together(self) -> list[tuple[Node, ...]]:
        """The cheapest choices of a term for each result, which share what they have in common."""
        choices: list[tuple[tuple[Node, ...], frozenset[Node]]] = [((), frozenset())]
        for key in self.keys:
            longer = [((*nodes, n), parts | p) for nodes, parts in choices for n, p in self.candidates[key].items()]
            choices = sorted((c for c in longer if self.cost(c[1]) < self.limit), key=lambda c: self.cost(c[1]))
            del choices[MAX_CHOICES:]
        return [nodes for nodes, _ in choices if nodes != self.graph.outputs]

    def grow(self, by_size: list[list[Term]], size: int, last: bool) -> None:
        """Add the terms with an op on smaller terms that have `size` - 1 ops in total. last: only those of the graph's
        type."""
        for t in by_size[size - 1]:
            for op in self.unary(t, last or size == 1):
                self.apply(op, (t,), last)
            for s in self.scales:
                self.scale(t, s, last)
        for left_size in range(size):
            for a in by_size[left_size]:
                for b in by_size[size - 1 - left_size]:
                    if not (self.allowed(True, a.products, b.products) or self.allowed(False, a.products, b.products)):
                        continue
                    for op in self.binary(a.node.shape, b.node.shape):
                        self.apply(op, (a, b), last)
                if self.is_over():
                    return

    def is_over(self) -> bool:
        return self.clock() > self.deadline or len(self.terms) > MAX_TERMS

    def unary(self, t: Term, transposed: bool) -> Iterator[Op]:
        rank = t.node.type.rank
        # products take any order of axes: transposes of results are tried last
        orders = list(permutations(range(rank)))[1:] if transposed and rank <= 3 else []
        yield from (ops.Transpose(p) for p in orders)
        for cut in self.cuts if t.constant else ():
            yield from _slices(t.node, *cut)
        for split in self.splits if not t.constant else ():
            yield from (op for op in _slices(t.node, *split) if op.infer(t.node.type) in self.types)
        for op in self.views:
            if isinstance(op, ops.BroadcastInDim):
                is_applicable = len(op.dims) == rank
            else:
                is_applicable = op.shape != t.node.shape
            if is_applicable:
                yield op

    def binary(self, p: Shape, q: Shape) -> list[Op]:
        """The ops to try for values of shapes p and q."""
        if (p, q) not in self.binary_ops:
            self.binary_ops[p, q] = list(self._binary(p, q))
        return self.binary_ops[p, q]

    def _binary(self, p: Shape, q: Shape) -> Iterator[Op]:
        if p == q:
            yield from self.elementwise
        if len(p) == len(q):
            differing_axes = [d for d in range(len(p)) if p[d] != q[d]]
            yield from (ops.Concat(d) for d in range(len(p)) if differing_axes in ([], [d]))
        yield from (op for op in self.products if isinstance(op, ops.Convolution) and len(p) == len(q))
        for op in self.dots(len(p), len(q)):
            pairs = [*zip(*op.batch, strict=True), *zip(*op.contract, strict=True)]
            if all(i < len(p) and j < len(q) and p[i] == q[j] for i, j in pairs):
                yield op

    def dots(self, p: int, q: int) -> list[ops.DotGeneral]:
        """The products to try for values of ranks p and q: the graph's own, and those that contract one of the last
        axes of each operand."""
        dots = [op for op in self.products if isinstance(op, ops.DotGeneral)]
        if p >= 2 and q == 2:
            dots += [ops.DotGeneral(contract=((i,), (j,))) for i in ((1, 0) if p == 2 else (p - 1,)) for j in (0, 1)]
        elif p == q and p > 2:
            batch = tuple(range(p - 2))
            dots += [ops.DotGeneral((batch, batch), ((i,), (j,))) for i in (p - 1, p - 2) for j in (p - 1, p - 2)]
        return list(dict.fromkeys(dots))

    def scale(self, t: Term, s: float, last: bool) -> None:
        node = ops.mul(t.node, s)
        if not last or node.type in self.types:
            value = np.mod(t.value * equality.literal(np.asarray(s, t.node.dtype.numpy), _FIELD), _FIELD)
            self.add(node, value, t.constant, t.parts, t.products)

    def apply(self, op: Op, operands: tuple[Term, ...], last: bool) -> None:
        products = self.allowed(isinstance(op, equality.PRODUCTS), *(t.products for t in operands))
        if not products:
            return
        try:
            node = op(*(t.node for t in operands))
        except (ShapeError, IndexError):
            return
        if node in self.visited or (last and node.type not in self.types):
            return
        self.visited.add(node)
        parts = frozenset[Node]().union(*(t.parts for t in operands))
        constant = all(t.constant for t in operands)
        if self.cost(parts if constant else parts | {node}) > self.limit:
            return
        try:
            value = _small_result(op, self.small_sizes, [t.value for t in operands])
        except (IngotError, ValueError, IndexError):
            return
        self.add(node, value, constant, parts, products)

    def allowed(self, is_product: bool, *operands: Products) -> Products:
        """The products of a term; none if one of them divides none of the graph's."""
        key = (is_product, operands)
        if key not in self.known_products:
            products = _products(is_product, operands)
            divide = all(any(all(map(int.__le__, p, q)) for q in self.target_products) for p in products)
            self.known_products[key] = products if divide else frozenset()
        return self.known_products[key]

    def cost(self, parts: Collection[Node]) -> float:
        return sum(self.seconds(n) for n in parts)

    def seconds(self, n: Node) -> float:
        if n not in self.seconds_of:
            self.seconds_of[n] = _seconds(n, self.sizes)
        return self.seconds_of[n]

    def add(self, node: Node, value: np.ndarray, constant: bool, parts: frozenset[Node], products: Products) -> None:
        if not constant and node.op.computes:
            parts = parts | {node}
        cost = self.cost(parts)
        key = (node.shape, value.tobytes())
        if key in self.candidates and cost < self.limit:
            self.candidates[key].setdefault(node, parts)
        previous = self.terms.get(key)
        if cost <= self.limit and (previous is None or cost < self.cost(previous.parts)):
            self.terms[key] = Term(node, value, constant, parts, products)


def _splits(parts: Sequence[DimLike]) -> Iterator[tuple[DimLike, DimLike, DimLike]]:
    """(size, low, high) of each part of parts end to end."""
    low: DimLike = 0
    for part in parts:
        yield _total(parts), low, low + part
        low = low + part


def _slices(x: Node, size: DimLike, low: DimLike, high: DimLike) -> Iterator[ops.Slice]:
    """x[low:high] along each axis of a size."""
    full = (0,) * x.type.rank
    for d in (d for d in range(x.type.rank) if x.shape[d] == size):
        yield ops.Slice((*full[:d], low, *full[d + 1 :]), (*x.shape[:d], high, *x.shape[d + 1 :]), (1,) * x.type.rank)


def _cuts(op: ops.Slice, x: Node) -> list[tuple[DimLike, DimLike, DimLike]]:
    """(size, low, high) for each axis that a slice cuts."""
    bounds = zip(x.shape, op.start, op.limit, op.strides, strict=True)
    return [(size, low, high) for size, low, high, step in bounds if step == 1 and (low, high) != (0, size)]


def _parts(before: Graph) -> set[Node]:
    """The nodes that the results need and that do not depend on constants alone."""
    varying: set[Node] = set()
    for n in topological(before.outputs):
        is_value = not n.op.computes and getattr(n.op, "label", "c").startswith("x")
        if is_value or any(i in varying for i in n.inputs):
            varying.add(n)
    return {n for n in varying if n.op.computes}


def _seconds(n: Node, sizes: Mapping[str, int]) -> float:
    """The estimated seconds of a node by itself."""
    if isinstance(n.op, ops.Reshape | ops.BroadcastInDim | ops.Slice):
        return 0.0
    flops = int(substitute(n.op.flops(*(i.type for i in n.inputs)), sizes))
    elements = sum(
        int(substitute(x.type.size, sizes)) for x in (n, *n.inputs) if not isinstance(x.op, ops.BroadcastInDim)
    )
    fused = isinstance(n.op, ops.Add | ops.Sub | ops.Mul)  # with the producers of their operands
    nbytes = n.dtype.bits // 8 * elements * (0.5 if fused else 1.0)
    return flops * _SECONDS_PER_FLOP + nbytes * _SECONDS_PER_BYTE + _SECONDS_PER_OP
