"""Pools of windows far longer than what they move over: their loops run over what is inside."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.ops import ReduceWindow
from tests.conformance.checked import run_checked

FAR = 1 << 40


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("base", [1, 2])
@pytest.mark.parametrize(("window", "low", "high"), [(FAR, FAR, 7), (FAR, FAR - 3, 4), (FAR, 2, FAR - 1), (99, 60, 70)])
def test_an_open_size(window: int, low: int, high: int, base: int, dilation: int, stride: int) -> None:
    n, x = symbol("n"), np.arange(1, 12, dtype=np.float32)
    low, high = low * dilation, high * dilation
    op = ReduceWindow("sum", (window,), (stride,), ((low, high),), (dilation,), (base,))
    node = Input("x", TensorType(f32, (n,)))()
    (got,) = run_checked(Graph((node,), (op(node),)), [x], "cuda:sm_90a")
    np.testing.assert_array_equal(got, op.reference(x))
