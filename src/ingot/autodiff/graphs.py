"""Graphs prepared for differentiation, and graphs with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import gradients
from ingot.autodiff.rules import RULES
from ingot.autodiff.rules.loops import with_history
from ingot.ir.node import Graph, Input, Node, rebuild
from ingot.ir.rewrite import replace_nodes
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import ShapeError


def differentiable(graph: Graph, keep_products: bool = True) -> Graph:
    """A MODEL graph lowered to ops that have reverse rules, in which loops save the values that their backward pass
    reads. keep_products: also save the results of matrix products, instead of recomputing them."""
    core = lower_model_ops(fuse_attention(graph), frozenset(RULES))
    replacements: dict[Node, Node] = {}
    for n in core.nodes():
        if isinstance(n.op, ops.While) and (with_saved := with_history(n, keep_products)) is not n:
            replacements |= dict(zip(n.results, with_saved.results, strict=False))
    return replace_nodes(core, replacements)


def pullback(function: Callable[[Node], Node], x: Node, cotangent: Node, result: Node | None = None) -> Node:
    """The cotangent of `x` from that of `function(x)`, a MODEL-level computation. result: its value, where it is at
    hand."""
    return pullbacks(function, (x,), cotangent, result)[0]


def pullbacks(
    function: Callable[..., Node], operands: Sequence[Node], cotangent: Node, result: Node | None = None
) -> list[Node]:
    """The cotangent of each operand from that of `function(*operands)`, a MODEL-level computation. result: its value,
    where it is at hand."""
    inputs = tuple(Input(f"pulled back {i}", x.type)() for i, x in enumerate((*operands, cotangent)))
    y = function(*inputs[:-1])
    if y.type != cotangent.type:
        error = ShapeError("a gradient of another type than the result", expected=y.type, got=cotangent.type)
        unequal = ((a, b) for a, b in zip(y.shape, cotangent.shape, strict=False) if a != b)
        raise error.between(next(unequal, None))
    core = differentiable(Graph(inputs, (y,)))
    *variables, seed = core.inputs
    grads = gradients(core.outputs[0], variables, seed)
    forward_values = {} if result is None else {core.outputs[0]: result}
    return list(rebuild(grads, forward_values | dict(zip(core.inputs, (*operands, cotangent), strict=True))))


def value_and_gradients(graph: Graph, loss: Callable[[Sequence[Node]], Node], wrt: Sequence[int]) -> Graph:
    """A graph of the loss and its gradients with respect to the inputs numbered `wrt`, from a MODEL graph.

    loss: computes a scalar from the graph's results. The outputs are named `loss`, then `gradient of NAME`.
    """
    value = loss(graph.results)
    loss_graph = replace(graph, outputs=(value, *graph.outputs[len(graph.results) :]), output_names=("loss",))
    core = differentiable(loss_graph)
    variables = [core.inputs[i] for i in wrt]
    grads = gradients(core.outputs[0], variables)
    names = ("loss", *(f"gradient of {x.op.label}" for x in variables))  # type: ignore[attr-defined]
    return replace(core, outputs=(core.outputs[0], *grads, *core.outputs[1:]), output_names=names)
