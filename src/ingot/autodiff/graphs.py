"""Whole graphs: made ready to be differentiated, and with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff.reverse import gradients
from ingot.autodiff.rules import RULES
from ingot.autodiff.rules.loops import with_history
from ingot.ir.node import Graph, Input, Node, rebuilt
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.lower import lower_model_ops


def differentiable(graph: Graph, keep_products: bool = True) -> Graph:
    """A MODEL graph in ops that have reverse rules; its loops keep the values that their reverse reads. keep_products:
    those of products, too, which it would compute again: more memory for less time."""
    core = lower_model_ops(fuse_attention(graph), frozenset(RULES))
    by: dict[Node, Node] = {}
    for n in core.nodes():
        if isinstance(n.op, ops.While) and (kept := with_history(n, keep_products)) is not n:
            by |= dict(zip(n.results, kept.results, strict=False))
    return core.replaced(by)


def pullback(of: Callable[[Node], Node], x: Node, cotangent: Node) -> Node:
    """The cotangent of `x` from that of `of(x)`, a MODEL-level computation."""
    return pullbacks(of, (x,), cotangent)[0]


def pullbacks(of: Callable[..., Node], operands: Sequence[Node], cotangent: Node) -> list[Node]:
    """The cotangent of each operand from that of `of(*operands)`, a MODEL-level computation."""
    inside = tuple(Input(f"pulled back {i}", x.type)() for i, x in enumerate((*operands, cotangent)))
    core = differentiable(Graph(inside, (of(*inside[:-1]),)))
    *own, seed = core.inputs
    return list(
        rebuilt(gradients(core.outputs[0], own, seed), dict(zip(core.inputs, (*operands, cotangent), strict=True)))
    )


def value_and_gradients(graph: Graph, loss: Callable[[Sequence[Node]], Node], wrt: Sequence[int]) -> Graph:
    """A graph of the loss and of its gradients by the inputs numbered `wrt`, from a MODEL graph.

    loss: makes a scalar of the graph's results. Names: `loss`, then `gradient of NAME`.
    """
    value = loss(graph.results)
    whole = replace(graph, outputs=(value, *graph.outputs[len(graph.results) :]), output_names=("loss",))
    core = differentiable(whole)
    by = [core.inputs[i] for i in wrt]
    found = gradients(core.outputs[0], by)
    names = ("loss", *(f"gradient of {x.op.label}" for x in by))  # type: ignore[attr-defined]
    return replace(core, outputs=(core.outputs[0], *found, *core.outputs[1:]), output_names=names)
