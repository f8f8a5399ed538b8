"""What stands around an anchor."""

from __future__ import annotations

from ingot import ops
from ingot.ir.node import Input
from ingot.ir.types import TensorType, f32
from ingot.schedule.block import Block
from ingot.schedule.group_io import result_index


def test_the_way_to_an_anchor_visits_each_value_once() -> None:
    """Beside 60 values, each of which is made of the one before twice."""
    x, anchor = Input("x", TensorType(f32, (2, 3)))(), Input("a", TensorType(f32, (3, 2)))()
    for _ in range(60):
        x = ops.Add()(x, x)
    root = ops.Mul()(x, ops.Transpose((1, 0))(anchor))
    block = Block()
    i, j = block.fresh("i"), block.fresh("j")
    assert result_index(block, root, anchor, (i, j)) == (j, i)
