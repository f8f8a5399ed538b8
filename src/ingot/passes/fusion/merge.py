"""Groups merged into one: what all rules share that decide which to merge.

m = group{a * b};  p = group{m + c}   ->   m, p = group{p0 * p1, that + p2}(a, b, c)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingot.ir.node import Graph, Input, Node, Project, rebuild, topological
from ingot.ir.types import Shape
from ingot.ops import Reduction, reduced_dims
from ingot.ops.group import Group
from ingot.passes.fusion.groups import body_of
from ingot.support.dataclass import dataclass

Box = tuple[Shape, tuple[int, ...]]  # a shape that is reduced, and the reduced dimensions


@dataclass(frozen=True)
class Merge:
    """groups: in topological order, such that no operand of one depends on another through a node that is not among
    them. results: those of their results that the new group has. kind, loc: of the new group."""

    groups: tuple[Node, ...]
    results: tuple[Node, ...]
    kind: str
    loc: str

    @staticmethod
    def of(groups: Iterable[Node], kind: str, loc: str) -> Merge:
        """A merge that keeps all results."""
        groups = tuple(groups)
        return Merge(groups, tuple(r for g in groups for r in g.results), kind, loc)

    @property
    def operands(self) -> list[Node]:
        """The operands of the new group."""
        return list(dict.fromkeys(i for g in self.groups for i in g.inputs if producer_of(i) not in self.groups))

    def build(self, images: Mapping[Node, Node]) -> Node:
        """The new group. images: of its operands."""
        params = {x: Input(f"p{i}", x.type)() for i, x in enumerate(self.operands)}
        values = dict(params)
        for g in self.groups:
            inner = dict(zip(body_of(g).inputs, (values[i] for i in g.inputs), strict=True))
            values |= zip(g.results, rebuild(body_of(g).outputs, inner), strict=True)
        body = Graph(tuple(params.values()), tuple(values[r] for r in self.results))
        return Group(body, self.kind)(*(images[x] for x in params), loc=self.loc)


def merge_groups(graph: Graph, merges: Iterable[Merge]) -> tuple[Graph, dict[Node, Node]]:
    """Return a graph with merged groups, and the image of each node of the old one: of a merged group, the new one."""
    merge_of = {g: merge for merge in merges for g in merge.groups}
    if not merge_of:
        return graph, {}
    images: dict[Node, Node] = {}
    for n in topological(
        (*graph.inputs, *graph.outputs), lambda n: merge_of[n].operands if n in merge_of else n.inputs
    ):
        if n in images:
            continue
        if n in merge_of:
            group = merge_of[n].build(images)
            images |= dict.fromkeys(merge_of[n].groups, group)
            images |= zip(merge_of[n].results, group.results, strict=True)
        else:
            images[n] = n.with_inputs([images[i] for i in n.inputs])
    return graph.with_outputs(images[n] for n in graph.outputs), {n: producer_of(x) for n, x in images.items()}


def producer_of(value: Node) -> Node:
    """The node that computes a value: of one of several results, the node that has them."""
    return value.inputs[0] if isinstance(value.op, Project) else value


def is_group(n: Node, *kinds: str) -> bool:
    return isinstance(n.op, Group) and n.op.kind in kinds


def op_count(groups: Iterable[Node]) -> int:
    """The nodes of the bodies of groups, which a policy limits."""
    return sum(len(body_of(g).nodes()) for g in groups)


def depths(graph: Graph) -> dict[Node, int]:
    """The length of the longest path of operands before each node: nodes of one depth do not depend on each other."""
    depth: dict[Node, int] = {}
    for n in graph.nodes():
        depth[n] = 1 + max((depth[i] for i in n.inputs), default=0)
    return depth


def reductions_of(group: Node) -> list[Node]:
    return [n for n in body_of(group).nodes() if isinstance(n.op, Reduction)]


def boxes_of(group: Node) -> set[Box]:
    """What a group reduces."""
    return {(n.inputs[0].shape, reduced_dims(n)) for n in reductions_of(group)}
