"""Small sizes that speak for all: what is equal at all sizes is found equal, and what is equal at some is not."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import floordiv, symbol
from ingot.ir.node import Graph, Node
from ingot.passes.core.rewrites.equality import are_equal, evaluate, instances
from ingot.support.errors import ShapeError
from tests.passes.core.rewrites.test_equality import CONV, arg, cut, dot, t

N, M, K = symbol("n"), symbol("m"), symbol("k")
X, Y, SQUARE = arg("x", N, 64), arg("y", M, 64), arg("z", N, N)
W, V = arg("w", 64, 48), arg("v", 64, 32)
IMAGES, FILTERS, MORE = arg("i", N, 6, 6, 40), arg("f", 48, 3, 3, 40), arg("g", 24, 3, 3, 40)


ONES = ops.full((N, N), 1.0, X.dtype)
COUNT = dot(ONES, ONES)


def column(x: Node) -> Node:
    return ops.Reshape((N,))(x)


ROWS = ops.Concat(0)(X, Y)
HEADS = arg("h", N, 12, 64)
MERGED = ops.Reshape((N, 768))(HEADS)

# (name, inputs, one form, another, whether they are equal at all sizes)
FORMS: list[tuple[str, tuple[Node, ...], tuple[Node, ...], tuple[Node, ...], bool]] = [
    ("association", (X, W), (dot(t(X), dot(X, W)),), (dot(dot(t(X), X), W),), True),
    ("joined columns", (X, W, V), (dot(X, W), dot(X, V)),
     (cut(J := dot(X, ops.Concat(1)(W, V)), 1, 0, 48), cut(J, 1, 48, 80)), True),
    ("joined in the other order", (X, W, V), (dot(X, W), dot(X, V)),
     (cut(R := dot(X, ops.Concat(1)(V, W)), 1, 0, 48), cut(R, 1, 48, 80)), False),
    ("results that are exchanged", (X, W, U := arg("u", 64, 48)), (dot(X, W), dot(X, U)),
     (dot(X, U), dot(X, W)), False),
    ("joined rows of open lengths", (X, Y, W), (dot(X, W), dot(Y, W)),
     (cut(dot(ROWS, W), 0, 0, N), cut(dot(ROWS, W), 0, N, N + M)), True),
    ("a column as a vector", (X, V), (ops.mul(column(cut(dot(X, V), 1, 3, 4)), 2.0),),
     (ops.add(column(dot(X, cut(V, 1, 3, 4))), column(dot(X, cut(V, 1, 3, 4)))),), True),
    ("joined images", (IMAGES, FILTERS, MORE), (CONV(IMAGES, FILTERS), CONV(IMAGES, MORE)),
     (cut(C := CONV(IMAGES, ops.Concat(0)(FILTERS, MORE)), 3, 0, 48), cut(C, 3, 48, 72)), True),
    ("merged heads", (HEADS, P := arg("p", 768, 32)), (dot(MERGED, P),),
     (ops.DotGeneral(contract=((1, 2), (0, 1)))(HEADS, ops.Reshape((12, 64, 32))(P)),), True),
    ("heads in the wrong order", (HEADS, P), (dot(MERGED, P),),
     (ops.DotGeneral(contract=((1, 2), (1, 0)))(HEADS, ops.Reshape((64, 12, 32))(P)),), False),
    ("transposed, equal at n = 1", (SQUARE,), (SQUARE,), (t(SQUARE),), False),
    ("reversed, equal at n = 1", (X,), (X,), (ops.Reverse((0,))(X),), False),
    ("counted, equal at n = 4", (X, SQUARE), (ops.mul(SQUARE, 4.0),), (ops.mul(SQUARE, COUNT),), False),
    ("counted, equal at n = 5", (SQUARE,), (ops.mul(SQUARE, 5.0),), (ops.mul(SQUARE, COUNT),), False),
    ("counted twice", (SQUARE,), (ops.mul(ops.mul(SQUARE, COUNT), COUNT),),
     (ops.mul(SQUARE, ops.mul(COUNT, COUNT)),), True),
    ("counted twice, equal at n = 2 and 3", (SQUARE,),
     (ops.add(ops.mul(ops.mul(SQUARE, COUNT), COUNT), ops.mul(SQUARE, 6.0)),),
     (ops.mul(ops.mul(SQUARE, COUNT), 5.0),), False),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "one", "other", "equal"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS])
def test_forms_of_open_sizes(
    inputs: tuple[Node, ...], one: tuple[Node, ...], other: tuple[Node, ...], equal: bool
) -> None:
    before, after = Graph(inputs, one), Graph(inputs, other)
    assert are_equal(before, after, exactly=False) == equal
    assert are_equal(after, before, exactly=False) == equal


def _small(*graphs: Graph) -> Graph:
    """The first graph at the only sizes that speak for all."""
    at_sizes = instances(*graphs)
    assert at_sizes is not None and len(at_sizes) == 1
    return at_sizes[0][0]


def test_small_sizes_stand_for_large_ones() -> None:
    x, w, v = arg("x", 100_000, 4096), arg("w", 4096, 16384), arg("v", 4096, 5000)
    product = dot(x, ops.Concat(1)(w, v))
    before = Graph((x, w, v), (dot(x, w), dot(x, v)))
    after = Graph((x, w, v), (cut(product, 1, 0, 16384), cut(product, 1, 16384, 21384)))
    assert [n.shape for n in _small(before, after).inputs] == [(3, 3), (3, 3), (3, 3)]
    assert are_equal(before, after, exactly=True)


def test_sizes_that_an_op_reads_stay() -> None:
    before = Graph((IMAGES, FILTERS), (CONV(IMAGES, FILTERS),))
    small = _small(before)
    assert [n.shape for n in small.inputs] == [(3, 6, 6, 3), (3, 3, 3, 3)]
    reversed_rows = ops.Reverse((0,))(arg("x", 9, 64))
    small = _small(Graph(reversed_rows.inputs, (reversed_rows,)))
    assert small.inputs[0].shape == (9, 3)


def test_open_sizes_without_a_proof_are_refused() -> None:
    """Equal, but at positions that depend on the size: no proof for all of them is known."""
    y = ops.Reverse((0,))(ops.Reverse((0,))(X))
    assert instances(Graph((X,), (y,))) is None
    assert not are_equal(Graph((X,), (y,)), Graph((X,), (X,)), exactly=False)


H, WIDTH = symbol("h"), symbol("w")
OPEN = arg("o", N, H, WIDTH, 5)
SAME, TAPS, MORE_TAPS = arg("b", 5, 3, 3, 5), arg("c", 3, 3, 3, 5), arg("d", 4, 3, 3, 5)


def conv(x: Node, w: Node, stride: int = 1, padding: int = 1) -> Node:
    pads = ((padding, padding),) * 2
    return ops.Convolution((stride,) * 2, pads, (1, 1), (1, 1), "NHWC", "OHWI", "NHWC")(x, w)


def last(x: Node, w: Node) -> Node:
    return ops.DotGeneral(contract=((3,), (0,)))(x, w)


JOINED = conv(OPEN, ops.Concat(0)(TAPS, MORE_TAPS), 2)
# (inputs, one form, another, whether they are equal for all images)
IMAGE_FORMS: dict[str, tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...], bool]] = {
    "joined filters, with a stride": (
        (OPEN, TAPS, MORE_TAPS), (conv(OPEN, TAPS, 2), conv(OPEN, MORE_TAPS, 2)),
        (cut(JOINED, 3, 0, 3), cut(JOINED, 3, 3, 7)), True),
    "a product merged into filters": (
        (OPEN, TAPS, q := arg("q", 3, 4)), (last(conv(OPEN, TAPS), q),),
        (conv(OPEN, ops.Transpose((3, 0, 1, 2))(ops.DotGeneral(contract=((0,), (0,)))(TAPS, q))),), True),
    "a sum of images": (
        (OPEN, other := arg("e", N, H, WIDTH, 5), TAPS), (ops.add(conv(OPEN, TAPS), conv(other, TAPS)),),
        (conv(ops.add(OPEN, other), TAPS),), True),
    "two in a row": (
        (OPEN, SAME, TAPS), (ops.add(conv(conv(OPEN, SAME), TAPS), conv(OPEN, TAPS)),),
        (conv(ops.add(conv(OPEN, SAME), OPEN), TAPS),), True),
    "other padding of the second, equal inside": (
        (OPEN, SAME, TAPS), (conv(conv(OPEN, SAME, padding=1), TAPS),),
        (cut(cut(conv(conv(OPEN, SAME, padding=2), TAPS, padding=0), 1, 0, H), 2, 0, WIDTH),), False),
    "a point's products before and after a border": (
        (OPEN, r := arg("r", 5, 5), TAPS), (conv(last(OPEN, r), TAPS),),
        (conv(OPEN, ops.DotGeneral(contract=((3,), (1,)))(TAPS, r)),), True),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGE_FORMS)
def test_images_of_open_sizes(name: str) -> None:
    inputs, one, other, equal = IMAGE_FORMS[name]
    before, after = Graph(inputs, one), Graph(inputs, other)
    assert are_equal(before, after, exactly=False) == equal


def test_what_an_image_of_open_size_does_not_tell() -> None:
    """Equal, but of halves of a size, of sums over it, and of rows in another order."""
    half = arg("f", N, floordiv(H, 2), 6, 5)
    wide = arg("g", N, H, 6, 5)
    ones = ops.full((N, H), 1.0, X.dtype)
    y = conv(wide, TAPS)
    total = ops.DotGeneral(((0,), (0,)), ((1,), (1,)))(ones, y)
    rows = ops.Reverse((1,))(ops.Reverse((1,))(y))
    parts = ops.Concat(1)(cut(y, 1, 0, 1), cut(y, 1, 1, H))
    for inputs, result in (((half, TAPS), conv(half, TAPS)), *(((wide, TAPS), v) for v in (total, rows, parts))):
        assert instances(Graph(inputs, (result,))) is None
    assert instances(Graph((wide, TAPS), (y,))) is not None


def test_slices_at_open_places_are_refused() -> None:
    """Of an axis whose parts are no others', and with a stride."""
    table, rows = arg("t", 10, 3), arg("r", N, 3)
    cases = (
        ((table, rows), ops.Slice((N, 0), (N + 2, 3), (1, 1))(table)),
        ((rows,), ops.Slice((0, 0), (N, 3), (2, 1))(rows)),
    )
    for inputs, part in cases:
        graphs = [Graph(inputs, (y,), bounds=(("n", 1, 4),)) for y in (ops.mul(part, 2.0), ops.add(part, part))]
        assert instances(*graphs) is None


def test_what_takes_long_to_evaluate_is_refused() -> None:
    x = arg("x", 1 << 22, 64)
    assert instances(Graph((x,), (ops.Reverse((0,))(x),))) is None


def _random_terms(random: np.random.Generator, count: int) -> tuple[tuple[Node, ...], list[Node]]:
    """Terms over a few inputs, whose sizes coincide by chance in products, concats, cuts and reshapes."""
    inputs = (arg("x", 4, 6), arg("y", 4, 6), arg("w", 6, 4), arg("s", 6, 6), arg("v", 24))
    terms = list(inputs)
    while len(terms) < count:
        a, b = (terms[i] for i in random.integers(0, len(terms), 2))
        axis, low = int(random.integers(0, max(a.type.rank, 1))), int(random.integers(0, 3))
        makers = (
            lambda: ops.Transpose(tuple(range(a.type.rank))[::-1])(a),  # noqa: B023
            lambda: ops.add(a, b),  # noqa: B023
            lambda: ops.sub(a, b),  # noqa: B023
            lambda: dot(a, b),  # noqa: B023
            lambda: ops.DotGeneral(contract=((0,), (0,)))(a, b),  # noqa: B023
            lambda: ops.Concat(axis)(a, b),  # noqa: B023
            lambda: cut(a, axis, low, low + 2),  # noqa: B023
            lambda: ops.Reverse((axis,))(a),  # noqa: B023
            lambda: ops.Reshape(((24,), (4, 6), (6, 4), (2, 3, 4))[low])(a),  # noqa: B023
        )
        try:
            node = makers[int(random.integers(0, len(makers)))]()
        except (ShapeError, IndexError):
            continue
        if node not in terms and int(node.type.size) <= 64 and len(Graph(inputs, (node,)).nodes()) < 14:
            terms.append(node)
    return inputs, terms


@pytest.mark.parametrize("seed", range(3))
def test_small_sizes_agree_with_the_sizes_themselves(seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs, terms = _random_terms(random, 160)
    prime = 524_287
    points = [random.integers(0, prime, n.shape).astype(np.float64) for n in inputs]
    by_value: dict[tuple[object, bytes], list[Node]] = {}
    for n in terms:
        (value,) = evaluate(Graph(inputs, (n,)), points, prime)
        by_value.setdefault((n.type, value.tobytes()), []).append(n)
    pairs = [(a, b) for equal_values in by_value.values() for a, b in pairwise(equal_values)][:25]
    assert pairs
    missed = sum(not are_equal(Graph(inputs, (a,)), Graph(inputs, (b,)), exactly=False) for a, b in pairs)
    assert missed <= len(pairs) // 5  # equal for these sizes alone, as far as `axes` knows
    firsts = [equal_values[0] for equal_values in by_value.values()]
    differing = [(a, b) for a, b in combinations(firsts, 2) if a.type == b.type]
    for i in random.permutation(len(differing))[:60]:
        a, b = differing[i]
        assert not are_equal(Graph(inputs, (a,)), Graph(inputs, (b,)), exactly=False)
