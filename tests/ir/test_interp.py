from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingot.ir.dims import Dim, symbol
from ingot.ir.interp import bind_symbols, interpret
from ingot.ir.node import Graph, Node, const
from ingot.support.errors import InputError, ShapeError, VerifyError
from tests.ir.tiny import TAdd, TBroadcast, TCall, TLiar, TNeg, TSplit, arg

S = symbol("s")


def floats(values: Sequence[object]) -> np.ndarray:
    return np.array(values, np.float32)


def test_computes_by_position_and_by_label() -> None:
    x, y = arg("x", 3), arg("y", 3)
    g = Graph((x, y), (TAdd()(x, TNeg()(y)), x))
    a, b = floats([1, 2, 3]), floats([5, 5, 5])
    for data in ([a, b], {"y": b, "x": a}):
        total, alias = interpret(g, data)
        assert np.array_equal(total, a - b)
        assert alias is a


def test_substitutes_symbols_in_attributes_and_bodies() -> None:
    inner = arg("p", S)
    body = Graph((inner,), (TBroadcast((2 * S, S))(inner),))
    x = arg("x", S)
    (result,) = interpret(Graph((x,), TCall(body)(x).results), [floats([1, 2])])
    assert result.shape == (4, 2)


def test_reads_results_of_a_split() -> None:
    x = arg("x", 4)
    a, b = TSplit()(x).results
    (result,) = interpret(Graph((x,), (TAdd()(b, TNeg()(a)),)), [floats([1, 2, 5, 7])])
    assert result.tolist() == [4, 5]


def test_observer_sees_every_node_in_order() -> None:
    x = arg("x", 2)
    n = TNeg()(x)
    nodes: list[Node] = []
    interpret(Graph((x,), (n,)), [floats([1, 2])], observe=lambda node, values: nodes.append(node))
    assert nodes == [x, n]


def test_a_lying_reference_is_named() -> None:
    x = arg("x", 2)
    with pytest.raises(VerifyError, match=r"t\.liar at m\.py:3.*expected bool\[2\], got float32\[2\]"):
        interpret(Graph((x,), (TLiar()(x, loc="m.py:3"),)), [floats([1, 2])])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "expected 2"),
        ({"x": floats([1])}, "by its label"),
        ([np.array([1, 2], np.float64), floats([1])], r"input 'x': expected f32, got f64"),
        ([floats([[1]]), floats([1])], r"input 'x': expected f32\[s\], got shape \[1, 1\]"),
        ([floats([1, 2]), floats([1, 2])], r"axis 0 of input 'y': expected 5 \(= 2\*s\+1; s from axis 0"),
    ],
)
def test_refuses_inputs_that_do_not_fit(arrays, message: str) -> None:
    x, y = arg("x", S), arg("y", 2 * S + 1)
    with pytest.raises(InputError, match=message):
        interpret(Graph((x, y), (x,)), arrays)


def test_binds_linear_expressions_and_checks_bounds() -> None:
    t = symbol("t")
    g = Graph((arg("a", S * t), arg("b", 2 * S + 1), arg("c", t + S)), (), bounds=(("s", 1, 8),))
    assert bind_symbols(g, [(12,), (7,), (7,)]) == {"s": 3, "t": 4}
    with pytest.raises(InputError, match=r"expected s in \[1, 8\], got 9"):
        bind_symbols(g, [(36,), (19,), (13,)])
    with pytest.raises(InputError, match=r"does not settle s\*t"):
        bind_symbols(g, [(12,), (8,), (7,)])


def test_checks_conditions_over_several_sizes() -> None:
    t = symbol("t")
    condition = 19 - S - t
    assert isinstance(condition, Dim)
    g = Graph((arg("a", S), arg("b", t)), (), conditions=(condition,))
    assert bind_symbols(g, [(9,), (10,)]) == {"s": 9, "t": 10}
    with pytest.raises(InputError, match=r"expected .* >= 0, got -1"):
        bind_symbols(g, [(10,), (10,)])
    assert g.substitute({"s": 4}).conditions == (15 - t,)
    assert g.substitute({"s": 4, "t": 15}).conditions == ()
    with pytest.raises(ShapeError, match=">= 0"):
        g.substitute({"s": 10, "t": 10})


def test_equal_bytes_of_one_byte_floats_and_ints_are_different_constants() -> None:
    import ml_dtypes

    raw = np.array([8, 8], np.uint8)
    kinds = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4]
    nodes = [const(raw.view(k)) for k in kinds]
    assert len(set(nodes)) == 4
