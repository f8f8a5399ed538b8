"""Programs whose last inputs and results lie side by side in one tensor each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.arguments import Packing, side_by_side
from ingot.runtime.executable import LoadedProgram
from ingot.support.errors import InputError

torch = pytest.importorskip("torch")


def test_packed_inputs_and_results_beside_state() -> None:
    """An empty one, and two of other types."""
    x, a, empty, b = (
        Input(name, TensorType(dtype, shape))()
        for name, dtype, shape in (("x", f32, (3,)), ("a", i64, (5,)), ("e", f32, (0, 2)), ("b", f32, (3,)))
    )
    total = Input("total", TensorType(f32, (3,)))()
    after = ops.add(total, ops.mul(x, b))
    graph = Graph((x, a, empty, b, total), (after, ops.add(a, 1), ops.Neg()(empty), after), state=("total",))
    loaded = LoadedProgram(build_program(graph, features_of("native"), 1), packing=Packing(3, 2))
    assert [spec.name for spec in loaded.inputs] == ["x", "packed"] and len(loaded.outputs) == 2
    offsets, nbytes = side_by_side((40, 0, 12))
    packed = torch.zeros(nbytes, dtype=torch.uint8)
    packed[offsets[0] : offsets[0] + 40].view(torch.int64).copy_(torch.arange(5))
    packed[offsets[2] : offsets[2] + 12].view(torch.float32).copy_(torch.tensor([1.0, 2.0, 4.0]))
    for call in (1, 2, 3):
        first, rest = loaded.run([torch.tensor([1.0, 1.0, np.inf]), packed])
        np.testing.assert_array_equal(first, np.arange(1, 6))
        np.testing.assert_array_equal(rest[:12].view(torch.float32), [call, 2.0 * call, np.inf])
    assert loaded.plan(())
    for wrong in (packed[:-1], torch.zeros(nbytes + 1, dtype=torch.uint8), packed[None], packed.view(torch.int8)):
        with pytest.raises(InputError, match="packed"):
            loaded.run([torch.ones(3), wrong])


def test_packed_results_take_the_memory_that_nobody_holds() -> None:
    """A view, a storage and a saved variable hold it; tensors of calls that nobody waits for are not kept."""
    x = Input("x", TensorType(f32, (3,)))()
    graph = Graph((x,), (ops.add(x, 1), ops.mul(x, 2.0), ops.mul(x, 3.0)))
    loaded = LoadedProgram(build_program(graph, features_of("native"), 1), packing=Packing(0, 2, is_private=True))

    def packed() -> Any:
        return loaded.run([torch.ones(3)])[-1]

    first = packed()
    address = first.data_ptr()
    view = first[:12].view(torch.float32)
    del first
    second = packed()
    assert second.data_ptr() != address and view.tolist() == [2.0, 2.0, 2.0]
    address = second.data_ptr()
    storage = second.untyped_storage()
    del second, view
    assert packed().data_ptr() != address
    del storage
    address = packed().data_ptr()
    assert all(packed().untyped_storage().data_ptr() == address for _ in range(3))
