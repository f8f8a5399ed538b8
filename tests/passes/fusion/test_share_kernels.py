"""Groups that differ in scalar constants share a kernel."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.share_kernels import share_kernels
from ingot.passes.model.lower import lower_model_ops
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg, graph, random_inputs, same_values


def layer(x: Node, scale: float, power: float = 2.0) -> Node:
    """A product, whose epilogue has a constant of its own."""
    y = ops.MatMul()(x, ops.transpose(x, (1, 0)))
    return ops.add(ops.mul(ops.pow(y, power), scale), 1.0)


def shared(g: Graph) -> list[Group]:
    fused = fuse(lower_model_ops(g))
    new = share_kernels(fused)
    same_values(fused, new)
    return [n.op for n in new.nodes() if isinstance(n.op, Group)]


def test_constants_that_differ_become_operands() -> None:
    x, y = arg("x", 7, 7), arg("y", 7, 7)
    g = graph(layer(x, 0.5), layer(y, 0.25))
    groups = shared(g)
    assert groups[0] == groups[1] and len([n for n in groups[0].body.inputs if n.shape == ()]) == 1
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    assert len({s.kernel for s in model.program.steps}) == 1
    inputs = random_inputs(g, {})
    results = model(*inputs)
    assert isinstance(results, tuple)
    for got, want in zip(results, inputs, strict=True):
        square = (want @ want.T).astype(np.float64) ** 2
        scale = 0.5 if want is inputs[0] else 0.25
        np.testing.assert_allclose(got, square * scale + 1, rtol=1e-5)


def test_equal_groups_and_single_ones_keep_their_constants() -> None:
    for g in (graph(layer(arg("x", 7, 7), 0.5)), graph(layer(arg("x", 7, 7), 0.5), layer(arg("y", 7, 7), 0.5))):
        groups = shared(g)
        assert all(n.shape for group in groups for n in group.body.inputs)


def test_constants_that_kernels_look_at_stay() -> None:
    """A square is no general power."""
    groups = shared(graph(layer(arg("x", 7, 7), 0.5, 2.0), layer(arg("y", 7, 7), 0.5, 3.0)))
    assert groups[0] != groups[1] and all(n.shape for group in groups for n in group.body.inputs)


def test_scalars_that_one_group_is_given_and_the_other_knows() -> None:
    """The constants alone are operands, and then all are the same kernel."""
    x, y, z, s = arg("x", 7, 7), arg("y", 7, 7), arg("z", 7, 7), arg("s")
    data = ops.add(ops.mul(ops.MatMul()(x, z), s), 1.0)
    groups = shared(graph(data, layer_of(x, y, 0.5), layer_of(y, x, 0.25)))
    assert len(groups) == 3 and len(set(groups)) == 1


def layer_of(x: Node, y: Node, scale: float) -> Node:
    return ops.add(ops.mul(ops.MatMul()(x, y), scale), 1.0)
