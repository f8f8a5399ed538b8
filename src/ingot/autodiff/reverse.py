"""Gradients of a scalar by the reverse mode: one walk from the loss to what it is differentiated by.

Griewank and Walther, Evaluating Derivatives, 2nd ed., chapter 3. Every MODEL op is lowered first, so that only CORE ops
need rules (`rules/`); what a rule builds is compiled, fused and checked as everything else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff import rules
from ingot.ir.node import Graph, Node, Project, topological
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError


def gradients(loss: Node, wrt: Sequence[Node], seed: Node | None = None) -> list[Node]:
    """d loss / d x for each x of `wrt`, of x's type: over CORE nodes that `loss` is made of.

    seed: the loss's own cotangent; 1 unless given, for which the loss has to be a scalar. What the loss does not depend
    on has a gradient of zeros.

    Raises InputError for a loss that is no scalar or no float and for an x that is no float, UnsupportedOpError naming
    all ops on the way that have no reverse rule.
    """
    if not loss.dtype.is_float or (seed is None and loss.shape):
        raise InputError("loss", expected="a float scalar", got=str(loss.type), fix="reduce it to one number: its mean")
    for x in wrt:
        if not x.dtype.is_float:
            raise InputError("a gradient's variable", expected="floats", got=str(x.type), fix="leave integers out")
    order = topological([loss])
    depends = _dependents(order, wrt)
    on_the_way = [n for n in order if n in depends and n not in wrt and not isinstance(n.op, Project)]
    missing = [
        UnsupportedOp(n.op.name, n.loc or "the graph", "no reverse rule")
        for n in on_the_way
        if type(n.op) not in rules.RULES
    ]
    if missing:
        raise UnsupportedOpError(missing, model="the gradient")
    found: dict[Node, list[Node | None]] = {}
    found[loss] = [ops.scalar(1, loss.dtype) if seed is None else seed]
    for node in reversed(order):
        cotangents = found.get(node)
        if cotangents is None or node not in depends or node in wrt:
            continue
        if isinstance(node.op, Project):
            (source,) = node.inputs
            _accumulate(found, source, node.op.index, cotangents[0])
            continue
        for operand, g in zip(node.inputs, rules.RULES[type(node.op)](node, cotangents), strict=True):
            if g is not None and operand in depends:
                _accumulate(found, operand, 0, g)
    out: list[Node] = []
    for x in wrt:
        (g,) = found.get(x) or [None]
        out.append(ops.full(x.shape, 0, x.dtype) if g is None else g)
    return out


def _dependents(order: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    found = set(wrt)
    for node in order:
        if not found.isdisjoint(node.inputs):
            found.add(node)
    return found


def _accumulate(found: dict[Node, list[Node | None]], node: Node, index: int, g: Node | None) -> None:
    if g is None:
        return
    cotangents = found.setdefault(node, [None] * len(node.types))
    before = cotangents[index]
    cotangents[index] = g if before is None else ops.Add()(before, g)


def value_and_gradients(graph: Graph, loss: Callable[[Sequence[Node]], Node], wrt: Sequence[int]) -> Graph:
    """A graph of the loss and of its gradients by the inputs numbered `wrt`, from a MODEL graph.

    loss: makes a scalar of the graph's results. Names: `loss`, then `gradient of NAME`.
    """
    value = loss(graph.results)
    whole = replace(graph, outputs=(value, *graph.outputs[len(graph.results) :]), output_names=("loss",))
    core = lower_model_ops(whole)
    by = [core.inputs[i] for i in wrt]
    found = gradients(core.outputs[0], by)
    names = ("loss", *(f"gradient of {x.op.label}" for x in by))  # type: ignore[attr-defined]
    return replace(core, outputs=(core.outputs[0], *found, *core.outputs[1:]), output_names=names)
