"""Stored rewrites: what matches is rewritten, and nothing that is malformed, wrong or huge is believed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import Dim, DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.rewrite import fueled
from ingot.ir.show import show
from ingot.ir.types import TensorType, f32
from ingot.ir.verify import verify
from ingot.passes.core.rewrites.rewrite import Rewrite, apply_rewrites, is_sound, parsed
from tests.passes.core.rewrites.test_equality import arg, cut, dot, t

RANDOM = np.random.default_rng(0)
X, C0, C1 = arg("x0", 5, 7), arg("c0", 7, 3), arg("c1", 3, 9)
ASSOCIATION = Rewrite.of(Graph((X, C0, C1), (dot(dot(X, C0), C1),)), Graph((X, C0, C1), (dot(X, dot(C0, C1)),)), False)
TURNED = Rewrite.of(Graph((X, C0), (t(dot(X, C0)),)), Graph((X, C0), (dot(t(C0), t(X)),)), True)
BACK = Rewrite(TURNED.after, TURNED.before, True)


def weights(*shape: int) -> Node:
    return const(RANDOM.standard_normal(shape).astype(np.float32))


def model(inner_is_read: bool = False) -> Graph:
    x = Input("in", TensorType(f32, (5, 7)))()
    inner = dot(x, weights(7, 3))
    return Graph((x,), (ops.Exp()(dot(inner, weights(3, 9))), *((inner,) if inner_is_read else ())))


def test_a_match_is_rewritten_under_fast_math() -> None:
    g = model()
    with fueled() as fuel:
        rewritten = apply_rewrites(g, [ASSOCIATION], fast_math=True)
    assert fuel.rules == {ASSOCIATION.rule}
    verify(rewritten, "rewrites")
    (product,) = (n for n in rewritten.nodes() if isinstance(n.op, ops.DotGeneral) and not n.inputs[0].constant)
    assert product.inputs[1].shape == (7, 9)
    x = RANDOM.standard_normal((5, 7)).astype(np.float32)
    np.testing.assert_allclose(interpret(rewritten, [x])[0], interpret(g, [x])[0], 1e-4)


def test_without_fast_math_only_exact_ones_are() -> None:
    g = model()
    with fueled() as fuel:
        assert apply_rewrites(g, [ASSOCIATION]).outputs == g.outputs and not fuel.rules
    y = Graph(g.inputs, (t(dot(g.inputs[0], weights(7, 3))),))
    assert apply_rewrites(y, [TURNED]).outputs != y.outputs


def test_values_that_others_read_stay() -> None:
    g = model(inner_is_read=True)
    assert apply_rewrites(g, [ASSOCIATION], fast_math=True).outputs == g.outputs


def test_operands_that_must_be_constant_are() -> None:
    x, y, z = (Input(n, TensorType(f32, s))() for n, s in (("a", (5, 7)), ("b", (7, 3)), ("c", (3, 9))))
    g = Graph((x, y, z), (dot(dot(x, y), z),))
    assert apply_rewrites(g, [ASSOCIATION], fast_math=True).outputs == g.outputs


def test_rewrites_that_undo_each_other_come_to_an_end() -> None:
    x = Input("in", TensorType(f32, (5, 7)))()
    g = Graph((x,), (t(dot(x, weights(7, 3))),))
    rewritten = apply_rewrites(g, [TURNED, BACK] * 3)
    assert rewritten.outputs == g.outputs


def test_fuel_counts_them() -> None:
    g = model()
    with fueled(0):
        assert apply_rewrites(g, [ASSOCIATION], fast_math=True).outputs == g.outputs


def test_a_rewrite_tells_what_it_does() -> None:
    assert str(ASSOCIATION) == (
        "dot_general(dot_general(x0, c0), c1) -> dot_general(x0, dot_general(c0, c1)) "
        "(fast math, within 20 * 2^-24 of the sum of magnitudes)"
    )
    assert str(TURNED).endswith("(exact)")


HUGE = arg("c0", 1 << 20, 1), arg("c1", 1, 1 << 20)
SIDE = Graph((X, C0), (dot(X, C0),))


@pytest.mark.parametrize(
    "bad",
    [
        Rewrite("", "", True),
        Rewrite("graph(", SIDE_TEXT := show(SIDE), True),
        Rewrite(SIDE_TEXT, SIDE_TEXT.replace("dot_general", "no_such_op"), True),
        Rewrite(SIDE_TEXT, "#" * (1 << 15), True),
        # of another type, of another result, of inputs that the left side does not have
        Rewrite.of(SIDE, Graph((X, C0), (t(dot(X, C0)),)), True),
        Rewrite.of(SIDE, Graph((X, C0), (ops.Neg()(dot(X, C0)),)), False),
        Rewrite.of(SIDE, Graph((X, C0, C1), (dot(X, C0),)), True),
        Rewrite.of(Graph((X, C0, C1), (dot(X, C0),)), Graph((X, C0, C1), (dot(X, C0),)), True),
        # equal over the reals alone, said to be exact
        Rewrite(ASSOCIATION.before, ASSOCIATION.after, True),
        # an op that is no sum or product, a value of a terabyte
        Rewrite.of(Graph((X,), (ops.Exp()(X),)), Graph((X,), (ops.Exp()(X),)), True),
        Rewrite.of(Graph(HUGE, (dot(*HUGE),)), Graph(HUGE, (dot(*HUGE),)), True),
        Rewrite.of(SIDE, Graph((X, C0), (ops.mul(ops.add(dot(X, C0), dot(X, C0)), 0.5000001),)), False),
    ],
)
def test_untrusted_data_is_refused(bad: Rewrite, caplog: pytest.LogCaptureFixture) -> None:
    x = Input("in", TensorType(f32, (5, 7)))()
    g = Graph((x,), (dot(dot(x, weights(7, 3)), weights(3, 9)),))
    with caplog.at_level(logging.WARNING):
        assert apply_rewrites(g, [bad], fast_math=True).outputs == g.outputs
    assert parsed(bad) is None or not is_sound(bad)


def test_deep_sharing_is_no_bomb() -> None:
    y = X
    for _ in range(40):
        y = ops.add(y, y)
    bomb = Rewrite.of(Graph((X,), (y,)), Graph((X,), (y,)), True)
    assert parsed(bomb) is None


# Rewrites of several results and open sizes

N, M = symbol("n0"), symbol("n1")
ONES = ops.full((N, N), 1.0, f32)
V0, V1, V2 = arg("x0", N, 7), arg("c0", 7, 3), arg("c1", 7, 4)


def joined(low: int = 3, bounds: tuple[tuple[str, int | None, int | None], ...] = ()) -> Rewrite:
    """Two products of one value as slices of one. low: where the second starts, right at 3."""
    concat_product = dot(V0, ops.Concat(1)(V1, V2))
    before = Graph((V0, V1, V2), (dot(V0, V1), dot(V0, V2)), bounds=bounds)
    return Rewrite.of(
        before, Graph(before.inputs, (cut(concat_product, 1, 0, 3), cut(concat_product, 1, low, low + 4))), True
    )


def projections(rows: DimLike, widths: tuple[int, ...] = (3, 4)) -> Graph:
    x = Input("in", TensorType(f32, (rows, 7)))()
    h = ops.Exp()(x)
    return Graph((x,), tuple(ops.Exp()(dot(h, weights(7, w))) for w in widths))


def products(g: Graph) -> list[Node]:
    return [n for n in g.nodes() if isinstance(n.op, ops.DotGeneral)]


@pytest.mark.parametrize("rows", [5, symbol("batch"), symbol("batch") * 12])
def test_several_results_are_rewritten_at_any_size(rows: DimLike) -> None:
    g = projections(rows) if not isinstance(rows, Dim) or rows == symbol("batch") else _of_sequences()
    rewritten = apply_rewrites(g, [joined()])
    verify(rewritten, "rewrites")
    assert len(products(g)) == 2 and [n.shape for n in products(rewritten)] == [(rows, 7)]
    for size in (1, 2):
        shapes = [n.type.substitute({"batch": size}).shape for n in g.inputs]
        x = [RANDOM.standard_normal(s).astype(np.float32) for s in shapes]  # type: ignore[arg-type]
        for got, want in zip(interpret(rewritten, x), interpret(g, x), strict=True):
            np.testing.assert_allclose(got, want, 1e-5)


def _of_sequences() -> Graph:
    x = Input("in", TensorType(f32, (symbol("batch"), 12, 7)))()
    rows = ops.Reshape((symbol("batch") * 12, 7))(x)
    return Graph((x,), (dot(rows, weights(7, 3)), dot(rows, weights(7, 4))))


def test_each_layer_is_rewritten() -> None:
    x = h = Input("in", TensorType(f32, (5, 7)))()
    for _ in range(3):
        a, b = dot(h, weights(7, 3)), dot(h, weights(7, 4))
        h = ops.Exp()(ops.Concat(1)(a, b))
    g = Graph((x,), (h,))
    rewritten = apply_rewrites(g, [joined()])
    assert len(products(rewritten)) == 3
    value = RANDOM.standard_normal((5, 7)).astype(np.float32) / 9
    np.testing.assert_allclose(interpret(rewritten, [value])[0], interpret(g, [value])[0], 1e-4)


def test_results_that_need_each_other_stay() -> None:
    """dot(h, c0), dot(dot(h, c0) + ..., c1) is no match, nor are two pairs that would wait for each other."""
    x, y = (Input(n, TensorType(f32, (5, 7)))() for n in "xy")
    a, b, c = arg("x0", 5, 7), arg("x1", 5, 7), arg("c0", 7, 7)
    pair, product = Graph((a, b, c), (dot(a, c), dot(b, c))), dot(ops.Concat(0)(a, b), c)
    rewrite = Rewrite.of(pair, Graph(pair.inputs, (cut(product, 0, 0, 5), cut(product, 0, 5, 10))), True)
    w, v = weights(7, 7), weights(7, 7)
    chain = Graph((x,), (dot(ops.Exp()(dot(x, w)), w),))
    assert apply_rewrites(chain, [rewrite]).outputs == chain.outputs
    # w's second product needs v's first, v's second w's first: one pair can be joined, not both
    w_first, v_first = dot(x, w), dot(y, v)
    crossed = Graph((x, y), (dot(ops.Exp()(v_first), w), dot(ops.Exp()(w_first), v)))
    rewritten = apply_rewrites(crossed, [rewrite])
    assert len(products(rewritten)) == 3
    feeds = [RANDOM.standard_normal((5, 7)).astype(np.float32) for _ in range(2)]
    for got, want in zip(interpret(rewritten, feeds), interpret(crossed, feeds), strict=True):
        np.testing.assert_allclose(got, want, 1e-4)


def test_other_sizes_of_the_same_symbol_are_no_match() -> None:
    g = Graph((x := Input("in", TensorType(f32, (5, 6)))(),), (ops.Exp()(dot(x, t(x))),))
    square, v = arg("x0", N, N), arg("x1", N, 7)
    permuted = Rewrite.of(
        Graph((square, v), (dot(square, dot(square, v)),)), Graph((square, v), (dot(dot(square, square), v),)), False
    )
    assert is_sound(permuted) and apply_rewrites(g, [permuted], fast_math=True).outputs == g.outputs


def test_bounds_limit_where_a_rewrite_is_applied() -> None:
    within = joined(bounds=(("n0", 1, 64),))
    assert str(within).endswith("(exact, for n0: 1..64)") and str(joined()).endswith("(exact, for all n0)")
    g = projections(symbol("batch"))
    assert apply_rewrites(g, [within]).outputs == g.outputs
    bounded = Graph(g.inputs, g.outputs, bounds=(("batch", 2, 8),))
    assert len(products(apply_rewrites(bounded, [within]))) == 1
    assert len(products(apply_rewrites(projections(64), [within]))) == 1
    assert len(products(apply_rewrites(projections(65), [within]))) == 2


@pytest.mark.parametrize(
    "bad",
    [
        joined(low=2),  # a column too early: the same type, other values
        Rewrite(joined().before, joined().after.replace("return %5, %6", "return %5"), True),
        # right for one size alone
        Rewrite.of(
            Graph((V0, S := arg("x1", N, N)), (ops.mul(dot(S, V0), 4.0), dot(S, S))),
            Graph(
                (V0, S), (dot(ops.mul(S, dot(ops.full((N, N), 1.0, f32), ops.full((N, N), 1.0, f32))), V0), dot(S, S))
            ),
            False,
        ),
        # a size that no input has, a size that the run finds, a condition
        Rewrite.of(Graph((V := arg("x0", N * M, 7), V1), (dot(V, V1),)), Graph((V, V1), (dot(V, V1),)), True),
        Rewrite(joined().before.replace("n0", "$n0"), joined().after.replace("n0", "$n0"), True),
    ],
    ids=["shifted", "a result less", "one size", "no such size", "a computed size"],
)
def test_wrong_rewrites_of_several_results_and_sizes_are_refused(bad: Rewrite) -> None:
    assert parsed(bad) is None or not is_sound(bad)
    g = projections(symbol("batch"))
    assert apply_rewrites(g, [bad], fast_math=True).outputs == g.outputs
