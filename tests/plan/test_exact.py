"""Index arithmetic on numbers that a call passes is exact in the runtime, and does not wrap."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import dim_max, dim_min, symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError

MIN_I64, MAX_I64 = -(2**63), 2**63 - 1


def model(*numbers: str, start) -> CompiledModel:
    """x[start:] of five elements; the numbers are passed as a tensor."""
    x = Input("x", TensorType(f32, (5,)))()
    values = tuple(symbol(name) for name in numbers)
    at = Input("at", TensorType(i64, (len(values),)), values)()
    y = ops.Slice((start(*values),), (5,), (1,))(x)
    return CompiledModel(build_native(Graph((x, at), (ops.Neg()(y),)), 1), threads=1)


@pytest.mark.parametrize("at", [MIN_I64, MIN_I64 + 1, -3, 0, 2, MAX_I64 - 1, MAX_I64])
def test_sums_beyond_64_bits(at: int) -> None:
    x = np.arange(5, dtype=np.float32)
    compiled = model("at.0", start=lambda a: dim_min(dim_max(2 * a + 3, 0), 5))
    assert compiled.program.steps[0].dims != (("at.0",),)
    assert np.array_equal(compiled(x, np.array([at])), -x[min(max(2 * at + 3, 0), 5) :])
    compiled = model("at.0", "at.1", start=lambda a, b: dim_min(dim_max(a * b + a, 0), 5))
    assert np.array_equal(compiled(x, np.array([at, MAX_I64])), -x[min(max(at * MAX_I64 + at, 0), 5) :])


def test_a_number_that_64_bits_do_not_hold_is_refused() -> None:
    values = symbol("at.0")
    at = Input("at", TensorType(i64, (1,)), (values,))()
    compiled = CompiledModel(build_native(Graph((at,), (ops.DimValue(3 * values)(),)), 1), threads=1)
    assert compiled(np.array([5])) == 15
    with pytest.raises(InputError, match="64 bits"):
        compiled(np.array([MAX_I64]))


def test_sizes_that_no_memory_holds_are_refused() -> None:
    x = Input("x", TensorType(f32, (symbol("n"), symbol("m"))))()
    graph = Graph((x,), (ops.Transpose((1, 0))(x),), bounds=(("n", 0, None),))
    compiled = CompiledModel(build_native(graph, 1), threads=1)
    assert compiled(np.zeros((0, 2**20), np.float32)).shape == (2**20, 0)
    with pytest.raises(InputError, match="sizes of at most"):
        compiled(np.zeros((0, 2**60), np.float32))
