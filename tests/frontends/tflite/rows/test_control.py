"""Branches, loops and state, against LiteRT over several calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.frontends.tflite import import_tflite
from ingot.support.errors import UnsupportedOpError
from tests.frontends.tflite.builder import Model, Subgraph, calls, feed, interpreted, reference


def unary(model: Model, op: str, options: str = "") -> Subgraph:
    g = model.subgraph()
    x = g.input((2, 3))
    operands = [x, x] if options else [x]
    g.outputs = list(g.op(op, operands, [g.tensor((2, 3))], options))
    return g


def test_a_branch_is_taken_by_data():
    model = Model()
    main = model.subgraph()
    c, x = main.input((), np.bool_), main.input((2, 3))
    unary(model, "ADD", "Add")
    unary(model, "NEG")
    main.outputs = list(
        main.op("IF", [c, x], [main.tensor((2, 3))], "If", then_subgraph_index=1, else_subgraph_index=2)
    )
    data, x = model.finish(), feed((2, 3))
    for chosen in (True, False):
        feeds = [np.array(chosen), x]
        np.testing.assert_array_equal(interpreted(data, feeds)[0], reference(data, feeds)[0])


def test_a_loop_runs_as_long_as_its_condition_holds():
    """while i < n: i, x = i + 1, x * 1.5"""
    model = Model()
    main = model.subgraph()
    i, n, x = main.const(np.array(0, np.int32)), main.input((), np.int32), main.input((2, 3))
    cond, body = model.subgraph(), model.subgraph()
    a, b, _ = (cond.input((), np.int32), cond.input((), np.int32), cond.input((2, 3)))
    cond.outputs = list(cond.op("LESS", [a, b], [cond.tensor((), np.bool_)]))
    a, b, v = (body.input((), np.int32), body.input((), np.int32), body.input((2, 3)))
    (incremented,) = body.op("ADD", [a, body.const(np.array(1, np.int32))], [body.tensor((), np.int32)], "Add")
    (grown,) = body.op("MUL", [v, body.const(np.array(1.5, np.float32))], [body.tensor((2, 3))], "Mul")
    body.outputs = [incremented, b, grown]
    results = [main.tensor((), np.int32), main.tensor((), np.int32), main.tensor((2, 3))]
    main.op("WHILE", [i, n, x], results, "While", cond_subgraph_index=1, body_subgraph_index=2)
    main.outputs = [results[0], results[2]]
    data = model.finish()
    for trip_count in (0, 1, 5):
        feeds = [np.array(trip_count, np.int32), feed((2, 3))]
        for got, want in zip(interpreted(data, feeds), reference(data, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def accumulator(first: bool = True, inside: bool = False) -> bytes:
    """total += x, from 2 on; inside: the sum is in a branch that a positive first element takes."""
    model = Model()
    main = model.subgraph()
    x = main.input((3,))
    adding = main
    if first:
        init = model.subgraph()
        (handle,) = init.op("VAR_HANDLE", [], [init.tensor((), "RESOURCE")], "VarHandle", shared_name="total")
        init.op("ASSIGN_VARIABLE", [handle, init.const(np.full(3, 2, np.float32))], [])
        main.op("CALL_ONCE", [], [], "CallOnce", init_subgraph_index=1)
    if inside:
        adding, other = model.subgraph(), model.subgraph()
        y = adding.input((3,))
        other.outputs = list(other.op("NEG", [other.input((3,))], [other.tensor((3,))]))
    else:
        y = x
    (handle,) = adding.op("VAR_HANDLE", [], [adding.tensor((), "RESOURCE")], "VarHandle", shared_name="total")
    (old,) = adding.op("READ_VARIABLE", [handle], [adding.tensor((3,))])
    (new,) = adding.op("ADD", [old, y], [adding.tensor((3,))], "Add")
    adding.op("ASSIGN_VARIABLE", [handle, new], [])
    (result,) = adding.op("READ_VARIABLE", [handle], [adding.tensor((3,))])
    if inside:
        adding.outputs = [result]
        pick = [main.const(np.array([v], np.int32)) for v in (0, 1, 1)]
        (head,) = main.op("STRIDED_SLICE", [x, *pick], [main.tensor(())], "StridedSlice", shrink_axis_mask=1)
        (c,) = main.op("GREATER", [head, main.const(np.array(0, np.float32))], [main.tensor((), np.bool_)])
        branches = {"then_subgraph_index": 2, "else_subgraph_index": 3}
        (result,) = main.op("IF", [c, x], [main.tensor((3,))], "If", "", b"", (), **branches)
    main.outputs = [result]
    return model.finish()


@pytest.mark.parametrize("inside", [False, True])
def test_variables_keep_their_values_from_call_to_call(inside: bool, tmp_path: Path):
    data = accumulator(inside=inside)
    x = feed((3,))
    for want, got in calls(data, [x, -x, x, 2 * x], tmp_path):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_variable_of_levels_keeps_its_levels(tmp_path: Path):
    """A queue of two, as streaming models have them."""
    model, q = Model(), (0.1, -3)
    main, init = model.subgraph(), model.subgraph()
    (handle,) = init.op("VAR_HANDLE", [], [init.tensor((), "RESOURCE")], "VarHandle", shared_name="queue")
    init.op("ASSIGN_VARIABLE", [handle, init.const(np.full((2, 3), -3, np.int8), q)], [])
    main.op("CALL_ONCE", [], [], "CallOnce", init_subgraph_index=1)
    x = main.input((1, 3), np.int8, q)
    (handle,) = main.op("VAR_HANDLE", [], [main.tensor((), "RESOURCE")], "VarHandle", shared_name="queue")
    (old,) = main.op("READ_VARIABLE", [handle], [main.tensor((2, 3), np.int8, q)])
    (concatenated,) = main.op("CONCATENATION", [old, x], [main.tensor((3, 3), np.int8, q)], "Concatenation", axis=0)
    places = [main.const(np.array(v, np.int32)) for v in ([1, 0], [3, 3], [1, 1])]
    (new,) = main.op("STRIDED_SLICE", [concatenated, *places], [main.tensor((2, 3), np.int8, q)], "StridedSlice")
    main.op("ASSIGN_VARIABLE", [handle, new], [])
    main.outputs = [concatenated]
    for want, got in calls(model.finish(), [feed((1, 3), np.int8, seed=n) for n in range(4)], tmp_path):
        np.testing.assert_array_equal(got, want)


def test_state_is_told_and_set(tmp_path: Path):
    path = tmp_path / "sum.tflite"
    path.write_bytes(accumulator())
    m = ingot.compile(path, cache=False)
    assert [s.name for s in m.inputs] == ["x0"]
    np.testing.assert_array_equal(m.state()["total"], [2, 2, 2])
    m(np.ones(3, np.float32))
    np.testing.assert_array_equal(m.state()["total"], [3, 3, 3])


def test_a_variable_without_a_first_value_is_refused():
    with pytest.raises(UnsupportedOpError, match="'total', which nothing gives a first value"):
        import_tflite(accumulator(first=False))


def compiled(data: bytes, tmp_path: Path) -> ingot.CompiledModel:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    return ingot.compile(path, cache=False, threads=1)


def agree(data: bytes, m: ingot.CompiledModel, feeds: list[np.ndarray]) -> None:
    want, got = reference(data, feeds)[0], m(*feeds)
    assert isinstance(got, np.ndarray) and (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(interpreted(data, feeds)[0], got)


def test_branches_give_as_many_as_data_says(tmp_path: Path):
    """the places that are not 0, or the first two rows of zeros"""
    model = Model()
    main = model.subgraph()
    c, x = main.input((), np.bool_), main.input((2, 3), np.int32)
    g = model.subgraph()
    g.outputs = list(g.op("WHERE", [g.input((2, 3), np.int32)], [g.tensor((-1, 2), np.int64)]))
    g = model.subgraph()
    g.input((2, 3), np.int32)
    g.outputs = [g.const(np.zeros((2, 2), np.int64))]
    (result,) = main.op(
        "IF", [c, x], [main.tensor((-1, 2), np.int64)], "If", then_subgraph_index=1, else_subgraph_index=2
    )
    main.outputs = list(main.op("NEG", [result], [main.tensor((-1, 2), np.int64)]))
    data = model.finish()
    m = compiled(data, tmp_path)
    for x in ([[3, 0, 1], [0, 7, 3]], [[0, 0, 0], [0, 0, 2]], [[1, 1, 1], [1, 1, 1]]):
        for chosen in (True, False):
            agree(data, m, [np.array(chosen), np.array(x, np.int32)])


def growing(places: bool) -> bytes:
    """while i < n: x = concatenate(x, [i, 2 i]), or the places of the elements of x that are not 0"""
    model = Model()
    main = model.subgraph()
    kind = np.int64 if places else np.int32
    i, n, x = main.const(np.array(0, np.int32)), main.input((), np.int32), main.input((3,), kind)
    cond, body = model.subgraph(), model.subgraph()
    a, b, _ = (cond.input((), np.int32), cond.input((), np.int32), cond.input((-1,), kind))
    cond.outputs = list(cond.op("LESS", [a, b], [cond.tensor((), np.bool_)]))
    a, b, v = (body.input((), np.int32), body.input((), np.int32), body.input((-1,), kind))
    (incremented,) = body.op("ADD", [a, body.const(np.array(1, np.int32))], [body.tensor((), np.int32)], "Add")
    if places:
        (at,) = body.op("WHERE", [v], [body.tensor((-1, 1), np.int64)])
        (row,) = body.op("RESHAPE", [at, body.const(np.array([-1], np.int32))], [body.tensor((-1,), kind)], "Reshape")
    else:
        (twice,) = body.op("ADD", [a, a], [body.tensor((), np.int32)], "Add")
        (pair,) = body.op("PACK", [a, twice], [body.tensor((2,), np.int32)], "Pack", values_count=2)
        (row,) = body.op("CONCATENATION", [v, pair], [body.tensor((-1,), kind)], "Concatenation")
    body.outputs = [incremented, b, row]
    results = [main.tensor((), np.int32), main.tensor((), np.int32), main.tensor((-1,), kind)]
    main.op("WHILE", [i, n, x], results, "While", cond_subgraph_index=1, body_subgraph_index=2)
    main.outputs = [results[2]]
    return model.finish()


@pytest.mark.parametrize("places", [False, True], ids=["grows", "shrinks"])
def test_what_a_loop_carries_changes_its_size(places: bool, tmp_path: Path):
    data = growing(places)
    m = compiled(data, tmp_path)
    for trip_count in (0, 1, 2, 3):  # LiteRT hands out no empty tensor
        agree(data, m, [np.array(trip_count, np.int32), np.array([7, 5, 3], np.int64 if places else np.int32)])
