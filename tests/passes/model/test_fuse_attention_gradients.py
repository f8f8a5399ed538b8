from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import boolean
from ingot.passes.model.fuse_attention_gradients import fuse_attention_gradients
from tests.passes.check import arg, count, graph, random_inputs, same_values

B, S = symbol("b"), symbol("s")
Q, K, V, G = (arg(label, B, 2, S, 4) for label in "qkvg")
SHAPE = (B, 2, S, S)
Step = Callable[[Node], Node]


def keep(x: Node) -> Node:
    return x


def written_out(forward: Step = keep, backward: Step = keep, behind: float = 1.0, lead: int = 2) -> Graph:
    """dq, dk and dv of attention as torch writes them. forward: from the product to the scores, backward: the same of
    gradients; behind: what dq and dk are multiplied with. lead: dimensions before rows and columns in products."""
    q, k, v, g = Q, K, V, G
    if lead == 1:
        q, k, v, g = (ops.reshape(x, (B * 2, S, 4)) for x in (q, k, v, g))

    def product(a: Node, b: Node) -> Node:
        return ops.reshape(ops.MatMul()(a, ops.swap_axes(b, -1, -2)), SHAPE)

    p = ops.Softmax(3)(forward(product(q, k)))
    weighted = ops.Mul()(product(g, v), p)
    total = ops.reshape(ops.Reduce("sum", (3,))(weighted), (B, 2, S, 1))
    ds = backward(ops.sub(weighted, ops.Mul()(p, ops.broadcast_to(total, SHAPE))))
    p, ds = (ops.reshape(x, (*q.shape[:-1], S)) for x in (p, ds))
    dq, dkt = ops.MatMul()(ds, k), ops.MatMul()(ops.swap_axes(q, -1, -2), ds)
    dv = ops.MatMul()(ops.swap_axes(p, -1, -2), g)
    return graph(*(x if behind == 1 else ops.mul(x, behind) for x in (dq, dkt)), dv)


def wide(x: Node) -> Node:
    return ops.broadcast_to(x, SHAPE)


BIAS = arg("bias", B, 1, 1, S)
WRITTEN = {
    "plain": written_out(),
    "merged heads": written_out(lead=1),
    "a mask": written_out(lambda s: ops.add(s, wide(BIAS))),
    "a scale": written_out(lambda s: ops.add(ops.mul(s, 0.5), wide(BIAS)), lambda ds: ops.mul(ds, 0.5)),
    "a divisor, merged heads": written_out(lambda s: ops.div(s, 3.0), lambda ds: ops.div(ds, 3.0), lead=1),
    "a scale behind the products": written_out(lambda s: ops.mul(s, 0.25), behind=0.25),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_gradients_are_found(written: str) -> None:
    g = WRITTEN[written]
    after = fuse_attention_gradients(g)
    assert count(after, ops.AttentionGradients) == 1 and count(after, ops.Softmax, ops.MatMul) == 0
    for sizes in ({"b": 2, "s": 5}, {"b": 1, "s": 1}):
        same_values(g, after, 1e-5, **sizes)


def test_infinities_and_nan_go_on() -> None:
    g = WRITTEN["a mask"]
    data = random_inputs(g, {"b": 2, "s": 5})
    by_label = {n.op.label: x for n, x in zip(g.inputs, data, strict=True)}  # type: ignore[attr-defined]
    by_label["bias"][1] = -np.inf
    by_label["bias"][0, ..., 2] = -np.inf
    by_label["q"][0, 1, 3, 0] = np.nan
    with np.errstate(all="ignore"):
        for want, got in zip(interpret(g, data), interpret(fuse_attention_gradients(g), data), strict=True):
            assert np.isnan(want).any() and not np.isnan(want).all()
            np.testing.assert_allclose(got, want, atol=1e-5, equal_nan=True)


def filled(seen: np.ndarray | Node, kept: np.ndarray | None = None) -> Graph:
    """Scores, and their gradients, under a condition, of five queries and keys."""
    q, k, v, g = (arg(label, 2, 2, 5, 4) for label in "qkvg")
    shape = (2, 2, 5, 5)
    condition = ops.broadcast_to(const(seen) if isinstance(seen, np.ndarray) else seen, shape)
    s = ops.where(condition, ops.MatMul()(q, ops.swap_axes(k, 2, 3)), float(np.finfo(np.float32).min))
    p = ops.Softmax(3)(s)
    weighted = ops.Mul()(ops.MatMul()(g, ops.swap_axes(v, 2, 3)), p)
    total = ops.expand_dims(ops.Reduce("sum", (3,))(weighted), 3)
    condition = condition if kept is None else ops.broadcast_to(const(kept), shape)
    ds = ops.where(condition, ops.sub(weighted, ops.Mul()(p, ops.broadcast_to(total, shape))), 0.0)
    dk = ops.MatMul()(ops.swap_axes(ds, 2, 3), q)
    return graph(ops.MatMul()(ds, k), dk, ops.MatMul()(ops.swap_axes(p, 2, 3), g))


def test_conditions_that_leave_a_key_to_each_row() -> None:
    seen = np.tril(np.ones((5, 5), bool))
    for condition in (seen, seen[None, None].repeat(2, 0)):
        g = filled(condition)
        after = fuse_attention_gradients(g)
        assert count(after, ops.AttentionGradients) == 1
        same_values(g, after, 1e-5)
    of_fewer = filled(seen, np.tril(np.ones((5, 5), bool), -1))
    assert count(fuse_attention_gradients(of_fewer), ops.AttentionGradients) == 0
    seen[2] = False
    for other in (seen, arg("seen", 2, 1, 5, 5, dtype=boolean)):
        g = filled(other)
        assert count(fuse_attention_gradients(g), ops.AttentionGradients) == 0


def test_what_something_else_reads_stays() -> None:
    """The gradient of a mask, and weights that are a result."""
    g = written_out()
    sub = next(n for n in g.nodes() if isinstance(n.op, ops.Sub))
    softmax = next(n for n in g.nodes() if isinstance(n.op, ops.Softmax))
    for other in (ops.reduce_sum(sub, (0,)), softmax, ops.Exp()(softmax)):
        read = graph(*g.outputs, other)
        assert count(fuse_attention_gradients(read), ops.AttentionGradients) == 0


def test_a_factor_of_each_query_that_the_gradient_leaves_out() -> None:
    """As a straight-through estimator writes it: the weights are not those of the product alone."""
    g = written_out(lambda s: ops.mul(s, wide(arg("t", B, 1, S, 1))))
    assert count(fuse_attention_gradients(g), ops.AttentionGradients) == 0


def test_other_operands_are_not_taken_for_those_of_the_scores() -> None:
    g = written_out()
    for i, (a, b) in enumerate((("k", "v"), ("q", "v"), ("g", "q"))):
        of = {n.op.label: n for n in g.inputs}  # type: ignore[attr-defined]
        product = g.outputs[i]
        operands = [ops.swap_axes(of[b], -1, -2) if x.op.name == "transpose" and x.inputs[0] is of[a] else
                    of[b] if x is of[a] else x for x in product.inputs]  # fmt: skip
        outputs = [ops.MatMul()(*operands) if x is product else x for x in g.outputs]
        assert count(fuse_attention_gradients(graph(*outputs)), ops.AttentionGradients) == 0
