"""The passes together on a transformer block with symbolic sizes and a small conv net."""

from __future__ import annotations

import numpy as np

from benchmarks.ir_passes import model
from ingot import ops
from ingot.ir.node import Graph, const
from ingot.passes.core.dce import dce
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, same_values


def tidy(g: Graph) -> Graph:
    return dce(fold_constants(simplify(fold_constants(lower_model_ops(fold_batch_norm(g))))))


def test_transformer_block() -> None:
    g = model(1)
    tidied = tidy(g)
    assert count(tidied, ops.Div) <= count(lower_model_ops(g), ops.Div)
    same_values(g, tidied, 2e-5, batch=2, seq=7)
    assert simplify(tidied) is tidied
    assert fold_constants(tidied) is tidied


def test_conv_net() -> None:
    r = np.random.default_rng(1)
    y = arg("image", 2, 3, 9, 9)
    for c in (3, 4):
        w = const(r.standard_normal((4, c, 3, 3)).astype(np.float32))
        p = [const(r.uniform(0.1, 1, 4).astype(np.float32)) for _ in range(4)]
        y = ops.Relu()(ops.BatchNorm(1e-5)(ops.Conv((2, 2), ((1, 1), (1, 1)), (1, 1))(y, w), *p))
    g = graph(ops.Softmax(1)(ops.flatten(y, 1)))
    tidied = tidy(g)
    assert count(tidied, ops.Rsqrt) == 0
    assert count(tidied, ops.Mul) == 1  # softmax's
    same_values(g, tidied, 1e-5)
