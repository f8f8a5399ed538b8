from __future__ import annotations

from ingot import ops
from ingot.passes.model.transposed_concat import transpose_parts
from tests.passes.check import arg, count, graph, same_values

PARTS = [ops.reshape(ops.Exp()(arg(n, 2, 3, 4)), (1, 2, 3, 4)) for n in "abc"]


def test_parts_are_joined_in_the_order_of_their_reader() -> None:
    g = graph(ops.Transpose((1, 3, 0, 2))(ops.Concat(0)(*PARTS)))
    new = transpose_parts(g)
    (concatenated,) = new.outputs
    assert concatenated.op == ops.Concat(2)
    assert count(new, ops.Transpose) == 3
    same_values(g, new)


def test_parts_with_another_reader_stay() -> None:
    concatenated = ops.Concat(0)(*PARTS)
    g = graph(ops.Transpose((1, 3, 0, 2))(concatenated), ops.Tanh()(concatenated))
    assert transpose_parts(g) is g
