"""Dead code elimination in the bodies of ops; a graph itself only has the nodes that its outputs need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot import ops
from ingot.ir.node import Graph, Node, Project, rebuild, topological

ResultsRead = dict[Node, set[int]]


def dce(graph: Graph) -> Graph:
    """group(x, y){return a(x), b(y)}.0 -> group(x){return a(x)}        likewise while and case

    Unused results of groups, cases and loops are removed with the values that only they need, and so are operands that
    no body reads. Inputs of the graph stay, used or not.
    """
    while True:
        pruned = _prune(graph)
        if pruned is graph:
            return graph
        graph = pruned


def _prune(graph: Graph) -> Graph:
    reads: ResultsRead = {}
    for n in graph.nodes():
        if isinstance(n.op, Project):
            reads.setdefault(n.inputs[0], set()).add(n.op.index)
    # node -> old result index -> new node
    renamed: dict[Node, dict[int, Node]] = {}

    def pruned(n: Node, inputs: Sequence[Node]) -> Node:
        if isinstance(n.op, Project) and n.inputs[0] in renamed:
            return renamed[n.inputs[0]][n.op.index]
        if not n.op.bodies:
            return n.with_inputs(inputs)
        op = n.op.map_bodies(dce)
        base = n.with_inputs(inputs) if op is n.op else op(*inputs, loc=n.loc)
        live = reads.get(n, set()) if len(n.types) > 1 else {0}
        smaller = next((fn(base, live) for cls, fn in _PRUNERS if isinstance(n.op, cls)), None)
        if smaller is None:
            return base
        new, positions = smaller
        if len(n.types) == 1:
            return new.results[positions[0]]
        renamed[n] = {old: new.results[index] for old, index in positions.items()}
        return base

    return graph.with_outputs(rebuild(graph.outputs, rule=pruned))


Pruned = tuple[Node, dict[int, int]] | None


def _select(body: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    names = tuple(body.output_names[i] for i in outputs) if body.output_names else ()
    selected_inputs, selected_outputs = tuple(body.inputs[i] for i in inputs), tuple(body.outputs[i] for i in outputs)
    return replace(
        body, inputs=selected_inputs, outputs=(*selected_outputs, *body.size_nodes.values()), output_names=names
    )


def _needs(body: Graph, outputs: Sequence[int]) -> set[int]:
    """The indices of the inputs on which these outputs of `body` depend."""
    nodes = set(topological((*(body.outputs[i] for i in outputs), *body.size_nodes.values())))
    return {index for index, n in enumerate(body.inputs) if n in nodes}


def _group(n: Node, live_results: set[int]) -> Pruned:
    assert isinstance(n.op, ops.Group)
    body = n.op.body
    outputs = sorted(live_results)
    inputs = sorted(_needs(body, outputs))
    if len(outputs) == len(body.outputs) and len(inputs) == len(body.inputs):
        return None
    new = ops.Group(_select(body, inputs, outputs), n.op.kind)(*(n.inputs[i] for i in inputs), loc=n.loc)
    return new, {old: at for at, old in enumerate(outputs)}


def _case(n: Node, live_results: set[int]) -> Pruned:
    assert isinstance(n.op, ops.Case)
    branches = n.op.branches
    outputs = sorted(live_results)
    inputs = sorted(set().union(*(_needs(b, outputs) for b in branches)))
    if len(outputs) == len(branches[0].results) and len(inputs) == len(branches[0].inputs):
        return None
    op = ops.Case(tuple(_select(b, inputs, outputs) for b in branches))
    return op(n.inputs[0], *(n.inputs[1 + i] for i in inputs), loc=n.loc), {old: at for at, old in enumerate(outputs)}


def _while(n: Node, live_results: set[int]) -> Pruned:
    assert isinstance(n.op, ops.While)
    cond, body = n.op.cond, n.op.body
    live = live_results | _needs(cond, [0])
    while True:
        new_live = live | _needs(body, sorted(live))
        if new_live == live:
            break
        live = new_live
    if len(live) == len(body.inputs):
        return None
    positions = sorted(live)
    # values of the condition are kept even if the loop does not change them
    op = ops.While(_select(cond, positions, [0]), _select(body, positions, positions))
    return op(*(n.inputs[i] for i in positions), loc=n.loc), {old: at for at, old in enumerate(positions)}


_PRUNERS: tuple[tuple[type, Callable[[Node, set[int]], Pruned]], ...] = (
    (ops.Group, _group),
    (ops.Case, _case),
    (ops.While, _while),
)
