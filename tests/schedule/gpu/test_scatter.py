"""Scatters by the order of their updates' targets: repeated, outside, batched, in several components; checked by the
interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import Shape, TensorType, dtype_of
from ingot.ops import BroadcastInDim, Reduce, Scatter
from ingot.support.errors import VerifyError
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(0)


def graph(op: Scatter, *xs: np.ndarray, shapes: tuple[Shape, ...] | None = None) -> Graph:
    shapes = shapes or tuple(x.shape for x in xs)
    nodes = tuple(Input(f"x{i}", TensorType(dtype_of(x), s))() for i, (x, s) in enumerate(zip(xs, shapes, strict=True)))
    return Graph(nodes, (op(*nodes),))


def checked(op: Scatter, *xs: np.ndarray) -> None:
    (got,) = run_checked(graph(op, *xs), xs, H100)
    np.testing.assert_array_equal(got, op.reference(*xs))


def names_of(op: Scatter, *xs: np.ndarray) -> list[str]:
    return [name.rstrip("_0123456789") for name in planned(graph(op, *xs), H100)[1]]


def numbers(kind: str, *shape: int) -> np.ndarray:
    """Whose sums and products are exact."""
    signs = np.where(RNG.random(shape) < 0.9, 1, -2) if kind == "mul" else RNG.integers(-9, 9, shape)
    return signs.astype(np.float32)


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
def test_rows_and_batches_whose_updates_meet(kind: str) -> None:
    rows = Scatter(kind, (1,), (0,), (), (), (0,), 1)
    checked(rows, numbers(kind, 20, 5), RNG.integers(-3, 25, (70, 1)), numbers(kind, 70, 5))
    batched = Scatter(kind, (), (1,), (0,), (0,), (1,), 2)
    checked(batched, numbers(kind, 4, 30), RNG.integers(-2, 33, (4, 60, 1)), numbers(kind, 4, 60))


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
def test_few_updates_change_a_copy(kind: str) -> None:
    """Of targets with none, one and many updates, and outside; in lines, in windows and in two components."""
    rows = Scatter(kind, (1,), (0,), (), (), (0,), 1)
    indices = np.concatenate([RNG.integers(-3, 510, (60, 1)), np.full((40, 1), 7)])
    xs = numbers(kind, 500, 5), RNG.permutation(indices), numbers(kind, 100, 5)
    checked(rows, *xs)
    assert names_of(rows, *xs)[-1] == "update"
    lines = Scatter(kind, (), (1,), (0,), (0,), (1,), 2)
    checked(lines, numbers(kind, 4, 5000), RNG.integers(-2, 40, (4, 1000, 1)), numbers(kind, 4, 1000))
    places = np.stack([RNG.integers(0, 70, 100), RNG.integers(-1, 6, 100)], 1).astype(np.int32)
    checked(Scatter(kind, (), (0, 1), (), (), (1, 0), 1), numbers(kind, 6, 70), places, numbers(kind, 100))
    outside = np.full((100, 1), 500)
    checked(rows, xs[0], outside, xs[2])


def test_elements_without_updates_keep_their_bits() -> None:
    rows, x = Scatter("add", (1,), (0,), (), (), (0,), 1), np.full((200, 3), -0.0, np.float32)
    x[5, 1], x[9] = np.nan, np.inf
    indices, updates = RNG.integers(0, 9, (60, 1)), numbers("add", 60, 3)
    indices[:2], updates[3, 0] = 9, np.nan
    (got,) = run_checked(graph(rows, x, indices, updates), (x, indices, updates), H100)
    untouched = np.setdiff1d(np.arange(200), indices)
    assert got[untouched].tobytes() == x[untouched].tobytes()
    np.testing.assert_array_equal(got, rows.reference(x, indices, updates))


def test_a_computed_operand_is_updated_in_place() -> None:
    """Also where the result is the model's."""
    xs = numbers("add", 300, 8), RNG.integers(0, 300, (60, 1)), numbers("add", 60, 8)
    x, i, u = (Input(f"x{n}", TensorType(dtype_of(a), a.shape))() for n, a in enumerate(xs))
    rows = Scatter("add", (1,), (0,), (), (), (0,), 1)
    for result in (rows(Reduce("sum", (0,))(BroadcastInDim((2, 300, 8), (1, 2))(x)), i, u),):
        for g in (Graph((x, i, u), (result,)), Graph((x, i, u), (Reduce("max", (1,))(result),))):
            (got,) = run_checked(g, xs, H100)
            np.testing.assert_array_equal(got, interpret(g, xs)[0])
            assert "pointwise" not in {name.rstrip("_0123456789") for name in planned(g, H100)[1]}


def test_many_updates_of_few_elements() -> None:
    counts = Scatter("add", (), (0,), (), (), (0,), 1)
    checked(counts, np.zeros(10, np.int64), RNG.integers(0, 10, (2000, 1)), np.ones(2000, np.int64))
    _, kernels = planned(graph(counts, np.zeros(10), np.zeros((2000, 1), np.int64), np.zeros(2000)), H100)
    assert [name.rstrip("_0123456789") for name in kernels] == ["count_digits", "place_digits", "scatter"]


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("targets", [3, 700])
def test_a_target_of_most_updates_is_combined_in_parts(kind: str, targets: int) -> None:
    """In rows, beside others and updates outside: segments that end in their first part, at its end, and later."""
    rows = Scatter(kind, (1,), (0,), (), (), (0,), 1)
    indices = np.repeat([0, 1, 2, targets, 2, -1], [128, 127, 1600, 129, 90, 3])[:, None]
    xs = numbers(kind, targets, 5), RNG.permutation(indices), numbers(kind, len(indices), 5)
    checked(rows, *xs)
    assert "parts" in names_of(rows, *xs)
    lines = Scatter(kind, (), (1,), (0,), (0,), (1,), 2)
    checked(lines, numbers(kind, 2, 9), np.minimum(RNG.integers(-1, 40, (2, 2050, 1)), 8), numbers(kind, 2, 2050))


def test_targets_of_several_digits() -> None:
    """Whole tiles and a piece of one, parts behind the end, lines with digits of their own."""
    line = Scatter("add", (), (0,), (), (), (0,), 1)
    for total in (2600, 3072):
        xs = numbers("add", 200), RNG.integers(-9, 210, (total, 1)), numbers("add", total)
        checked(line, *xs)
        names = [name.rstrip("_0123456789") for name in planned(graph(line, *xs), H100)[1]]
        assert names == ["count_digits", "place_digits"] * 2 + ["parts", "scatter"]
    batched = Scatter("set", (), (1,), (0,), (0,), (1,), 2)
    checked(batched, numbers("set", 3, 20), RNG.integers(-2, 23, (3, 2100, 1)), numbers("set", 3, 2100))


@pytest.mark.slow
def test_an_open_number_of_targets_of_several_digits() -> None:
    line, n = Scatter("add", (), (0,), (), (), (0,), 1), symbol("n")
    xs = numbers("add", 20), RNG.integers(0, 20, (1700, 1)), numbers("add", 1700)
    (got,) = run_checked(graph(line, *xs, shapes=((20,), (n, 1), (n,))), xs, H100)
    np.testing.assert_array_equal(got, line.reference(*xs))


def test_indices_of_two_components_and_other_types() -> None:
    places = np.stack([RNG.integers(0, 7, 100), RNG.integers(-1, 6, 100)], 1).astype(np.int32)
    checked(Scatter("add", (), (0, 1), (), (), (1, 0), 1), numbers("add", 6, 7), places, numbers("add", 100))
    line = Scatter("max", (), (0,), (), (), (0,), 1)
    checked(line, np.zeros(10, bool), RNG.integers(0, 30, (50, 1)), RNG.random(50) > 0.5)
    line = Scatter("add", (), (0,), (), (), (0,), 1)
    halves = RNG.integers(-9, 9, 60).astype(np.float16)
    checked(line, halves[:10], RNG.integers(0, 30, (50, 1)), halves[10:])


def test_windows_that_reach_an_element_from_several_places_are_asked() -> None:
    places = np.stack([RNG.integers(-1, 9, 40), RNG.integers(-1, 9, 40)], 1)
    checked(Scatter("add", (1, 2), (), (), (), (0, 1), 1), numbers("add", 8, 9), places, numbers("add", 40, 2, 3))
    far = RNG.integers(-(1 << 62), 9, (40, 1))
    checked(Scatter("add", (1, 2), (), (), (), (0,), 1), numbers("add", 8, 9), far, numbers("add", 40, 1, 9))


def test_updates_of_open_number() -> None:
    xs = numbers("add", 5, 3), RNG.integers(0, 5, (40, 1)), numbers("add", 40, 3)
    n, op = symbol("n"), Scatter("add", (1,), (0,), (), (), (0,), 1)
    (got,) = run_checked(graph(op, *xs, shapes=((5, 3), (n, 1), (n, 3))), xs, H100)
    np.testing.assert_array_equal(got, op.reference(*xs))


def test_updates_that_are_apart_are_written_where_they_go() -> None:
    places = RNG.permutation(60)[:, None] - 5  # some outside
    line = Scatter("set", (1,), (0,), (), (), (0,), 1, unique=True)
    xs = numbers("set", 50, 3), places, numbers("set", 60, 3)
    checked(line, *xs)
    assert [name.rstrip("_0123456789") for name in planned(graph(line, *xs), H100)[1]] == ["pointwise", "update"]
    batched = Scatter("set", (), (1,), (0,), (0,), (1,), 2, unique=True)
    permutations = np.stack([RNG.permutation(70) for _ in range(3)])[..., None]
    checked(batched, numbers("set", 3, 64), permutations, numbers("set", 3, 70))


def test_updates_that_meet_though_they_were_said_not_to_are_refused() -> None:
    line = Scatter("set", (), (0,), (), (), (0,), 1, unique=True)
    with pytest.raises(VerifyError, match="stores to out0 what chunk"):
        checked(line, numbers("set", 50), np.zeros((900, 1), np.int64), numbers("set", 900))


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
def test_updates_without_common_elements_are_applied_where_they_go(kind: str) -> None:
    """A window alone, inside and outside; and rows that are told to be different."""
    one = Scatter(kind, (1,), (0,), (), (), (0,), 1)
    for row in (3, -1, 20):
        checked(one, numbers(kind, 20, 5), np.array([[row]]), numbers(kind, 1, 5))
    rows = Scatter(kind, (1,), (0,), (), (), (0,), 1, unique=True)
    xs = numbers(kind, 500, 5), RNG.permutation(310)[:70, None] - 5, numbers(kind, 70, 5)
    checked(rows, *xs)
    names = [name.rstrip("_0123456789") for name in planned(graph(rows, *xs), H100)[1]]
    assert names == ["pointwise", "update"]
