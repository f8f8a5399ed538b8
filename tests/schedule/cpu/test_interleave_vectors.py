"""Long chains compute several vectors as one: the same numbers as one vector after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.types import DTYPES
from ingot.ops import build
from ingot.schedule.cpu.interleave_vectors import REGISTERS_PER_VECTOR
from tests.schedule.compiled import MACHINES, compile_graph, inputs_like

N = 5 * 256 + 3  # whole steps of four vectors, whole vectors, a tail


def chain(x: Node) -> Node:
    return build.mul(ops.Tanh()(x), ops.Exp()(build.sub(ops.Logistic()(x), x)))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_chains(dtype: str, machine) -> None:
    rng = np.random.default_rng(0)
    x = (4 * rng.standard_normal((3, N))).astype(DTYPES[dtype].numpy)
    x[0, :5] = np.nan, np.inf, -np.inf, -0.0, np.finfo(np.float16).tiny
    (node,) = inputs_like([x])
    graph = Graph((node,), (chain(node),))
    interleaved, one = (
        compile_graph(graph, machine),
        compile_graph(graph, replace(machine, registers=REGISTERS_PER_VECTOR)),
    )
    assert len(interleaved.program.code["cpu"].blob) > len(one.program.code["cpu"].blob)
    assert np.asarray(interleaved(x)).tobytes() == np.asarray(one(x)).tobytes()
