"""Values that are written over others: which may be, and what has to be made before.

    y = relu(x)                                      ->   y lies over x, where nothing reads x afterwards
    new = scatter(old, i, rows); a = attention(new)  ->   the rows are written into old's memory, and read there

What lasts from run to run (`Graph.lasting`), and what a loop hands to its next turn, is written over the old value
where all that reads this can come before. Where that cannot be proven, the new value has memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from ingot import ops
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, Project
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, label, same_element
from ingot.ops.views import base_of, pull_back, strided
from ingot.support.dataclass import dataclass

Pairs = Sequence[tuple[Node, Node]]  # inputs, and what is to lie in their memory behind a run


@dataclass
class InPlace:
    """over: the input in whose memory a value is written. copied: why a new value of an input has memory of its own.
    before: what has to be made before a node, and for which input's sake."""

    over: dict[Node, Node] = field(default_factory=dict)
    copied: dict[Node, str] = field(default_factory=dict)
    before: dict[Node, dict[Node, Node]] = field(default_factory=dict)


def in_place(graph: Graph, pairs: Pairs) -> InPlace:
    """Where the second of each pair lies over the first, an input, and all that this takes."""
    found, users = InPlace(), graph.uses()
    for old, new in pairs:
        chain = [] if new is old else _chain(graph, users, old, new)
        problem = _problem(graph, found, users, old, chain)
        if problem:
            found.copied[old] = problem
            continue
        found.over |= dict.fromkeys(chain, old)
        for held, value in zip([old, *chain], chain, strict=False):
            maker = maker_of(value)
            readers = [u for u in users.get(held, ()) if u is not maker]
            found.before.setdefault(maker, {}).update(dict.fromkeys(readers, old))
        if chain and graph.found:
            # a size beyond its bounds ends the run: what lasts is then as it was
            found.before[maker_of(chain[0])] |= dict.fromkeys(graph.found.values(), old)
    while blocked := _blocked(graph, found.before):
        for old in blocked:
            found.copied[old] = "what reads the old value, or tells a size, needs the new one"
        found.over = {n: old for n, old in found.over.items() if old not in blocked}
        for node, needs in found.before.items():
            found.before[node] = {n: old for n, old in needs.items() if old not in blocked}
    return found


def maker_of(value: Node) -> Node:
    """The node that computes a value."""
    return value.inputs[0] if isinstance(value.op, Project) else value


def overwrites(value: Node, held: Node, layouts: Mapping[Node, Layout]) -> bool:
    """Whether a group's result may be written over an operand, as far as the group reads it. layouts: of both."""
    group = maker_of(value)
    op = group.op
    if not isinstance(op, Group) or value.type != held.type or group.inputs.count(held) != 1:
        return False
    if layouts[held] != layouts[value]:
        return False
    p, result = op.body.inputs[group.inputs.index(held)], op.body.outputs[group.results.index(value)]
    if op.kind == "pointwise":
        reshaped = any(isinstance(n.op, ops.Reshape) for n in op.body.nodes())
        # what the new value needs has been read when it is written, for the other results as well
        return same_element(op.body, p, result) and (layouts[held].is_contiguous or not reshaped)
    return updated(group) is held and _updates(op.body, p, layouts[held])


def updated(group: Node) -> Node | None:
    """The operand that a group updates: its result is that, but for some elements."""
    op = group.op
    anchor = _anchor(op.body) if isinstance(op, Group) and op.kind == "scatter" else None
    if anchor is None:
        return None
    source = strided(anchor.inputs[0], {})
    if source is None or source[0] not in op.body.inputs:  # type: ignore[union-attr]
        return None
    return group.inputs[op.body.inputs.index(source[0])]  # type: ignore[union-attr]


def _anchor(body: Graph) -> Node | None:
    return next((n for n in body.nodes() if category(n.op) is Category.SCATTER), None)


def _updates(body: Graph, p: Node, layout: Layout) -> bool:
    """Whether `p` is read as what is updated alone, and each element of it lies where the result has it."""
    anchor = _anchor(body)
    assert anchor is not None
    source = strided(anchor.inputs[0], {p: layout})
    target = pull_back(body.outputs[0], anchor, layout)
    if source is None or target is None or source[1] != target:
        return False
    return all(base_of(i) is not p for i in anchor.inputs[1:]) and sum(p in n.inputs for n in body.nodes()) == 1


def _contiguous(*values: Node) -> dict[Node, Layout]:
    return {v: Layout.contiguous(v.shape) for v in values}


def _chain(graph: Graph, users: Mapping[Node, Sequence[Node]], old: Node, new: Node) -> list[Node]:
    """What lies in the memory of `old` one behind the other, `new` at last: values that updates change."""
    chain = [new]
    while True:
        group = maker_of(chain[-1])
        held = updated(group)
        if held is None or held is old or held in graph.outputs or not isinstance(maker_of(held).op, Group):
            break
        if not overwrites(chain[-1], held, _contiguous(held, chain[-1])):
            break
        chain.append(held)
    return chain[::-1]


def _problem(graph: Graph, found: InPlace, users: Mapping[Node, Sequence[Node]], old: Node, chain: list[Node]) -> str:
    """Why a chain of values cannot lie over an input, whatever the order; "" where it can."""
    if any(v in found.over or not isinstance(maker_of(v).op, Group) for v in chain):
        return "another's new value is the same"
    if chain and old in graph.outputs:
        return "the old value is a result"
    earlier = [old, *chain]
    for i, value in enumerate(chain):
        group = maker_of(value)
        for held in earlier[: i + 1]:
            if held in group.inputs and not (held is earlier[i] and overwrites(value, held, _contiguous(held, value))):
                own = isinstance(group.op, Group) and group.op.kind in ("pointwise", "scatter")
                which = "other elements of the old value than it writes" if own else "the old value in loops of its own"
                return f"{label(group)} reads {which}"
    return ""


def _blocked(graph: Graph, before: Mapping[Node, Mapping[Node, Node]]) -> set[Node]:
    """Inputs for whose sake nodes would have to be made both before and behind others: one or more of each circle."""
    if not before:
        return set()
    blocked: set[Node] = set()
    done: set[Node] = set()
    path: dict[Node, Node | None] = {}  # the nodes that are open, and for whose sake

    def needs(n: Node) -> Iterator[tuple[Node, Node | None]]:
        yield from ((i, None) for i in n.inputs)
        yield from before.get(n, {}).items()

    for root in graph.outputs:
        stack: list[tuple[Node, Iterator[tuple[Node, Node | None]]]] = []
        if root not in done:
            path[root] = None
            stack.append((root, needs(root)))
        while stack:
            node, left = stack[-1]
            step = next(((n, s) for n, s in left if n not in done and s not in blocked), None)
            if step is None:
                done.add(node)
                del path[node]
                stack.pop()
            elif step[0] not in path:
                path[step[0]] = step[1]
                stack.append((step[0], needs(step[0])))
            else:
                opened = list(path)
                circle = [step[1], *(path[n] for n in opened[opened.index(step[0]) + 1 :])]
                blocked.add(next(s for s in circle if s is not None))
    return blocked


__all__ = ["InPlace", "Pairs", "in_place", "maker_of", "overwrites", "updated"]
