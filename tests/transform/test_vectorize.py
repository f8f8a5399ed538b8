"""Each rule of `vectorize` gives the rows that the op gives one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import TensorType, dtype_of
from ingot.support.errors import UnsupportedOpError
from ingot.transform.vectorize import _RULES, vectorize

ROWS, SAMPLES = 3, 6


def _inputs(arrays: tuple[np.ndarray, ...], label: str) -> list[Node]:
    return [Input(f"{label}{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays)]


def _check(op: Op, arrays: tuple[np.ndarray, ...], flags: tuple[bool, ...]) -> None:
    """flags: the operands with rows."""
    single = _inputs(arrays, "x")
    y = op(*single)
    batches = [np.stack([np.roll(a, i) for i in range(ROWS)]) for a in arrays]
    mapped = {x: row for x, row, flag in zip(single, _inputs(tuple(batches), "rows"), flags, strict=True) if flag}
    (rows,) = vectorize([y], mapped)
    graph = Graph((*single, *mapped.values()), (rows,))
    values = [*arrays, *(m for m, flag in zip(batches, flags, strict=True) if flag)]
    (got,) = interpret(graph, values)
    for i in range(ROWS):
        operands = [m[i] if flag else a for a, m, flag in zip(arrays, batches, flags, strict=True)]
        (expected,) = interpret(Graph(tuple(single), (y,)), operands)
        np.testing.assert_allclose(
            np.asarray(got[i], np.float64),
            np.asarray(expected, np.float64),
            rtol=1e-4,
            atol=1e-4,
            err_msg=f"{op} {flags}",
        )


@pytest.mark.parametrize("cls", [*_RULES, ops.Add, ops.Select, ops.Exp], ids=lambda c: c.__name__)
def test_rows(cls: type[ops.CoreOp]) -> None:
    count = 0
    for op, arrays in itertools.islice(cls.samples(), 40):
        floats = [i for i, a in enumerate(arrays) if dtype_of(a).is_float and a.size]
        if count >= SAMPLES or not floats or any(a.size > 2000 for a in arrays):
            continue
        if cls is ops.Sort and len(arrays) > 1:
            continue
        choices: list[tuple[int, ...]] = [(0,)] if 0 in floats else [(1,), (1, 2)] if cls is ops.Select else []
        if cls in (ops.DotGeneral, ops.Convolution, ops.Concat, ops.Add) and len(floats) == 2:
            choices += [(1,), (0, 1)]
        if cls is ops.Scatter:
            choices = [(2,), (0, 2)] if 2 in floats else []
        for chosen in choices:
            try:
                _check(op, arrays, tuple(i in chosen for i in range(len(arrays))))
            except UnsupportedOpError as error:  # rows of grouped kernels
                assert "rows of groups" in str(error)
                continue
            count += 1
    assert count


def test_what_has_no_rows_is_computed_once() -> None:
    x, w = _inputs((np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)), "x")
    rows = Input("rows", TensorType(x.dtype, (5, 2, 3)))()
    shared = ops.Exp()(w)
    y, single = vectorize([ops.DotGeneral(((), ()), ((1,), (0,)))(x, shared), shared], {x: rows})
    assert y.shape == (5, 2, 4) and single.shape == (5, 3, 4)
    assert shared in Graph((rows, w), (y,)).nodes()


def test_ops_without_a_rule_are_named() -> None:
    (x,) = _inputs((np.zeros((4,), np.float32),), "x")
    rows = Input("rows", TensorType(x.dtype, (5, 4)))()
    with pytest.raises(UnsupportedOpError, match=r"sort.*cannot be vectorized"):
        vectorize([ops.Sort(0)(x, x).results[0]], {x: rows})
