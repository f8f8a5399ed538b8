from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Node, const
from ingot.ir.rewrite import rewrite
from ingot.ir.types import TensorType, i8, i32, i64, u8, u32
from ingot.passes.core.positions.affine import Affine
from ingot.passes.core.positions.rules import Positions
from ingot.passes.core.simplify import simplify
from tests.passes.check import arg, count, graph, same_values

S = symbol("s")
B = symbol("b")
X = arg("x", B, S)


def iota(*shape: DimLike, dim: int = 0) -> Node:
    return ops.Iota(TensorType(i64, shape), dim)()


def gather_nd(x: Node, *indices: Node) -> Node:
    """x[i0, i1, ...] for index arrays of one shape, as GatherND spells it."""
    vectors = ops.stack(list(indices), -1)
    rank = x.type.rank
    op = ops.Gather((), tuple(range(rank)), (), (), tuple(range(rank)), vectors.type.rank - 1, (1,) * rank)
    return op(x, vectors)


def test_index_checks_of_counters_fall() -> None:
    i = ops.arange(S)
    wrapped = ops.where(ops.compare("LT", i, 0), ops.add(i, ops.scalar(X.shape[1], i64)), i)
    g = graph(ops.add(X, ops.cast(wrapped, X.dtype)))
    after = simplify(g)
    assert count(after, ops.Compare, ops.Select) == 0
    same_values(g, after, b=2, s=5)


@pytest.mark.parametrize("direction", ["EQ", "NE", "GE", "GT", "LE", "LT"])
def test_comparisons_are_decided_only_where_they_hold_everywhere(direction: str) -> None:
    i = ops.arange(S)
    for other in (i, *(ops.full((S,), value, i64) for value in (-1, 0, S, S - 1))):
        g = Graph((X,), (ops.add(ops.cast(ops.compare(direction, i, other), X.dtype), ops.Reduce("sum", (0,))(X)),))
        after = simplify(g)
        for s in (1, 4):
            same_values(g, after, b=2, s=s)


def test_gather_at_its_own_positions_is_a_view() -> None:
    rows = ops.broadcast_to(ops.reshape(ops.arange(B), (B, 1, 1)), (B, 3, S))
    cols = iota(B, 3, S, dim=2)
    g = graph(gather_nd(X, rows, cols))
    after = simplify(g)
    assert count(after, ops.Gather, ops.Iota) == 0 and count(after, ops.BroadcastInDim) == 1
    same_values(g, after, b=2, s=5)
    swapped = graph(gather_nd(X, iota(S, B, dim=1), iota(S, B, dim=0)))
    after = simplify(swapped)
    assert count(after, ops.Gather) == 0 and count(after, ops.Transpose) == 1
    same_values(swapped, after, b=2, s=5)


def test_gather_that_might_leave_its_operand_stays() -> None:
    table = arg("t", 7, 3)
    op = ops.Gather((1,), (0,), (), (), (0,), 1, (1, 3))
    g = graph(op(table, ops.arange(S)))
    assert count(simplify(g), ops.Gather) == 1


def test_gather_from_a_counter_is_its_index() -> None:
    i = arg("i", 4, dtype=i64)
    op = ops.Gather((), (0,), (), (), (0,), 1, (1,))
    g = graph(op(ops.add(ops.mul(ops.arange(3), 5), 2), i))
    after = simplify(g)
    assert count(after, ops.Gather) == 0
    same_values(g, after)


def test_difference_and_cumulative_sum_of_positions() -> None:
    p = iota(B, S, dim=1)
    step = ops.sub(ops.slice_axis(p, 1, 1), ops.slice_axis(p, 1, 0, -1))
    new = ops.concat([ops.full((B, 1), False, ops.compare("NE", step, 1).dtype), ops.compare("NE", step, 1)], 1)
    g = graph(ops.add(X, ops.cast(ops.cumulative("sum", ops.cast(new, i64), 1), X.dtype)))
    after = simplify(g)
    assert count(after, ops.CumReduce) == 0
    same_values(g, after, b=2, s=6)


@pytest.mark.parametrize(("reverse", "exclusive"), [(False, False), (True, False), (False, True), (True, True)])
def test_cumulative_sum_of_a_constant(reverse: bool, exclusive: bool) -> None:
    g = graph(ops.cumulative("sum", ops.full((3, 5), 7, i32), 1, reverse, exclusive))
    same_values(g, rewrite(g, Positions().rules()))
    assert count(rewrite(g, Positions().rules()), ops.CumReduce) == 0


def test_forms_and_ranges_hold_on_random_expressions() -> None:
    r = np.random.default_rng(0)
    result = 0
    for _ in range(200):
        n = _random(r, 3)
        (value,) = interpret(Graph((), (n,)), [])
        p = Positions()
        form, (low, high) = p.form(n), p.range(n)
        if value.size and low is not None:
            assert low <= value.min()
        if value.size and high is not None:
            assert high >= value.max()
        if form is not None:
            result += 1
            np.testing.assert_array_equal(_evaluate(form, value.shape), value)
        same_values(Graph((), (n,)), simplify(Graph((), (n,))))
    assert result >= 20


def _evaluate(form: Affine, shape: tuple[int, ...]) -> np.ndarray:
    assert isinstance(form.constant, int)
    values = np.full(shape, form.constant, np.int64)
    for d, step in enumerate(form.steps):
        values += np.arange(shape[d]).reshape((-1, *(1,) * (len(shape) - 1 - d))) * int(step)  # type: ignore[arg-type]
    return values


def _random(r: np.random.Generator, depth: int) -> Node:
    """A random integer value of shape [4, 6] or of a view of one."""
    if depth == 0:
        leaves = (iota(4, 6, dim=int(r.integers(2))), ops.full((4, 6), int(r.integers(-3, 4)), i64))
        counter = const(np.arange(24, dtype=np.int64).reshape(4, 6) * int(r.integers(-2, 3)))
        return (*leaves, counter, const(r.integers(-5, 5, (4, 6))))[int(r.integers(4))]
    x = _random(r, depth - 1)
    choice = min(int(r.integers(14)), 9) if depth == 1 else int(r.integers(7))
    if choice == 0:
        return ops.add(x, _random(r, depth - 1))
    if choice == 1:
        return ops.sub(x, _random(r, depth - 1))
    if choice == 2:
        return ops.mul(x, int(r.integers(-2, 3)))
    if choice == 3:
        return ops.reshape(ops.transpose(ops.reshape(x, (2, 2, 6)), (0, 1, 2)), (4, 6))
    if choice == 4:
        return ops.reshape(ops.transpose(ops.reshape(x, (6, 4))), (4, 6))
    if choice == 5:
        return ops.concat([ops.slice_axis(x, 1, 0, 2), ops.slice_axis(x, 1, 2)], 1)
    if choice == 6:
        return ops.concat([ops.slice_axis(x, 0, 1), ops.slice_axis(x, 0, 0, 1)], 0)
    if choice == 7:
        return ops.maximum(x, _random(r, depth - 1))
    if choice == 8:
        return ops.clip(x, -2, 3)
    return ops.where(ops.compare("LT", x, int(r.integers(-3, 4))), x, _random(r, depth - 1))


WRAPPING = {
    "bool-bool": lambda a: ops.sub(ops.cast(ops.compare("GT", a, 1.0), u8), ops.cast(ops.compare("GT", a, 0.0), u8)),
    "min-3": lambda a: ops.sub(ops.minimum(ops.cast(a, u32), ops.scalar(5, u32)), ops.scalar(3, u32)),
    "narrow": lambda a: ops.sub(ops.minimum(ops.cast(a, i8), ops.scalar(5, i8)), ops.scalar(3, i8)),
    "counter": lambda a: ops.sub(ops.arange(7, dtype=u32), ops.scalar(3, u32)),
    "steps": lambda a: ops.mul(ops.arange(7, dtype=i32), ops.scalar(-(1 << 30), i32)),
}


@pytest.mark.parametrize("make", WRAPPING.values(), ids=WRAPPING)
def test_what_wraps_has_no_range(make: Callable[[Node], Node]) -> None:
    x = arg("x", 7)
    y = make(x)
    g = Graph((x,), (ops.cast(ops.compare("LT", y, ops.scalar(10, y.dtype)), x.dtype), ops.cast(y, x.dtype)))
    xs = [np.array([-200, -128, 0, 0.5, 1, 2, 300], np.float32)]
    for got, want in zip(interpret(simplify(g), xs), interpret(g, xs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_large_random_constants_have_no_form() -> None:
    n = const(np.asarray([0, 1, 2, 4]))
    assert isinstance(n.op, Const)
    assert Positions().form(n) is None
    assert Positions().range(n) == (0, 4)
