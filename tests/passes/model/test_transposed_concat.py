from __future__ import annotations

from ingot import ops
from ingot.passes.model.transposed_concat import transpose_parts
from tests.passes.check import arg, count, graph, same_values

PARTS = [ops.reshape(ops.Exp()(arg(n, 2, 3, 4)), (1, 2, 3, 4)) for n in "abc"]


def test_parts_are_joined_in_the_order_of_their_reader() -> None:
    g = graph(ops.Transpose((1, 3, 0, 2))(ops.Concat(0)(*PARTS)))
    out = transpose_parts(g)
    (joined,) = out.outputs
    assert joined.op == ops.Concat(2)
    assert count(out, ops.Transpose) == 3
    same_values(g, out)


def test_parts_with_another_reader_stay() -> None:
    joined = ops.Concat(0)(*PARTS)
    g = graph(ops.Transpose((1, 3, 0, 2))(joined), ops.Tanh()(joined))
    assert transpose_parts(g) is g
