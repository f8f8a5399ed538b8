"""Whether two graphs of sums and products are equal, by evaluating both at random points of finite fields.

Each element of a result is a polynomial of the inputs' elements, with coefficients that are m * 2^e. A draw evaluates
both graphs modulo a random prime at a random point. Two that differ agree with a probability of at most `_miss`: their
difference has a bounded degree, so that few points are roots of it (Schwartz 1980, Zippel 1979), and coefficients of
bounded size, so that few primes divide them. Draws are independent; there are as many as bound the probability of
accepting what is wrong by ERROR, at each of the sizes that `axes` has: small ones, which speak for all others.

- Over the reals: as above.
- Exactly: each result of an addition or a product is mapped by a random function r with r(-v) = -r(v), in place of its
  rounding. Equal results then say that both graphs round the same sums of the same products: they are equal in floats
  as far as the order of the terms of one sum is left open, as it is in all kernels.

Primes of 19 bits keep sums of up to 2^15 products exact in f64, so that the ops' own references compute them. Fresh
random points make data that was fitted to earlier ones worthless: files are checked when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, reduce
from math import ceil, log2

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, dim_max, floordiv, is_computed, is_number, symbols_of
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import Shape, bf16, f16, f32, f64
from ingot.passes.core.rewrites.axes import Axes

ERROR = 2.0**-80
VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Slice, ops.Concat, ops.Reverse)
SUMS = (ops.Add, ops.Sub)
PRODUCTS = (ops.Mul, ops.DotGeneral, ops.Convolution)
FLOATS = (f32, f64, bf16, f16)
POLYNOMIAL = (*VIEWS, *SUMS, *PRODUCTS, ops.Neg)
MAX_FLOPS = 1 << 27  # of a draw
MAX_ELEMENTS = 1 << 22  # of one value
MAX_INSTANCES = 64
MAX_DRAWS = 64
_MAX_TERMS = 1 << 15  # of a sum, see module
_PRIME_BITS = 19


def is_polynomial(n: Node) -> bool:
    """Whether a node is a sum, a product or a view of floats of one type, or a literal other than 0.

    A zero is not: its product with an infinity is NaN, which no polynomial tells. Neither are values whose sizes are
    found in the run.
    """
    if len(n.types) != 1 or n.dtype not in FLOATS or not _are_plain(n.shape):
        return False
    if isinstance(n.op, Const):
        value = np.asarray(n.op.value)
        return value.size > 0 and bool(np.isfinite(value).all()) and bool((value != 0).all())
    if isinstance(n.op, ops.DotGeneral | ops.Convolution) and n.op.dtype not in (None, n.dtype):
        return False
    return isinstance(n.op, (Input, *POLYNOMIAL)) and all(i.dtype == n.dtype for i in n.inputs)


def _are_plain(shape: Shape) -> bool:
    """Whether sizes are numbers or follow from the sizes of inputs."""
    names = frozenset[str]().union(*map(symbols_of, shape))
    return not any(is_computed(name) or is_number(name) for name in names)


def degree(graph: Graph) -> int:
    """The degree of the largest polynomial of an output."""
    degrees: dict[Node, int] = {}
    for n in graph.nodes():
        of_operands = [degrees[i] for i in n.inputs]
        if isinstance(n.op, PRODUCTS):
            degrees[n] = sum(of_operands)
        else:
            degrees[n] = int(isinstance(n.op, Input)) if not of_operands else max(of_operands)
    return max(degrees[n] for n in graph.outputs)


def are_equal(before: Graph, after: Graph, *, exactly: bool, random: np.random.Generator | None = None) -> bool:
    """Whether both graphs, whose nodes are all `is_polynomial`, compute the same, for all sizes that are open.

    False also for graphs that are too large to evaluate, and whose open sizes are read in a way that no proof for all
    of them is known of; see the module.
    """
    if [n.type for n in before.inputs] != [n.type for n in after.inputs]:
        return False
    if [n.type for n in before.outputs] != [n.type for n in after.outputs]:
        return False
    random = random or np.random.default_rng()
    sides = instances(before, after)
    return sides is not None and all(_agree(a, b, exactly, random) for a, b in sides)


def instances(*graphs: Graph) -> list[list[Graph]] | None:
    """The graphs, of the same inputs and the same types of results, at the sizes that speak for all; None if there are
    none, or if it takes long to evaluate them."""
    axes = Axes(graphs)
    if not axes.hold_for_all_sizes:
        return None
    at_sizes: list[list[Graph]] = []
    total = 0
    for sides in axes.instances(max(map(degree, graphs))):
        at_sizes.append(sides)
        total += sum(int(flops(g.nodes())) for g in sides)
        if len(at_sizes) > MAX_INSTANCES or total > MAX_FLOPS or not all(map(_is_small, sides)):
            return None
    return at_sizes


def _is_small(graph: Graph) -> bool:
    nodes = graph.nodes()
    largest_sum = max(int(_terms(n)) for n in nodes)
    return all(int(n.type.size) <= MAX_ELEMENTS for n in nodes) and largest_sum <= _MAX_TERMS


def _agree(before: Graph, after: Graph, exactly: bool, random: np.random.Generator) -> bool:
    miss = max(_miss(before, exactly), _miss(after, exactly))
    draws = ceil(log2(ERROR) / log2(miss)) if miss < 1 else MAX_DRAWS + 1
    if draws > MAX_DRAWS:
        return False
    for _ in range(draws):
        prime = int(random.choice(_primes()))
        points = [random.integers(0, prime, n.shape).astype(np.float64) for n in before.inputs]
        rounding = odd_function(prime, random) if exactly else None
        left, right = (evaluate(g, points, prime, rounding) for g in (before, after))
        if not all(np.array_equal(a, b) for a, b in zip(left, right, strict=True)):
            return False
    return True


def _miss(graph: Graph, exactly: bool) -> float:
    """The largest probability that a draw does not tell a side from another of such a size.

    Exactly, the results of roundings are the variables of the polynomials. One of them may besides agree by chance with
    another, of the same polynomial, and hide it.
    """
    highest, smallest_prime = max(degree(graph), 1), 2 ** (_PRIME_BITS - 1)
    variables = 4 * max(int(_terms(n)) for n in graph.nodes()) + 2  # of two monomials' variables with all others
    of_point = highest * (1 + variables * exactly) / smallest_prime
    return of_point + _coefficient_bits(graph) / (_PRIME_BITS - 1) / len(_primes())


def _coefficient_bits(graph: Graph) -> float:
    """How many bits the difference of two coefficients of such graphs has at most, over their common denominator."""
    size: dict[Node, float] = {}  # log2 of the sum of the coefficients' magnitudes
    denominator: dict[Node, float] = {}
    for n in graph.nodes():
        sizes, denominators = [size[i] for i in n.inputs], [denominator[i] for i in n.inputs]
        if isinstance(n.op, Const):
            exponents = np.frexp(np.asarray(n.op.value, np.float64))[1]
            size[n], denominator[n] = max(0, exponents.max()), max(0, 53 - exponents.min())
        elif isinstance(n.op, PRODUCTS):
            size[n], denominator[n] = sum(sizes) + log2(max(int(_terms(n)), 1)), sum(denominators)
        else:
            size[n] = max(sizes, default=0.0) + isinstance(n.op, SUMS)
            denominator[n] = max(denominators, default=0.0)
    return max(size[n] + denominator[n] for n in graph.outputs) + 1


@cache
def _primes() -> np.ndarray:
    """The primes of 19 bits."""
    is_prime = np.ones(1 << _PRIME_BITS, bool)
    for d in range(2, 1 << (_PRIME_BITS + 1) // 2):
        if is_prime[d]:
            is_prime[d * d :: d] = False
    return np.flatnonzero(is_prime[1 << (_PRIME_BITS - 1) :]) + (1 << (_PRIME_BITS - 1))


def odd_function(prime: int, random: np.random.Generator) -> np.ndarray:
    """A random function r on the field with r(-v) = -r(v), as a table."""
    half = random.integers(0, prime, prime // 2)
    return np.concatenate([[0], half, (prime - half[::-1]) % prime]).astype(np.float64)


def evaluate(
    graph: Graph, points: list[np.ndarray], prime: int, rounding: np.ndarray | None = None
) -> list[np.ndarray]:
    """The outputs over the integers modulo a prime. rounding: what maps each result of a sum or product."""
    values: dict[Node, np.ndarray] = dict(zip(graph.inputs, points, strict=True))
    for n in graph.nodes():
        if n not in values:
            values[n] = _value(n, values, prime, rounding)
    return [values[n] for n in graph.outputs]


def _value(n: Node, values: Mapping[Node, np.ndarray], prime: int, rounding: np.ndarray | None) -> np.ndarray:
    op, operands = n.op, [values[i] for i in n.inputs]
    if isinstance(op, Const):
        return literal(np.asarray(op.value), prime)
    if isinstance(op, VIEWS):
        return np.asarray(op.reference(*operands))
    if isinstance(op, ops.Neg):
        return np.mod(-operands[0], prime)
    if isinstance(op, ops.DotGeneral | ops.Convolution):
        op = replace(op, dtype=None)
    result = np.mod(np.asarray(op.reference(*operands)), prime)
    return result if rounding is None else rounding[result.astype(np.intp)]


def literal(value: np.ndarray, prime: int) -> np.ndarray:
    """Floats, which are m * 2^e, as elements of a field."""
    mantissas, exponents = np.frexp(value.astype(np.float64))
    # m * 2^53 is an integer; factors of 2 have an inverse, as the prime is odd
    residues = np.round(mantissas * 2.0**53).astype(np.int64) % prime
    distinct, inverse = np.unique(exponents, return_inverse=True)
    powers = np.array([pow(2, int(e) - 53, prime) for e in distinct])[inverse].reshape(exponents.shape)
    return np.asarray(residues * powers % prime, np.float64)


def flops(nodes: Iterable[Node]) -> DimLike:
    """Of one evaluation: 2 for each multiply-add."""
    return sum((n.op.flops(*(i.type for i in n.inputs)) for n in nodes), 0)


def roundings(graph: Graph) -> DimLike:
    """The largest number n of roundings on the way to an output: its error is at most n u / (1 - n u) of the same sum
    of magnitudes, where u is the type's unit roundoff, in any order of its sums (Higham 2002, lemma 3.1)."""
    counts: dict[Node, DimLike] = {}
    for n in graph.nodes():
        of_operands = [counts[i] for i in n.inputs]
        if isinstance(n.op, PRODUCTS):
            counts[n] = sum(of_operands, dim_max(_terms(n), 1))
        else:
            counts[n] = reduce(dim_max, of_operands, 0) + isinstance(n.op, SUMS)
    return reduce(dim_max, (counts[n] for n in graph.outputs))


def _terms(n: Node) -> DimLike:
    """The products in a sum of the node."""
    if not isinstance(n.op, ops.DotGeneral | ops.Convolution) or n.type.size == 0:
        return 0
    return floordiv(n.op.flops(*(i.type for i in n.inputs)), 2 * n.type.size)
