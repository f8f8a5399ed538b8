"""Rewrite grouped sums over samples so that the samples can be split.

    x[a, g, n] -> x[a, g n];  convolution, g feature groups      ->      x[g a, n];  convolution, g batch groups

The kernel gradient of a grouped convolution sums over samples. With feature groups, samples are the minor part of a
dimension, so that no split of that dimension splits them, and XLA gathers the batch (XLA#47945).
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Result, Rule, rewrite, rules


def with_batch_groups(graph: Graph) -> Graph:
    return rewrite(graph, rules(Rule("batch-groups", ops.Convolution, _batch_groups)))


def _batch_groups(node: Node) -> Result | None:
    op, (x, kernel) = node.op, node.inputs
    assert isinstance(op, ops.Convolution)
    groups, rank = op.feature_groups, len(x.shape)
    if groups == 1 or op.lhs_layout[:2] != "NC" or not isinstance(x.op, ops.Reshape):
        return None
    (grouped,) = x.inputs
    samples, *spatial = grouped.shape[2:] if len(grouped.shape) == rank + 1 else (None,)
    if samples is None or grouped.shape[:2] != (x.shape[0], groups) or tuple(spatial) != x.shape[2:]:
        return None
    images = ops.Transpose((1, 0, *range(2, rank + 1)))(grouped)
    groups_in_batch = ops.Reshape((groups * x.shape[0], samples, *spatial))(images)
    return replace(op, feature_groups=1, batch_groups=groups)(groups_in_batch, kernel, loc=node.loc)
