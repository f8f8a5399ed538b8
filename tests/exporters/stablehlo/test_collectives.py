"""Collectives of several devices, written and read again."""

from __future__ import annotations

import pytest

from ingot import ops
from ingot.exporters.stablehlo import emit
from ingot.frontends.stablehlo import import_stablehlo
from ingot.frontends.stablehlo.printer import show
from ingot.ir.node import Graph, Input
from ingot.ir.show import show as show_graph
from ingot.ir.types import TensorType, dtype_of
from ingot.ops.core.collective import Collective
from ingot.support.errors import UnsupportedOpError

OPS = (ops.AllReduce, ops.AllGather, ops.ReduceScatter, ops.AllToAll, ops.Permute)


@pytest.mark.parametrize("groups", [((0, 1),), ((0, 1), (2, 3)), ((0, 2, 1, 3),)], ids=str)
@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_what_is_written_is_read_as_the_same(cls: type[Collective], groups: tuple[tuple[int, ...], ...]) -> None:
    for op, (array,) in cls.group_samples(groups):
        x = Input("x0", TensorType(dtype_of(array), array.shape))()
        (read,) = import_stablehlo(show(emit(Graph((x,), (op(x),))).module)).graph.outputs
        if isinstance(op, ops.Permute) and op.shift < 0:  # the rings the other way around
            assert isinstance(read.op, ops.Permute) and read.op.size == op.size
            sent = [{g[i - 1]: g[i] for g in read.op.groups for i in range(op.size)}]
            sent += [{g[i]: g[i - 1] for g in op.groups for i in range(op.size)}]
            assert sent[0] == sent[1]
        else:
            assert show_graph(Graph(read.inputs, (read,))) == show_graph(Graph(read.inputs, (op(*read.inputs),)))


CALL = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "stablehlo.{name}"(%x) {{{attributes}}} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("collective_permute", "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>"),
        ("collective_permute", "source_target_pairs = dense<[[0, 0], [1, 2], [2, 1]]> : tensor<3x2xi64>"),
        ("collective_broadcast", "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"),
        ("all_gather", "replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>, all_gather_dim = 0 : i64"),
    ],
)
def test_other_exchanges_are_refused(name: str, attributes: str) -> None:
    with pytest.raises(UnsupportedOpError):
        import_stablehlo(CALL.format(name=name, attributes=attributes))
