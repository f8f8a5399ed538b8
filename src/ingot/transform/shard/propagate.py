"""Sharding propagation: marks on a few tensors spread forward and backward through the graph to every value (GSPMD,
Xu et al. 2021; Shardy).

    w[-, tp] marked:    x w  ->  [.., tp]     relu  ->  [.., tp]     (x w) v  ->  v[tp, -]: a sum of parts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingot import ops
from ingot.ir.dims import exact_quotient
from ingot.ir.node import Const, Graph, Node, Project
from ingot.transform.shard.mesh import Axes, Mesh, Spec, unsplit
from ingot.transform.shard.rules import Dims, Rule, rule


class Propagation:
    """specs: by value, filled by `run`. fixed: specs that never change. requested: initial specs of outputs."""

    def __init__(
        self, graph: Graph, mesh: Mesh, fixed: Mapping[Node, Spec], requested: Mapping[Node, Spec] | None = None,
        ties: Sequence[tuple[Node, Node]] = (), splits_loops: bool = True,
    ) -> None:  # fmt: skip
        """ties: further pairs of values with equal specs. splits_loops: whether loops may run in parts."""
        self._splits_loops = splits_loops
        self._mesh = mesh
        self._uses, self._loops = graph.uses(), dict[tuple[Node, tuple[Spec, ...]], tuple[Spec, ...]]()
        self._nodes = [n for n in graph.nodes() if not isinstance(n.op, Project)]
        self._ties = (*graph.state_pairs, *ties)  # a state's new value is split like the old one
        self._rules = {n: rule(n) for n in self._nodes if n.inputs}
        self._free = _free_dims(self._nodes, self._rules, fixed)
        self.fixed = frozenset(fixed)
        self.specs: dict[Node, Spec] = {**(requested or {}), **fixed}

    def run(self) -> dict[Node, Spec]:
        """Alternate forward and backward sweeps until nothing changes; a dimension that is split once stays so."""
        changed = True
        while changed:
            changed = False
            for nodes in (self._nodes, self._nodes[::-1]):
                for node in nodes:
                    op_rule = self._rules.get(node)
                    if op_rule is not None and self._update(node, op_rule):
                        changed = True
                    if isinstance(node.op, ops.While) and self._splits_loops:
                        changed = self._update_loop(node, node.op) or changed
            for old, new in self._ties:
                changed = self._tie(old, new) or self._tie(new, old) or changed
        return self.specs

    def spec(self, value: Node) -> Spec:
        return self.specs.get(value) or unsplit(len(value.shape))

    def factors(self, node: Node, rule: Rule) -> dict[str, Axes]:
        """The mesh axes that split each factor of a node's rule, from the current specs of its values."""
        return factors(
            rule, [*node.inputs, *node.results], [self.spec(v) for v in (*node.inputs, *node.results)], self._mesh
        )

    def _update(self, node: Node, op_rule: Rule) -> bool:
        values = (*node.inputs, *node.results)
        if all(v not in self.specs for v in values):
            return False
        chosen = self.factors(node, op_rule)
        changed = False
        for value, dims in zip(values, (*op_rule.operands, *op_rule.results), strict=True):
            if value in self.fixed or not any(d in chosen for d in dims):
                continue
            spec, free_dims = list(self.spec(value)), self._free.get(value, ())
            axes_in_use = {axis for axes in spec for axis in axes}
            for i, d in enumerate(dims):
                axes = chosen.get(d, ()) if d is not None else ()
                if axes and i not in free_dims and not spec[i] and axes_in_use.isdisjoint(axes):
                    spec[i] = axes
                    axes_in_use.update(axes)
            if tuple(spec) != self.spec(value):
                self.specs[value] = tuple(spec)
                changed = True
        return changed

    def _update_loop(self, node: Node, op: ops.While) -> bool:
        """Split the carried values of a loop like its operands or results, and as the weights of its body require."""
        pairs = [*zip(node.inputs, node.results, strict=True)]
        carried_specs = tuple(self.spec(x) if any(self.spec(x)) else self.spec(r) for x, r in pairs)
        if (node, carried_specs) not in self._loops:
            self._loops[node, carried_specs] = self._carried(op, carried_specs)
        changed = False
        for spec, values in zip(self._loops[node, carried_specs], pairs, strict=True):
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

    def _carried(self, op: ops.While, initial: Sequence[Spec]) -> tuple[Spec, ...]:
        """The specs of the carried values, chosen so that no op of the body needs more than a device's part, which
        would cost a gather in each iteration."""
        weights = {n: spec for n, spec in self.specs.items() if isinstance(n.op, Const)}
        seeds = dict(zip(op.body.inputs, initial, strict=True))
        fixed = dict[Node, Spec]()
        while True:
            preferred = {n: spec for n, spec in seeds.items() if any(spec) and n not in fixed}
            ties = [
                (x, y) for x, y in zip(op.body.inputs, op.body.results, strict=True) if x is not y and x not in fixed
            ]
            inner = Propagation(op.body, self._mesh, {**weights, **fixed}, preferred, ties)
            inner.run()
            carried = tuple(inner.spec(x) for x in op.body.inputs)
            usable = tuple(inner.used(x) for x in op.body.inputs)
            if usable == carried:
                return carried
            fixed |= {x: u for x, u, c in zip(op.body.inputs, usable, carried, strict=True) if u != c}

    def used(self, value: Node) -> Spec:
        """The spec that all users of a value accept: its own, without splits of dimensions that one needs whole."""
        spec = self.spec(value)
        for n in self._uses.get(value, ()):
            op_rule = self._rules.get(n)
            if isinstance(n.op, ops.While):
                continue
            for i in (i for i, x in enumerate(n.inputs) if x is value):
                chosen = {} if op_rule is None else self.factors(n, op_rule)
                dims = (None,) * len(spec) if op_rule is None else op_rule.operands[i]
                operand_spec = [chosen.get(d, ()) if d is not None else () for d in dims]
                spec = tuple(
                    axes if axes == used_axes else () for axes, used_axes in zip(spec, operand_spec, strict=True)
                )
        return spec

    def _tie(self, source: Node, target: Node) -> bool:
        if target in self.fixed or self.spec(source) == self.spec(target) or any(self.spec(target)):
            return False
        self.specs[target] = self.spec(source)
        return True


def _free_dims(
    nodes: Sequence[Node], rules: Mapping[Node, Rule | None], fixed: Mapping[Node, Spec]
) -> dict[Node, frozenset[int]]:
    """The dimensions along which any part of a value is free to compute: those of constants, of broadcast values, and
    of values computed from these alone. No split is propagated from them, because unrelated values share them: two
    weights of equal shape share the broadcast learning rate."""
    free: dict[Node, frozenset[int]] = {}
    for n in nodes:
        op_rule = rules.get(n)
        if n.constant is not None:
            free[n] = frozenset() if n in fixed else _all_dims(n)
        elif n.inputs and all(not x.shape or free.get(x) == _all_dims(x) for x in n.inputs):
            free.update((r, _all_dims(r)) for r in n.results)
        elif op_rule is not None and len(n.types) == 1:
            operands = zip(n.inputs, op_rule.operands, strict=True)
            determined = {d for x, dims in operands for i, d in enumerate(dims) if i not in free.get(x, ())}
            free[n] = frozenset(i for i, d in enumerate(op_rule.results[0]) if d is not None and d not in determined)
    return free


def _all_dims(value: Node) -> frozenset[int]:
    return frozenset(range(len(value.shape)))


def factors(rule: Rule, values: Sequence[Node], specs: Sequence[Spec], mesh: Mesh) -> dict[str, Axes]:
    """The mesh axes that split each factor of a rule, given the specs of its operands and results in this order. The
    first split dimension of a factor decides, if its axes divide all dimensions of the factor and split no other factor
    of the same value."""
    chosen: dict[str, Axes] = {}
    factors_of_axis: dict[str, list[Dims]] = {}
    sides = [*zip((*rule.operands, *rule.results), values, specs, strict=True)]
    for name, axes in _candidates(sides):
        if name in chosen:
            continue
        # an axis may split two factors only if no value has both
        dims_with_factor = [dims for dims, _, _ in sides if name in dims]
        if any(
            other in dims
            for axis in axes
            for others in factors_of_axis.get(axis, ())
            for other in others
            for dims in dims_with_factor
        ):
            continue
        count = mesh.count(axes)
        if rule.sizes.get(name, count) % count == 0 and all(
            exact_quotient(value.shape[i], count) is not None
            for dims, value, _ in sides
            for i, d in enumerate(dims)
            if d == name
        ):
            chosen[name] = axes
            for axis in axes:
                factors_of_axis.setdefault(axis, []).append((name,))
    return chosen


def _candidates(sides: Sequence[tuple[Dims, Node, Spec]]) -> Iterator[tuple[str, Axes]]:
    for dims, _, spec in sides:
        for d, axes in zip(dims, spec, strict=True):
            if d is not None and axes:
                yield d, axes
