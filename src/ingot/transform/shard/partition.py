"""Partitioning: the program of one device, with collectives where its ops need the parts of other devices.

    x[b, k] w[k/2, n]   on each of 2 devices:   x[:, own half] w[k/2, n] -> partial sums -> all_reduce

Partial sums pass through linear ops unreduced and are reduced once, where an op needs the whole value: by a
reduce_scatter if the value is split over the same devices there, else by an all_reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from ingot import ops
from ingot.ir.array import Array
from ingot.ir.dims import DimLike, exact_quotient
from ingot.ir.node import Const, Graph, Input, Node, Project
from ingot.ir.types import Shape
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, InputError
from ingot.transform.shard.combine import combine_sums
from ingot.transform.shard.mesh import Axes, Mesh, Spec, axes_in, show_spec, unsplit
from ingot.transform.shard.propagate import Propagation, factors
from ingot.transform.shard.rules import Rule, rule

Partial = frozenset[str]  # mesh axes over whose devices a value is still to be summed
_NO_AXES: Partial = frozenset()


@dataclass(frozen=True)
class Sharded:
    """The decisions for splitting a graph. specs: those of values that are not whole. outputs: those of the outputs.
    partial: the axes over which each value is a partial sum. factor_axes: the axes that split the factors of each op's
    rule."""

    graph: Graph
    mesh: Mesh
    specs: Mapping[Node, Spec]
    outputs: tuple[Spec, ...]
    partial: Mapping[Node, Partial]
    factor_axes: Mapping[Node, Mapping[str, Axes]]
    loops: Mapping[Node, tuple[Sharded, Sharded]] = field(default_factory=dict[Node, "tuple[Sharded, Sharded]"])


def plan(
    graph: Graph, mesh: Mesh, specs: Mapping[Node, Spec], outputs: Sequence[Spec], splits_loops: bool = True
) -> Sharded:
    """Decide which values remain partial sums. outputs: the specs of all outputs. splits_loops: see `shard`."""
    nodes = [n for n in graph.nodes() if not isinstance(n.op, Project)]
    rules = {n: rule(n) for n in nodes if n.inputs}
    chosen: dict[Node, dict[str, Axes]] = {}
    for n, op_rule in rules.items():
        if op_rule is not None:
            values = (*n.inputs, *n.results)
            chosen[n] = factors(op_rule, values, [specs.get(v) or unsplit(len(v.shape)) for v in values], mesh)
    reduced: set[Node] = set()
    while True:
        partial = _partial(nodes, rules, chosen, reduced)
        unsupported = _values_to_gather(graph, nodes, rules, chosen, partial)
        if not unsupported:
            loop_nodes = [n for n in nodes if splits_loops and isinstance(n.op, ops.While)]
            loops = {n: _plan_loop(n, mesh, specs) for n in loop_nodes}
            return Sharded(graph, mesh, specs, tuple(outputs), partial, chosen, loops)
        reduced |= unsupported


def _plan_loop(node: Node, mesh: Mesh, specs: Mapping[Node, Spec]) -> tuple[Sharded, Sharded]:
    """The plans of a loop's condition and body. The carried values are split like the loop's results."""
    op = node.op
    assert isinstance(op, ops.While)
    carried = [specs.get(r) or unsplit(len(r.shape)) for r in node.results]
    weights = {n: spec for n, spec in specs.items() if isinstance(n.op, Const)}

    def planned(graph: Graph, outputs: Sequence[Spec]) -> Sharded:
        fixed = weights | dict(zip(graph.inputs, carried, strict=True))
        propagated = Propagation(graph, mesh, fixed, dict(zip(graph.results, outputs, strict=True))).run()
        rest_specs = [unsplit(len(n.shape)) for n in graph.outputs[len(graph.results) :]]
        return plan(graph, mesh, propagated, [*outputs, *rest_specs])

    return planned(op.cond, [unsplit(0)]), planned(op.body, carried)


def _reduced_axes(op_rule: Rule, chosen: Mapping[str, Axes]) -> Partial:
    return frozenset(axis for name, kind in op_rule.sums.items() if kind == "sum" for axis in chosen.get(name, ()))


def _partial(
    nodes: Sequence[Node], rules: Mapping[Node, Rule | None], chosen: Mapping[Node, Mapping[str, Axes]],
    reduced: set[Node],
) -> dict[Node, Partial]:  # fmt: skip
    """The axes over which each value is a partial sum, if the values in `reduced` are not."""
    partial: dict[Node, Partial] = {}
    for n in nodes:
        op_rule = rules.get(n)
        if op_rule is None or len(n.types) != 1 or n in reduced:
            continue
        axes = _reduced_axes(op_rule, chosen[n]) | _passed_axes(n, op_rule, chosen[n], partial)
        if axes:
            partial[n] = axes
    return partial


def _passed_axes(node: Node, op_rule: Rule, chosen: Mapping[str, Axes], partial: Mapping[Node, Partial]) -> Partial:
    """The axes over which the result is a partial sum because operands are; none if an operand has to be reduced."""
    partial_axes = [partial.get(x, _NO_AXES) for x in node.inputs]
    partial_operands = [i for i, g in enumerate(partial_axes) if g]
    if not partial_operands:
        return _NO_AXES
    axes = partial_axes[partial_operands[0]]
    if any(not axes.isdisjoint(split) for split in chosen.values()):
        return _NO_AXES
    if -1 in op_rule.linear:
        return axes if all(g == axes for g in partial_axes) else _NO_AXES
    return axes if len(partial_operands) == 1 and partial_operands[0] in op_rule.linear else _NO_AXES


def _values_to_gather(
    graph: Graph, nodes: Sequence[Node], rules: Mapping[Node, Rule | None],
    chosen: Mapping[Node, Mapping[str, Axes]], partial: Mapping[Node, Partial],
) -> set[Node]:  # fmt: skip
    """Partial sums that a user or an output needs whole, and those with several users, each of which would have to
    reduce its own result."""
    readers: dict[Node, int] = {}
    for n in nodes:
        for x in {*n.inputs}:
            readers[x] = readers.get(x, 0) + 1
    needed_whole = {n for n in partial if readers.get(n, 0) > 1} | {n for n in graph.outputs if n in partial}
    for n in nodes:
        partial_operands = [x for x in n.inputs if x in partial]
        op_rule = rules.get(n)
        if partial_operands and (op_rule is None or not _passed_axes(n, op_rule, chosen[n], partial)):
            needed_whole.update(partial_operands)
    return needed_whole


class _Partitioner:
    def __init__(self, sharded: Sharded, rank: int) -> None:
        self.sharded, self.mesh, self.rank = sharded, sharded.mesh, rank
        self.values: dict[tuple[Node, Spec], Node] = {}  # the device's part of a value
        self.computed_specs: dict[Node, Spec] = {}  # the spec in which each value was computed

    def run(self) -> Graph:
        graph = self.sharded.graph
        inputs = [self._input(n) for n in graph.inputs]
        for n in graph.nodes():
            if not isinstance(n.op, Input | Project | Const):
                self._compute(n)
        outputs = [self.part(n, spec) for n, spec in zip(graph.outputs, self.sharded.outputs, strict=True)]
        return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs))

    def spec(self, value: Node) -> Spec:
        return self.sharded.specs.get(value) or unsplit(len(value.shape))

    def local_shape(self, value: Node, spec: Spec) -> Shape:
        """The shape of a device's part. Raises InputError if the parts are not equal."""
        return tuple(self._divided(d, axes, value) for d, axes in zip(value.shape, spec, strict=True))

    def _divided(self, size: DimLike, axes: Axes, value: Node) -> DimLike:
        part = exact_quotient(size, self.mesh.count(axes)) if axes else size
        if part is None:
            name = value.op.label if isinstance(value.op, Input) else value.loc or value.op.name
            raise InputError(f"shard of {name}", expected=f"a multiple of {self.mesh.count(axes)}", got=f"size {size}")
        return part

    def _input(self, node: Node) -> Node:
        op, spec = node.op, self.spec(node)
        assert isinstance(op, Input)
        shape = self.local_shape(node, spec)
        if op.elements and spec != unsplit(len(spec)):
            raise InputError(f"shard of {op.label}", expected="a whole tensor: its values are sizes", got="a mark")
        local = replace(op, type=op.type.with_shape(shape))(loc=node.loc)
        self.values[node, spec], self.computed_specs[node] = local, spec
        return local

    # --- values in other specs

    def part(self, value: Node, want: Spec) -> Node:
        """The device's part of a value, in the spec `want`."""
        if isinstance(value.op, Const):
            return self._constant(value, want)
        local = self.values.get((value, want))
        if local is None:
            computed_spec = self.computed_specs[value]
            local = self.values[value, want] = self._with_spec(
                self.values[value, computed_spec], value, computed_spec, want
            )
        return local

    def _constant(self, value: Node, want: Spec) -> Node:
        local = self.values.get((value, want))
        if local is None:
            assert isinstance(value.op, Const)
            local = self.values[value, want] = const_part(value.op.array, want, self.mesh, self.rank, value.loc)
        return local

    def _with_spec(self, x: Node, value: Node, source: Spec, target_spec: Spec) -> Node:
        """The part in another spec: all_to_all where the axes move to another dimension, all_gather where axes no
        longer split a dimension, a slice where axes newly split one."""
        spec = list(source)
        for d, (axes, target_axes) in enumerate(zip(source, target_spec, strict=True)):
            if axes == target_axes or not axes:
                continue
            target = next(
                (
                    e
                    for e in range(len(target_spec))
                    if e != d and target_spec[e] == axes and not spec[e] and not target_axes
                    and exact_quotient(x.shape[e], self.mesh.count(axes)) is not None
                ),
                None,
            )  # fmt: skip
            groups = self.mesh.groups(axes)
            if target is not None:
                x = ops.AllToAll(groups, target, d)(x, loc=value.loc)
                spec[target] = axes
            else:
                x = ops.AllGather(groups, d)(x, loc=value.loc)
            spec[d] = ()
        starts: list[DimLike] = [0] * len(spec)
        limits = list(x.shape)
        for d, (axes, target_axes) in enumerate(zip(spec, target_spec, strict=True)):
            if axes != target_axes:
                size = self._divided(x.shape[d], target_axes, value)
                starts[d] = size * self.mesh.index(self.rank, target_axes)
                limits[d] = starts[d] + size
        if any(s != 0 or limit != n for s, limit, n in zip(starts, limits, x.shape, strict=True)):
            x = ops.Slice(tuple(starts), tuple(limits), (1,) * len(spec))(x, loc=value.loc)
        return x

    # --- ops

    def _compute(self, node: Node) -> None:
        op_rule = rule(node) if node.inputs else None
        if isinstance(node.op, ops.Sharding):
            self.computed_specs[node], self.values[node, self.spec(node)] = (
                self.spec(node),
                self.part(node.inputs[0], self.spec(node)),
            )
            return
        if isinstance(node.op, ops.PerDevice):
            parts = [self.part(x, self._split(axes)) for x, axes in zip(node.inputs, node.op.in_axes, strict=True)]
            local_results = node.op.on_rank(self.rank, parts)
            for result, part, axes in zip(node.results, local_results, node.op.out_axes, strict=True):
                self.computed_specs[result] = self._split(axes)
                self.values[result, self.computed_specs[result]] = part
            return
        if node in self.sharded.loops:
            cond, body = (partition(g, self.rank) for g in self.sharded.loops[node])
            carried = self.sharded.loops[node][1].outputs[: len(node.inputs)]
            parts = [self.part(x, spec) for x, spec in zip(node.inputs, carried, strict=True)]
            self._store(node, ops.While(cond, body)(*parts, loc=node.loc), carried)
            return
        if op_rule is None:
            operands = [self.part(x, unsplit(len(x.shape))) for x in node.inputs]
            self._store(node, node.op(*operands, loc=node.loc), [unsplit(len(r.shape)) for r in node.results])
            return
        chosen = self.sharded.factor_axes.get(node, {})
        specs = [tuple(chosen.get(d, ()) if d else () for d in dims) for dims in (*op_rule.operands, *op_rule.results)]
        count = len(node.inputs)
        operands = [self.part(x, spec) for x, spec in zip(node.inputs, specs[:count], strict=True)]
        op = node.op
        if op_rule.split is not None:
            counts = {name: self.mesh.count(axes) for name, axes in chosen.items()}
            shapes = [self.local_shape(r, spec) for r, spec in zip(node.results, specs[count:], strict=True)]
            op = op_rule.split(op, counts, shapes)
        results = op(*operands, loc=node.loc)
        for name, kind in op_rule.sums.items():
            axes = chosen.get(name, ())
            if axes and kind != "sum":
                results = ops.AllReduce(self.mesh.groups(axes), kind)(results, loc=node.loc)
        self._store(node, results, specs[count:], _reduced_axes(op_rule, chosen))

    def _split(self, axes: ops.Axes) -> Spec:
        """The axes as a spec, without axes of size 1."""
        return tuple(tuple(a for a in split if self.mesh.count((a,)) > 1) for split in axes)

    def _store(self, node: Node, local: Node, specs: Sequence[Spec], partial_axes: Partial = _NO_AXES) -> None:
        for result, part, spec in zip(node.results, local.results, specs, strict=True):
            if result.type.rank != part.type.rank:
                raise CompileError(f"shard: the part of {result.op.name} has another rank")
            local_spec = spec
            axes = partial_axes | (_NO_AXES if node in self.sharded.partial else self._partial_axes(node))
            if axes and node not in self.sharded.partial:
                part, local_spec = self._summed(part, result, spec, axes)
            self.values[result, local_spec], self.computed_specs[result] = part, local_spec
            self._check_shape(result, part, local_spec)

    def _partial_axes(self, node: Node) -> Partial:
        """The axes over which the operands, and therefore the op's result, are partial sums."""
        op_rule = rule(node) if node.inputs else None
        chosen = self.sharded.factor_axes.get(node, {})
        return _NO_AXES if op_rule is None else _passed_axes(node, op_rule, chosen, self.sharded.partial)

    def _check_shape(self, value: Node, part: Node, spec: Spec) -> None:
        if part.shape != self.local_shape(value, spec):
            raise CompileError(
                f"shard: a part of {value.op.name} at {value.loc or 'the model'}",
                expected=f"{list(self.local_shape(value, spec))} of {value.type} {show_spec(spec)}", got=part.type,
            )  # fmt: skip

    def _summed(self, part: Node, value: Node, local_spec: Spec, axes: Partial) -> tuple[Node, Spec]:
        """Reduce partial sums; where the value's spec splits a dimension over the same axes, by a reduce_scatter."""
        want, spec = self.spec(value), list(local_spec)
        for d, target_axes in enumerate(want):
            is_scatterable = target_axes and not spec[d] and set(target_axes) <= axes
            if is_scatterable and exact_quotient(part.shape[d], self.mesh.count(target_axes)) is not None:
                part = ops.ReduceScatter(self.mesh.groups(target_axes), "sum", d)(part, loc=value.loc)
                spec[d] = target_axes
                axes = axes - set(target_axes)
        rest = tuple(name for name, _ in self.mesh.axes if name in axes)
        if rest:
            part = ops.AllReduce(self.mesh.groups(rest))(part, loc=value.loc)
        return part, tuple(spec)


def const_part(array: Array, spec: Spec, mesh: Mesh, rank: int, loc: str = "") -> Node:
    """A device's part of a constant, read lazily from the whole array."""
    if not axes_in(spec):
        return Const(array)(loc=loc)
    slices = slices_of(array.shape, spec, mesh, rank)
    shape = tuple(s.stop - s.start for s in slices)
    return Const(Array.deferred(array.dtype, shape, lambda: np.ascontiguousarray(array.value[slices])))(loc=loc)


def slices_of(shape: Sequence[int], spec: Spec, mesh: Mesh, rank: int) -> tuple[slice, ...]:
    """The slices of the whole array that are a device's part. Raises InputError if the parts are not equal."""
    slices: list[slice] = []
    for size, axes in zip(shape, spec, strict=True):
        count, index = mesh.count(axes), mesh.index(rank, axes)
        if size % count:
            raise InputError(f"shard {show_spec(spec)}", expected=f"a multiple of {count}", got=f"size {size}")
        slices.append(slice(size // count * index, size // count * (index + 1)))
    return tuple(slices)


def partition(sharded: Sharded, rank: int) -> Graph:
    """The graph of device `rank`."""
    return combine_sums(_Partitioner(sharded, rank).run())
