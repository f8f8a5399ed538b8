"""Operands that the hardware copies in boxes: which are, and that products of them are right."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import DType, TensorType, f8e4m3fn, f8e5m2, f16, f32, i8, i32
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("x", "w", "sums"), [
    (f16, f16, f32), (i8, i8, i32), (f8e4m3fn, f8e4m3fn, f32), (f8e5m2, f8e4m3fn, f32),
])  # fmt: skip
def test_those_of_8_bits_have_their_terms_side_by_side(x: DType, w: DType, sums: DType, is_transposed: bool) -> None:
    """600 rows of 144 terms, neither of which are whole tiles. turned: B's columns lie one behind the other."""
    rng = np.random.default_rng(0)
    shapes = (600, 144), (80, 144) if is_transposed else (144, 80)
    data = [(rng.normal(size=s) * 8).astype(d.numpy) for s, d in zip(shapes, (x, w), strict=True)]
    a, b = (Input(n, TensorType(d, s))() for n, d, s in zip("ab", (x, w), shapes, strict=True))
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (1 if is_transposed else 0,)), dtype=sums)(a, b),))
    (kernel,) = planned(graph, H100)[1].values()
    boxed = [b.name for b in kernel.params if b.matrix is not None]
    assert boxed == (["a_matrix", "b_matrix"] if is_transposed or x == f16 else [])
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)
