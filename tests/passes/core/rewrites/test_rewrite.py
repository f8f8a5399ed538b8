"""Stored rewrites: what matches is rewritten, and nothing that is malformed, wrong or huge is believed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.rewrite import fueled
from ingot.ir.show import show
from ingot.ir.types import TensorType, f32
from ingot.ir.verify import verify
from ingot.passes.core.rewrites.rewrite import Rewrite, applied, apply_rewrites, is_sound, parsed
from tests.passes.core.rewrites.test_equality import arg, dot, t

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
    rewritten = apply_rewrites(g, [ASSOCIATION], fast_math=True)
    verify(rewritten, "rewrites")
    (product,) = (n for n in rewritten.nodes() if isinstance(n.op, ops.DotGeneral) and not n.inputs[0].constant)
    assert product.inputs[1].shape == (7, 9)
    x = RANDOM.standard_normal((5, 7)).astype(np.float32)
    np.testing.assert_allclose(interpret(rewritten, [x])[0], interpret(g, [x])[0], 1e-4)
    assert applied(g, [ASSOCIATION], fast_math=True) == [ASSOCIATION]


def test_without_fast_math_only_exact_ones_are() -> None:
    g = model()
    assert apply_rewrites(g, [ASSOCIATION]).outputs == g.outputs and not applied(g, [ASSOCIATION])
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
