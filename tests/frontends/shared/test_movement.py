"""What moves elements around, at open sizes and by numbers that a call brings."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.frontends.shared.composites import movement
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from tests.conformance.targets import HOST
from tests.guard import check_all

N = symbol("n", may_be_empty=True)
ENDS_OF_I64 = (-(2**63), -(2**63) + 1, -(2**62), -4, -1, 0, 1, 2, 5, 2**62, 2**63 - 1)


def _rolled(graph: Graph, arrays: list[np.ndarray], shift: int) -> None:
    x = arrays[0]
    got = CompiledModel(build_program(graph, HOST, 1), threads=1)(*arrays)
    np.testing.assert_array_equal(got, np.roll(x, shift % max(len(x), 1), 0))


@pytest.mark.parametrize("is_told", [False, True])
def test_roll_by_any_number(is_told: bool) -> None:
    cases = {}
    x = Input("x", TensorType(f32, (N, 2)))()
    for shift in ENDS_OF_I64:
        inputs: list[Node] = [x]
        by: int | Node = shift
        if is_told:
            by = Input("by", TensorType(i64, ()))()
            inputs.append(by)
        graph = Graph(tuple(inputs), (movement.roll(x, 0, by),), ("y",), (("n", 0, None),))
        for n in (0, 1, 3, 4):
            arrays = [np.arange(2 * n, dtype=np.float32).reshape(n, 2), np.array(shift)][: len(inputs)]
            cases[f"{n} by {shift}"] = lambda graph=graph, arrays=arrays, shift=shift: _rolled(graph, arrays, shift)
    check_all(cases)
