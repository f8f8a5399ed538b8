"""Propagation: from the marks on a few tensors to a split of every value, forward and backward through the graph
(GSPMD, Xu et al. 2021; Shardy).

    w[-, tp] marked:    x w  ->  [.., tp]     relu  ->  [.., tp]     (x w) v  ->  v[tp, -]: a sum of parts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingot import ops
from ingot.ir.dims import exact_quotient
from ingot.ir.node import Const, Graph, Node, Project
from ingot.transform.shard.mesh import Axes, Mesh, Spec, whole
from ingot.transform.shard.rules import Dims, Rule, rule


class Propagation:
    """specs: of each value, filled by `run`. Those in `fixed` stay as they are; `wanted` are what outputs become."""

    def __init__(
        self, graph: Graph, mesh: Mesh, fixed: Mapping[Node, Spec], wanted: Mapping[Node, Spec] | None = None,
        ties: Sequence[tuple[Node, Node]] = (), splits_loops: bool = True,
    ) -> None:  # fmt: skip
        """ties: further pairs of values that are split alike. splits_loops: whether loops may run in parts."""
        self._splits_loops = splits_loops
        self._mesh = mesh
        self._uses, self._loops = graph.uses(), dict[tuple[Node, tuple[Spec, ...]], tuple[Spec, ...]]()
        self._nodes = [n for n in graph.nodes() if not isinstance(n.op, Project)]
        self._ties = (*graph.state_pairs, *ties)  # a state's new value is split like the old one
        self._rules = {n: rule(n) for n in self._nodes if n.inputs}
        self._free = _free_dims(self._nodes, self._rules, fixed)
        self.fixed = frozenset(fixed)
        self.specs: dict[Node, Spec] = {**(wanted or {}), **fixed}

    def run(self) -> dict[Node, Spec]:
        """Forward and backward in turns until nothing changes; what comes first stays."""
        changed = True
        while changed:
            changed = False
            for nodes in (self._nodes, self._nodes[::-1]):
                for node in nodes:
                    found = self._rules.get(node)
                    if found is not None and self._update(node, found):
                        changed = True
                    if isinstance(node.op, ops.While) and self._splits_loops:
                        changed = self._update_loop(node, node.op) or changed
            for old, new in self._ties:
                changed = self._tie(old, new) or self._tie(new, old) or changed
        return self.specs

    def spec(self, value: Node) -> Spec:
        return self.specs.get(value) or whole(len(value.shape))

    def factors(self, node: Node, found: Rule) -> dict[str, Axes]:
        """The mesh axes that split each factor of a node's rule, by what its values say so far."""
        return factors(
            found, [*node.inputs, *node.results], [self.spec(v) for v in (*node.inputs, *node.results)], self._mesh
        )

    def _update(self, node: Node, found: Rule) -> bool:
        values = (*node.inputs, *node.results)
        if all(v not in self.specs for v in values):
            return False
        chosen = self.factors(node, found)
        changed = False
        for value, dims in zip(values, (*found.operands, *found.results), strict=True):
            if value in self.fixed or not any(d in chosen for d in dims):
                continue
            spec, free = list(self.spec(value)), self._free.get(value, ())
            used = {axis for axes in spec for axis in axes}
            for i, d in enumerate(dims):
                axes = chosen.get(d, ()) if d is not None else ()
                if axes and i not in free and not spec[i] and used.isdisjoint(axes):
                    spec[i] = axes
                    used.update(axes)
            if tuple(spec) != self.spec(value):
                self.specs[value] = tuple(spec)
                changed = True
        return changed

    def _update_loop(self, node: Node, op: ops.While) -> bool:
        """What a loop carries is split as its operands or results are, and as its body's weights ask for."""
        pairs = [*zip(node.inputs, node.results, strict=True)]
        known = tuple(self.spec(x) if any(self.spec(x)) else self.spec(r) for x, r in pairs)
        if (node, known) not in self._loops:
            self._loops[node, known] = self._carried(op, known)
        changed = False
        for spec, values in zip(self._loops[node, known], pairs, strict=True):
            for v in values:
                if (
                    v not in self.fixed
                    and not isinstance(v.op, Const)
                    and self.spec(v) != spec
                    and not any(self.spec(v))
                ):
                    self.specs[v] = spec
                    changed = True
        return changed

    def _carried(self, op: ops.While, known: Sequence[Spec]) -> tuple[Spec, ...]:
        """The specs in which the loop carries its values: no op of the body needs more of a value than its part, as it
        would be gathered in each turn."""
        weights = {n: spec for n, spec in self.specs.items() if isinstance(n.op, Const)}
        seeds = dict(zip(op.body.inputs, known, strict=True))
        fixed = dict[Node, Spec]()
        while True:
            wanted = {n: spec for n, spec in seeds.items() if any(spec) and n not in fixed}
            ties = [
                (x, y) for x, y in zip(op.body.inputs, op.body.results, strict=True) if x is not y and x not in fixed
            ]
            inner = Propagation(op.body, self._mesh, {**weights, **fixed}, wanted, ties)
            inner.run()
            carried = tuple(inner.spec(x) for x in op.body.inputs)
            used = tuple(inner.used(x) for x in op.body.inputs)
            if used == carried:
                return carried
            fixed |= {x: u for x, u, c in zip(op.body.inputs, used, carried, strict=True) if u != c}

    def used(self, value: Node) -> Spec:
        """What all ops that read the value take of it: its spec, without what one of them needs whole."""
        spec = self.spec(value)
        for n in self._uses.get(value, ()):
            found = self._rules.get(n)
            if isinstance(n.op, ops.While):
                continue
            for i in (i for i, x in enumerate(n.inputs) if x is value):
                chosen = {} if found is None else self.factors(n, found)
                dims = (None,) * len(spec) if found is None else found.operands[i]
                own = [chosen.get(d, ()) if d is not None else () for d in dims]
                spec = tuple(axes if axes == taken else () for axes, taken in zip(spec, own, strict=True))
        return spec

    def _tie(self, source: Node, target: Node) -> bool:
        if target in self.fixed or self.spec(source) == self.spec(target) or any(self.spec(target)):
            return False
        self.specs[target] = self.spec(source)
        return True


def _free_dims(
    nodes: Sequence[Node], rules: Mapping[Node, Rule | None], fixed: Mapping[Node, Spec]
) -> dict[Node, frozenset[int]]:
    """The dimensions along which any part of a value costs nothing: of constants, of repeated values, and of what is
    computed from such alone. No split is derived from them, as values that have nothing to do with each other share
    them: two weights of one shape the same broadcast learning rate."""
    free: dict[Node, frozenset[int]] = {}
    for n in nodes:
        found = rules.get(n)
        if n.constant is not None:
            free[n] = frozenset() if n in fixed else _all_dims(n)
        elif n.inputs and all(not x.shape or free.get(x) == _all_dims(x) for x in n.inputs):
            free.update((r, _all_dims(r)) for r in n.results)
        elif found is not None and len(n.types) == 1:
            operands = zip(n.inputs, found.operands, strict=True)
            bound = {d for x, dims in operands for i, d in enumerate(dims) if i not in free.get(x, ())}
            free[n] = frozenset(i for i, d in enumerate(found.results[0]) if d is not None and d not in bound)
    return free


def _all_dims(value: Node) -> frozenset[int]:
    return frozenset(range(len(value.shape)))


def factors(found: Rule, values: Sequence[Node], specs: Sequence[Spec], mesh: Mesh) -> dict[str, Axes]:
    """The mesh axes that split each factor of a rule, for the specs of its operands and results in this order: those of
    the first dimension of the factor that is split, if they divide all of its dimensions and split no other factor."""
    chosen: dict[str, Axes] = {}
    used: dict[str, list[Dims]] = {}
    sides = [*zip((*found.operands, *found.results), values, specs, strict=True)]
    for name, axes in _candidates(sides):
        if name in chosen:
            continue
        # an axis may split two factors only if no value has both
        holders = [dims for dims, _, _ in sides if name in dims]
        if any(other in dims for axis in axes for others in used.get(axis, ()) for other in others for dims in holders):
            continue
        count = mesh.count(axes)
        if found.sizes.get(name, count) % count == 0 and all(
            exact_quotient(value.shape[i], count) is not None
            for dims, value, _ in sides
            for i, d in enumerate(dims)
            if d == name
        ):
            chosen[name] = axes
            for axis in axes:
                used.setdefault(axis, []).append((name,))
    return chosen


def _candidates(sides: Sequence[tuple[Dims, Node, Spec]]) -> Iterator[tuple[str, Axes]]:
    for dims, _, spec in sides:
        for d, axes in zip(dims, spec, strict=True):
            if d is not None and axes:
                yield d, axes
