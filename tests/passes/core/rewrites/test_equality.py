"""Equality over a finite field: what is equal is found equal, exactly or over the reals, and what differs is not."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, f64, i32
from ingot.passes.core.rewrites import equality
from ingot.passes.core.rewrites.equality import are_equal


def arg(label: str, *shape: DimLike) -> Node:
    return Input(label, TensorType(f32, shape))()


def cut(x: Node, axis: int, low: DimLike, high: DimLike) -> Node:
    """x[low:high] along an axis."""
    start: list[DimLike] = [0] * x.type.rank
    limit = list(x.shape)
    start[axis], limit[axis] = low, high
    return ops.Slice(tuple(start), tuple(limit), (1,) * x.type.rank)(x)


def dot(a: Node, b: Node) -> Node:
    return ops.DotGeneral(contract=((1,), (0,)))(a, b)


def t(x: Node) -> Node:
    return ops.Transpose((1, 0))(x)


X, Y = arg("x", 5, 7), arg("y", 5, 7)
A, B, C = arg("c0", 7, 3), arg("c1", 3, 9), arg("c2", 7, 4)
D = arg("c3", 7, 3)
S = arg("s", 5, 7)
IMAGE, W, V = arg("i", 2, 6, 6, 3), arg("w", 4, 3, 3, 3), arg("v", 5, 3, 3, 3)
CONV = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "NHWC", "OHWI", "NHWC")

# (name, inputs, one form, another, equal in floats, equal over the reals)
FORMS: list[tuple[str, tuple[Node, ...], Node, Node, bool, bool]] = [
    ("association", (X, A, B), dot(dot(X, A), B), dot(X, dot(A, B)), False, True),
    ("distribution", (X, A, D), ops.add(dot(X, A), dot(X, D)), dot(X, ops.add(A, D)), False, True),
    ("joined columns", (X, A, C), ops.Concat(1)(dot(X, A), dot(X, C)), dot(X, ops.Concat(1)(A, C)), True, True),
    ("joined rows", (X, Y, A), ops.Concat(0)(dot(X, A), dot(Y, A)), dot(ops.Concat(0)(X, Y), A), True, True),
    ("transposed", (X, A), t(dot(X, A)), dot(t(A), t(X)), True, True),
    ("negated", (X, A), ops.Neg()(dot(X, A)), dot(ops.Neg()(X), A), True, True),
    ("scaled", (X, A), ops.mul(dot(X, A), 0.1), dot(X, ops.mul(A, 0.1)), False, True),
    ("sums in another order", (X, Y, S), ops.add(ops.add(X, Y), S), ops.add(X, ops.add(Y, S)), False, True),
    ("commuted", (X, Y), ops.sub(X, Y), ops.Neg()(ops.sub(Y, X)), True, True),
    ("cancelled", (X, Y), ops.sub(ops.add(X, Y), Y), X, False, True),
    (
        "joined filters", (IMAGE, W, V), ops.Concat(3)(CONV(IMAGE, W), CONV(IMAGE, V)),
        CONV(IMAGE, ops.Concat(0)(W, V)), True, True,
    ),
    ("another scale", (X, A), ops.mul(dot(X, A), 0.1), dot(X, ops.mul(A, 0.2)), False, False),
    ("shifted", (X,), ops.Slice((0, 1), (5, 7), (1, 1))(X), ops.Slice((0, 0), (5, 6), (1, 1))(X), False, False),
    ("another operand", (X, A, D), dot(X, A), dot(X, D), False, False),
    ("a sum for a difference", (X, Y), ops.sub(X, Y), ops.add(X, Y), False, False),
    ("a square", (X,), ops.Mul()(X, X), ops.add(X, X), False, False),
    ("reversed", (X,), ops.Reverse((0,))(X), X, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "one", "other", "exact", "real"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS])
def test_equal_forms(inputs: tuple[Node, ...], one: Node, other: Node, exact: bool, real: bool) -> None:
    before, after = Graph(inputs, (one,)), Graph(inputs, (other,))
    assert are_equal(before, after, exactly=True) == exact
    assert are_equal(before, after, exactly=False) == real
    assert are_equal(after, before, exactly=False) == real
    if real:
        _stays_within_the_bound(before, after, exact)


def _stays_within_the_bound(before: Graph, after: Graph, exact: bool) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        values = [random.standard_normal(n.shape).astype(np.float32) for n in before.inputs]  # type: ignore[arg-type]
        (left,), (right,) = interpret(before, values), interpret(after, values)
        (size,) = interpret(_with_sums(before), [np.abs(v) for v in values])
        count = int(equality.roundings(before) + equality.roundings(after))
        # the interpreter sums in f64: all that differs are the roundings of each op
        assert (np.abs(left.astype(np.float64) - right) <= count * 2.0**-24 * size + 1e-30).all()
        if exact:
            np.testing.assert_array_equal(left, right)


def _with_sums(g: Graph) -> Graph:
    """The graph of magnitudes: sums for differences."""
    mapping: dict[Node, Node] = {n: n for n in g.inputs}
    for n in g.nodes():
        if n not in mapping:
            operands = [mapping[i] for i in n.inputs]
            mapping[n] = ops.Add()(*operands) if isinstance(n.op, ops.Sub) else n.op(*operands) if operands else n
            if isinstance(n.op, ops.Neg):
                mapping[n] = operands[0]
    return g.with_outputs(mapping[n] for n in g.outputs)


def test_other_inputs_or_types_are_not_equal() -> None:
    assert not are_equal(Graph((X,), (X,)), Graph((X, Y), (X,)), exactly=False)
    assert not are_equal(Graph((X, A), (dot(X, A),)), Graph((X, A), (t(dot(X, A)),)), exactly=False)


def test_literals_are_those_of_the_field() -> None:
    values = np.array([1.0, 2.0, 0.5, -3.0, 0.1, 1e-30, 3e38, 2.0**-126], np.float32)
    prime = 8191
    results = equality.literal(values, prime)
    for v, got in zip(values, results, strict=True):
        numerator, denominator = float(v).as_integer_ratio()
        assert got == numerator * pow(denominator, -1, prime) % prime
    assert equality.literal(np.zeros(1, np.float32), prime) == 0


def test_a_rounding_is_odd() -> None:
    prime = 8191
    table = equality.odd_function(prime, np.random.default_rng(3))
    v = np.arange(prime)
    np.testing.assert_array_equal(table[(prime - v) % prime], (prime - table) % prime)
    assert len(set(table)) > prime // 2


def test_degrees() -> None:
    assert equality.degree(Graph((X, A, B), (dot(dot(X, A), B),))) == 3
    assert equality.degree(Graph((X,), (ops.mul(X, 2.0),))) == 1


def _doubled(x: Node, times: int) -> Node:
    for _ in range(times):
        x = ops.add(x, x)
    return x


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ops.mul(X, 8192.0), X),  # 1 modulo 8191
        (ops.mul(X, float(1 << 19)), X),
        (ops.mul(X, 1.0 + 2.0**-23), X),
        (_doubled(X, 13), ops.add(X, X)),
        (ops.mul(_doubled(X, 13), 0.5), _doubled(X, 11)),
        (ops.mul(X, 1e30), ops.mul(X, 1.0000001e30)),
    ],
)
def test_no_prime_hides_a_factor(one: Node, other: Node) -> None:
    assert not are_equal(Graph((X,), (one,)), Graph((X,), (other,)), exactly=False)


def test_what_takes_too_many_draws_is_refused() -> None:
    """A polynomial of degree 2^18: any point may be a root."""
    powers = [X]
    for _ in range(18):
        powers.append(ops.Mul()(powers[-1], powers[-1]))
    graphs = [Graph((X,), (y,)) for y in powers]
    assert are_equal(graphs[8], graphs[8], exactly=False) and not are_equal(graphs[18], graphs[18], exactly=False)


@pytest.mark.parametrize(
    "node",
    [
        ops.Exp()(X),
        ops.add(X, 0.0).inputs[1].inputs[0],  # a literal 0: 0 * inf is NaN
        const(np.float32(np.inf)),
        Input("i", TensorType(i32, (3,)))(),
        ops.cast(X, f64),
        ops.pad(X, (1, 0), (0, 0)),
    ],
)
def test_what_no_polynomial_tells_is_refused(node: Node) -> None:
    assert not equality.is_polynomial(node)
