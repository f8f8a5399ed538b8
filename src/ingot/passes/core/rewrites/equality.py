"""Whether two graphs of sums and products are equal, by evaluating both at random points of a finite field.

Each element of a result is a polynomial of the inputs' elements. Two different polynomials of degree d agree at a
random point of the integers modulo the prime p with a probability of at most d / p (Schwartz 1980, Zippel 1979); draws
are independent, so that `draws(d)` of them bound the probability of accepting what is wrong by ERROR.

- Over the reals: as above.
- Exactly: each result of an addition or a product is mapped by a random function r with r(-v) = -r(v), in place of its
  rounding. Equal results then say that both graphs round the same sums of the same products: they are equal in floats
  as far as the order of the terms of one sum is left open, as it is in all kernels.

A field of 8191 elements keeps sums of up to 2^27 products exact in f64, so that the ops' own references compute them.
Fresh random points make data that was fitted to earlier ones worthless: files are checked when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, log2

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static
from ingot.ir.node import Const, Graph, Input, Node
from ingot.ir.types import bf16, f16, f32, f64

PRIME = 8191
ERROR = 2.0**-80
VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Slice, ops.Concat, ops.Reverse)
SUMS = (ops.Add, ops.Sub)
PRODUCTS = (ops.Mul, ops.DotGeneral, ops.Convolution)
FLOATS = (f32, f64, bf16, f16)
POLYNOMIAL = (*VIEWS, *SUMS, *PRODUCTS, ops.Neg)
MAX_FLOPS = 1 << 33  # of one evaluation, of some 16
MAX_ELEMENTS = 1 << 25  # of one value


def is_polynomial(n: Node) -> bool:
    """Whether a node is a sum, a product or a view of floats of one type and of known sizes, or a literal other than 0.

    A zero is not: its product with an infinity is NaN, which no polynomial tells.
    """
    if len(n.types) != 1 or n.dtype not in FLOATS or not is_static(n.shape):
        return False
    if isinstance(n.op, Const):
        value = np.asarray(n.op.value)
        return value.size > 0 and bool(np.isfinite(value).all()) and bool((value != 0).all())
    if isinstance(n.op, ops.DotGeneral | ops.Convolution) and n.op.dtype not in (None, n.dtype):
        return False
    return isinstance(n.op, (Input, *POLYNOMIAL)) and all(i.dtype == n.dtype for i in n.inputs)


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


def draws(of_degree: int) -> int:
    """How many draws bound the error by ERROR."""
    return ceil(log2(ERROR) / log2(max(of_degree, 1) / PRIME))


def are_equal(before: Graph, after: Graph, *, exactly: bool, random: np.random.Generator | None = None) -> bool:
    """Whether both graphs, whose nodes are all `is_polynomial`, compute the same; see the module."""
    if [n.type for n in before.inputs] != [n.type for n in after.inputs]:
        return False
    if [n.type for n in before.outputs] != [n.type for n in after.outputs]:
        return False
    random = random or np.random.default_rng()
    highest = max(degree(before), degree(after))
    for _ in range(draws(highest)):
        points = [random.integers(0, PRIME, n.shape).astype(np.float64) for n in before.inputs]
        rounding = odd_function(random) if exactly else None
        left, right = (evaluate(g, points, rounding) for g in (before, after))
        if not all(np.array_equal(a, b) for a, b in zip(left, right, strict=True)):
            return False
    return True


def odd_function(random: np.random.Generator) -> np.ndarray:
    """A random function r on the field with r(-v) = -r(v), as a table."""
    half = random.integers(0, PRIME, PRIME // 2)
    return np.concatenate([[0], half, (PRIME - half[::-1]) % PRIME]).astype(np.float64)


def evaluate(graph: Graph, points: list[np.ndarray], rounding: np.ndarray | None = None) -> list[np.ndarray]:
    """The outputs over the field. rounding: what maps each result of a sum or product."""
    values: dict[Node, np.ndarray] = dict(zip(graph.inputs, points, strict=True))
    for n in graph.nodes():
        if n not in values:
            values[n] = _value(n, values, rounding)
    return [values[n] for n in graph.outputs]


def _value(n: Node, values: Mapping[Node, np.ndarray], rounding: np.ndarray | None) -> np.ndarray:
    op, operands = n.op, [values[i] for i in n.inputs]
    if isinstance(op, Const):
        return literal(np.asarray(op.value))
    if isinstance(op, VIEWS):
        return np.asarray(op.reference(*operands))
    if isinstance(op, ops.Neg):
        return np.mod(-operands[0], PRIME)
    if isinstance(op, ops.DotGeneral | ops.Convolution):
        op = replace(op, dtype=None)
    result = np.mod(np.asarray(op.reference(*operands)), PRIME)
    return result if rounding is None else rounding[result.astype(np.intp)]


def literal(value: np.ndarray) -> np.ndarray:
    """Floats, which are m * 2^e, as elements of the field."""
    mantissa, exponent = np.frexp(value.astype(np.float64))
    residue = np.round(mantissa * 2.0**53).astype(np.int64) % PRIME
    # 2^13 is 1 modulo 2^13 - 1
    power = np.left_shift(1, (exponent.astype(np.int64) - 53) % 13)
    return np.asarray(residue * power % PRIME, np.float64)


def flops(graph: Graph) -> int:
    """Of one evaluation: 2 for each multiply-add."""
    return sum(int(n.op.flops(*(i.type for i in n.inputs))) for n in graph.nodes())  # type: ignore[arg-type]


def is_small(graph: Graph) -> bool:
    """Whether evaluating a graph of known sizes takes little time and memory."""
    return all(n.type.size <= MAX_ELEMENTS for n in graph.nodes()) and flops(graph) <= MAX_FLOPS  # type: ignore[operator]


def roundings(graph: Graph) -> int:
    """The largest number n of roundings on the way to an output: its error is at most n u / (1 - n u) of the same sum
    of magnitudes, where u is the type's unit roundoff, in any order of its sums (Higham 2002, lemma 3.1)."""
    counts: dict[Node, int] = {}
    for n in graph.nodes():
        of_operands = [counts[i] for i in n.inputs]
        count = max(of_operands, default=0)
        if isinstance(n.op, PRODUCTS):
            count = sum(of_operands) + max(_terms(n), 1)
        elif isinstance(n.op, SUMS):
            count += 1
        counts[n] = count
    return max(counts[n] for n in graph.outputs)


def _terms(n: Node) -> int:
    """The products in a sum of the node."""
    size = n.type.size
    total = n.op.flops(*(i.type for i in n.inputs)) if isinstance(n.op, ops.DotGeneral | ops.Convolution) else 0
    assert isinstance(size, int) and isinstance(total, int)
    return total // (2 * size) if size else 0
