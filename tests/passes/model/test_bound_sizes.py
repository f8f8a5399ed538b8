"""Tables bound the sizes that positions come from, the first k elements those that they are of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, i64
from ingot.passes.model.bound_sizes import bound_sizes, check_in_run
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import ImportModelError, InputError, ShapeError
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg, graph

N, PAST = symbol("n"), symbol("past")
TABLE = const(np.zeros((16, 4), np.float32))


def take_graph(positions: Node) -> Graph:
    """take(table[16, 4], positions), beside an input that has the sizes."""
    x = arg("x", N, PAST)
    return graph(x, ops.Take(0)(TABLE, positions))


def iota(size: object, *leading: object) -> Node:
    return ops.Iota(TensorType(i64, (*leading, size)), len(leading))()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("positions", "bound"),
    [
        (iota(N), 16),
        (iota(N, 3), 16),
        (iota(2 * N + 1), 7),
        (ops.Reshape((1, N))(iota(N)), 16),
        (ops.Add()(iota(N), ops.broadcast_to(const(2), (N,))), 14),
    ],
)
def test_positions_bound_their_size(positions: Node, bound: int) -> None:
    assert bound_sizes(take_graph(positions)).bounds == (("n", 1, bound),)


@pytest.mark.parametrize(
    "positions",
    [
        iota(16),
        ops.Slice((0,), (1,), (1,))(iota(N)),  # the largest may not be among them
        ops.Min()(iota(N), ops.broadcast_to(const(15), (N,))),
        arg("ids", N, dtype=i64),
    ],
)
def test_what_may_fit_bounds_nothing(positions: Node) -> None:
    g = take_graph(positions)
    assert bound_sizes(g) is g


@pytest.mark.parametrize(
    "positions",
    [
        iota(N + PAST),
        ops.Add()(iota(N), ops.broadcast_to(ops.DimValue(PAST)(), (N,))),
        ops.Add()(ops.broadcast_to(ops.DimValue(PAST)(), (2, N)), iota(N, 2)),
    ],
)
def test_positions_behind_others_are_a_condition(positions: Node) -> None:
    g = bound_sizes(take_graph(positions))
    assert (g.bounds, g.conditions) == ((), (16 - N - PAST,))
    assert bound_sizes(g) is g


def test_narrower_bounds_stay() -> None:
    g = Graph(take_graph(iota(N)).inputs, take_graph(iota(N)).outputs, bounds=(("n", 2, 8),))
    assert bound_sizes(g) is g


def test_a_table_that_no_size_fits_is_refused() -> None:
    g = Graph(take_graph(iota(N)).inputs, take_graph(iota(N)).outputs, bounds=(("n", 20, None),))
    with pytest.raises(ImportModelError, match=r"take: no size fits: expected -1\*n\+16 >= 0, got -4 at most"):
        bound_sizes(g)


@pytest.mark.parametrize(("size", "bounds"), [(N, (("n", 5, None),)), (8, ()), (2 * N, (("n", 3, None),))])
def test_the_largest_are_as_many_as_wanted(size: DimLike, bounds: tuple[object, ...]) -> None:
    values, _ = ops.TopK(5, 1)(arg("x", 3, size)).results
    assert bound_sizes(graph(values)).bounds == bounds


def test_fewer_elements_than_wanted_are_refused() -> None:
    values, _ = ops.TopK(5, 1)(arg("x", 3, N)).results
    model = CompiledModel(build_program(graph(values), host_features(), 1), threads=1)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(model(x), x[:, ::-1])
    with pytest.raises(InputError, match=r"expected n >= 5, got 4"):
        model(x[:, :4].copy())


P, Q = symbol("p"), symbol("q")


def limits(*outputs: Node, bounds: tuple[tuple[str, int | None, int | None], ...] = ()) -> list[str]:
    """Bounds and conditions of the graph of these outputs, as text."""
    inputs = dict.fromkeys(n for o in outputs for n in Graph((), (o,)).nodes() if isinstance(n.op, Input))
    g = bound_sizes(Graph(tuple(inputs), outputs, bounds=bounds))
    return sorted(f"{name} >= {low}" for name, low, _ in g.bounds) + sorted(map(str, g.conditions))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (ops.GatherElements(1)(arg("x", P, 5), arg("at", Q, 5, dtype=i64)), ["p-1*q"]),
        (ops.ScatterElements(0)(arg("x", 5, P), arg("at", 3, Q, dtype=i64), arg("u", 3, Q)), ["p-1*q"]),
        (ops.Slice((0,), (Q,), (1,))(arg("x", P + Q)), []),
        (ops.Slice((0,), (P,), (2,))(arg("x", P)), []),
        (ops.TopK(Q, 1)(arg("x", Q, P)).results[0], ["p-1*q"]),
        (ops.Windows(0, 3)(arg("x", P)), ["p >= 3"]),
        (ops.DynamicUpdateSlice()(arg("x", P), arg("u", Q), arg("at", dtype=i64)), ["p-1*q"]),
    ],
    ids=lambda value: value.op.name if isinstance(value, Node) else None,
)
def test_constraints_that_bounds_do_not_settle(node: Node, expected: list[str]) -> None:
    assert limits(node) == expected
    assert limits(node, bounds=(("p", 9, None), ("q", 0, 9))) == ["p >= 9", "q >= 0"]


def test_a_constraint_that_no_sizes_meet_is_refused() -> None:
    with pytest.raises(ShapeError, match="axis 0: expected at most p indices, got p"):
        ops.GatherElements(1)(arg("x", P, 5), arg("at", P + 1, 5, dtype=i64))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (lambda v: ops.Slice((0,), (3,), (1,))(v), ["p >= 3"]),  # kernels do not check views
        (lambda v: ops.Take(0)(v, const(np.zeros(3, np.int64))), []),  # the run does where it gets there
    ],
)
def test_views_in_bodies_bound_sizes(node: Callable[[Node], Node], expected: list[str]) -> None:
    v = arg("v", symbol("p", may_be_empty=True))
    branches = (Graph((v,), (node(v),)), Graph((v,), (node(ops.Neg()(v)),)))
    case = ops.Case(branches)(arg("i", dtype=i64), arg("x", symbol("p", may_be_empty=True)))
    assert limits(*case.results) == expected


EMPTY = symbol("n", may_be_empty=True)


@pytest.mark.parametrize(
    ("x", "rows", "conditions"),
    [
        (EMPTY, PAST, (("n", 1, None),)),  # results for sure
        (N - 1, PAST, (("n", 2, None),)),
        (N, PAST, ()),
    ],
)
def test_an_axis_that_is_read_has_elements(x: DimLike, rows: DimLike, conditions: tuple[object, ...]) -> None:
    lookup = ops.Take(0)(arg("x", x, 4), arg("at", rows, dtype=i64))
    assert bound_sizes(graph(lookup)).bounds == conditions


def test_an_axis_that_is_read_for_no_results_may_be_empty() -> None:
    lookup = ops.Take(0)(arg("x", EMPTY, 4), arg("at", symbol("k", may_be_empty=True), dtype=i64))
    g = bound_sizes(graph(lookup))
    assert g.bounds == () and [str(c) for c in g.conditions] == ["-1*min(1,k?)+n?"]


def test_bounds_that_hold_0_are_in_the_symbols() -> None:
    x = arg("x", N, 4)
    g = bound_sizes(Graph((x,), (ops.Exp()(x),), bounds=(("n", 0, None),)))
    assert g.inputs[0].shape == (EMPTY, 4) and g.bounds == (("n", 0, None),)
    assert bound_sizes(g) is g


@pytest.mark.parametrize(("low", "is_checked"), [(None, True), (4, True), (5, False)])
def test_a_body_checks_what_the_bounds_around_it_leave_open(low: int | None, is_checked: bool) -> None:
    x = arg("x", N)
    body = graph(x, *ops.TopK(5, 0)(x).results)
    limits = {} if low is None else {"n": (low, None)}
    assert [name for name, _ in check_in_run(body, frozenset({"n"}), limits).sizes] == (
        ["$elements_to_read1"] if is_checked else []
    )
