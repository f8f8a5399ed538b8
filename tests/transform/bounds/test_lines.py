"""Planes of softmax are on their side of it, for narrow, wide and hidden scores."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, boolean, f64
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.transform.bounds.functions import function_of
from ingot.transform.bounds.lines import planes_of_softmax
from ingot.transform.bounds.rounding import Interval

ROWS, SIZE = 6, 5
EXP = function_of(ops.Exp())


def _planes() -> Graph:
    """lower x, upper x, lower p, upper p, mask -> factor, weights, offset of each plane"""
    ends = [Input(name, TensorType(f64, (ROWS, SIZE)))() for name in ("lower", "upper", "least", "most")]
    mask = Input("mask", TensorType(boolean, (ROWS, SIZE)))()
    assert EXP is not None
    x, p = (Interval(*map(Term, pair)) for pair in (ends[:2], ends[2:]))
    planes = planes_of_softmax(EXP, x, p, Term(mask), (1,))
    parts = [v.broadcast((ROWS, SIZE)).node for plane in planes for v in (plane.factor, plane.weights, plane.offset)]
    return lower_model_ops(Graph((*ends, mask), tuple(parts)))


def _softmax(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """In extended precision; 0 for hidden elements."""
    shifted = np.where(mask, x, -np.inf).astype(np.longdouble)
    top = shifted.max(-1, keepdims=True)
    e = np.exp(shifted - np.where(np.isfinite(top), top, 0))
    return np.divide(e, e.sum(-1, keepdims=True), out=np.zeros_like(e), where=e.sum(-1, keepdims=True) > 0)


@pytest.mark.parametrize("offset", [0.0, -700.0, 1e4])
@pytest.mark.parametrize("radius", [0.0, 1e-12, 1e-3, 0.5, 3.0, 40.0, 2e3])
def test_planes_of_softmax(radius: float, offset: float) -> None:
    rng = np.random.default_rng(2)
    graph = _planes()
    center = rng.normal(size=(ROWS, SIZE)) * 3 + offset
    reach = radius * rng.random((ROWS, SIZE))
    lower, upper = center - reach, center + reach
    mask = rng.random((ROWS, SIZE)) < 0.7
    mask[0], mask[1] = True, False
    share = rng.random((2000, ROWS, SIZE))
    share[::2] = share[::2].round()
    points = lower + share * (upper - lower)
    diagonal = np.eye(SIZE, dtype=bool)
    # the interval of element i of p: at the corner where i is least and the others are largest, and at its opposite
    corners = [np.where(diagonal, a[:, None], b[:, None]) for a, b in ((lower, upper), (upper, lower))]
    least, largest = (np.diagonal(_softmax(v, mask[:, None]), axis1=1, axis2=2) for v in corners)
    least, largest = (
        np.asarray(least, np.float64) * (1 - 1e-12),
        np.asarray(largest, np.float64) * (1 + 1e-12) + 2.0**-1000,
    )
    results = interpret(graph, [lower, upper, least, largest, mask])
    (factor, weights, low_offset), (high_factor, high_weights, high_offset) = results[:3], results[3:]
    points_x = np.where(mask, points, 0.0).astype(np.longdouble)
    p = _softmax(points, mask)

    def plane(factor: np.ndarray, weights: np.ndarray, offset: np.ndarray) -> np.ndarray:
        return factor * (points_x - (weights * points_x).sum(-1, keepdims=True)) + offset

    low, high = plane(factor, weights, low_offset), plane(high_factor, high_weights, high_offset)
    assert (low <= p).all() and (p <= high).all()
    if radius <= 1e-3:
        assert (high - low).max() < 20 * radius + 1e-9 * (1 + abs(offset))
    assert low.shape == (2000, ROWS, SIZE)
