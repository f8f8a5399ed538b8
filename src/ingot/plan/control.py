"""Control flow in the plan: While and Case become steps and jumps between them; a collective, and a call of a function
of the host, become a step.

    values = While(cond, body)(x...)   ->        copy x to v
                                           loop: steps of cond(v);  jump to end if its result is 0
                                                 steps of body(v);  copy its results to v;  jump to loop
                                           end:
    Case(branches)(index, x...)        ->        is[i] = index selects branch i
                                                 jump to next if not is[0];  steps of branch 0;  jump to end;  next: ...

    y = all_reduce(x)                ->        exchange x, contiguous, with other devices; y is contiguous, too

The body writes its results over v where possible (`in_place`). A loop-invariant value is not copied: the body reads the
operand's own memory, or the constant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, const, rebuild, topological
from ingot.ir.types import boolean, i64
from ingot.ops import Case, While
from ingot.ops.core.base import Category, category
from ingot.ops.core.trip_count import static_value, trip_count
from ingot.ops.group import Group
from ingot.plan.in_place import Pairs
from ingot.runtime.program import Collective, CollectiveKind, HostCall
from ingot.schedule.lowered import Arg, Lowered

Place = tuple[int, Layout]
_UNFUSED = (Category.CONTROL, Category.COLLECTIVE, Category.HOST)  # anchors that are no kernels
NO_BUFFER = -1  # of a constant, which nothing reads from memory


def is_control(node: Node) -> bool:
    """Whether a group is run by steps that are no kernels."""
    return isinstance(node.op, Group) and any(category(n.op) in _UNFUSED for n in node.op.body.nodes())


class Plan(Protocol):
    """The part of the linker that control flow uses."""

    graph: Graph
    lower: Callable[[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]], Lowered]
    buffers: list

    @property
    def steps(self) -> list: ...

    def buffer(self, node: Node) -> int: ...
    def add_temp(self, nbytes: DimLike) -> int: ...
    def append(self, lowered: Lowered, buffer_of: Callable[[Arg], int], packed: Sequence[int], name: str) -> None: ...
    def exchange(self, collective: Collective, source: int, target: int, count: DimLike) -> None: ...
    def call_host(self, call: HostCall, buffers: Sequence[int], dims: Sequence[DimLike]) -> None: ...
    def jump(self, flag: int | None = None, target: int = 0, trip_count: DimLike | None = None) -> int: ...
    def set_target(self, number: int) -> None: ...
    def inline(self, graph: Graph, buffers: Sequence[int], pairs: Pairs = ()) -> list[Place]: ...


def launch_control(plan: Plan, node: Node, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> None:
    """Append the steps of a group whose anchor is a While or a Case, whose graphs are fused, a collective, or a call of
    the host."""
    _Control(plan, node, ins, outs).run()


class _Control:
    def __init__(self, plan: Plan, node: Node, ins: tuple[Layout, ...], outs: tuple[Layout, ...]):
        group = node.op
        assert isinstance(group, Group)
        self.plan, self.node, self.body, self.ins, self.outs = plan, node, group.body, ins, outs
        self.anchor = next(n for n in self.body.nodes() if category(n.op) in _UNFUSED)
        self.values, self.results = self.anchor.results, node.results
        self.used_results = set(self.results).intersection(plan.graph.nodes())

    def run(self) -> None:
        match self.anchor.op:
            case While():
                values = self._while()
            case Case():
                values = self._case()
            case ops.HostCall():
                values = self._call_host()
            case _:
                values = [self._exchange()]
        # the group's results: the anchor's, and views of them
        inputs = tuple(Input(f"v{i}", r.type)() for i, r in enumerate(self.values))
        views = rebuild(self.body.outputs, dict(zip(self.values, inputs, strict=True)))
        for view, result, layout in zip(views, self.results, self.outs, strict=True):
            if result not in self.used_results:
                continue
            target = self.plan.buffer(result)
            dependencies = set(topological([view]))
            positions = [i for i, n in enumerate(inputs) if n in dependencies]
            graph = Graph(tuple(inputs[i] for i in positions), (view,))
            sources = [values[i] or self._operand_place(self.anchor.inputs[i]) for i in positions]
            if sources != [(target, layout)] or view not in inputs:
                self._write(graph, sources, (target, layout))

    def _write(self, graph: Graph, sources: Sequence[Place], target: Place) -> None:
        """Append a pointwise graph of values in memory."""
        if any(d == 0 for d in graph.outputs[0].shape):
            return
        ins = tuple(layout for _, layout in sources)
        lowered = self.plan.lower(Group(graph, "pointwise"), ins, (target[1],), (False,) * len(ins))
        self.plan.append(
            lowered, lambda a: sources[a.index][0] if a.kind == "in" else target[0], (), self.anchor.op.name
        )

    def _copy(self, value: Node, source: Place, target: Place) -> None:
        p = Input("p", value.type)()
        self._write(Graph((p,), (p,)), [source], target)

    def _evaluate(self, value: Node, target: Place) -> None:
        """Compute a view, a constant or another cheap value of the group's operands."""
        dependencies = set(topological([value]))
        positions = [i for i, n in enumerate(self.body.inputs) if n in dependencies]
        sources = [(self.plan.buffer(self.node.inputs[i]), self.ins[i]) for i in positions]
        self._write(Graph(tuple(self.body.inputs[i] for i in positions), (value,)), sources, target)

    def _new_place(self, value: Node) -> Place:
        return self.plan.add_temp(value.type.nbytes), Layout.contiguous(value.shape)

    def _operand_buffer(self, operand: Node) -> int | None:
        """The buffer of an operand that is an input of the group and contiguous, else None."""
        if operand not in self.body.inputs:
            return None
        position = self.body.inputs.index(operand)
        return self.plan.buffer(self.node.inputs[position]) if self.ins[position].is_contiguous else None

    def _constant(self, operand: Node) -> Node | None:
        if operand.constant is not None:
            return operand
        value = self.node.inputs[self.body.inputs.index(operand)] if operand in self.body.inputs else operand
        return value if value.constant is not None else None

    def _number(self, operand: Node) -> DimLike | None:
        """The integer value of an operand, if it is known in advance."""
        return static_value(
            self.node.inputs[self.body.inputs.index(operand)] if operand in self.body.inputs else operand
        )

    def _copy_of(self, operand: Node, place: Place | None = None) -> Place:
        place = place or self._new_place(operand)
        self._evaluate(operand, place)
        return place

    def _first_place(self, operand: Node, place: Place | None) -> Place:
        """The place of a value that a loop changes, which holds the operand: where it lies, or a copy."""
        is_there = place is not None and self._operand_buffer(operand) == place[0]
        return place if place is not None and is_there else self._copy_of(operand, place)

    def _result_place(self, i: int) -> Place | None:
        """The place of the group's result that is value i, if the loop can keep the value there."""
        for result, out, layout in zip(self.results, self.body.outputs, self.outs, strict=True):
            if out is self.values[i] and result in self.used_results and layout.is_contiguous:
                return self.plan.buffer(result), layout
        return None

    def _operand_place(self, operand: Node) -> Place:
        """The place of an operand: its own memory if it is contiguous, else a copy."""
        buffer = self._operand_buffer(operand)
        return self._copy_of(operand) if buffer is None else (buffer, Layout.contiguous(operand.shape))

    def _exchange(self) -> Place:
        op, (operand,) = self.anchor.op, self.anchor.inputs
        assert isinstance(op, ops.Collective)
        # in memory of the program's own: the addresses of arguments and results change from call to call
        source, target = self._operand_place(operand), self._result_place(0)
        if self.plan.buffers[source[0]].kind in ("input", "output"):
            source = self._copy_of(operand)
        if target is None or self.plan.buffers[target[0]].kind in ("input", "output"):
            target = self._new_place(self.anchor)
        kind, reduction, shift = cast(CollectiveKind, op.name), getattr(op, "kind", ""), getattr(op, "shift", 0)
        collective = Collective(kind, op.groups, operand.dtype.name, reduction, shift)
        self.plan.exchange(collective, source[0], target[0], operand.type.size)
        return target

    def _call_host(self) -> list[Place | None]:
        op, operands, results = self.anchor.op, self.anchor.inputs, self.values
        assert isinstance(op, ops.HostCall)
        sources = [self._operand_place(x) for x in operands]
        targets = [self._result_place(i) or self._new_place(r) for i, r in enumerate(results)]
        signatures = [tuple((x.dtype.name, x.type.rank) for x in group) for group in (operands, results)]
        call = HostCall(op.op, signatures[0], signatures[1], json.dumps(dict(op.settings)))
        dims = [d for x in (*operands, *results) for d in x.shape]
        self.plan.call_host(call, [buffer for buffer, _ in (*sources, *targets)], dims)
        return [*targets]

    def _while(self) -> list[Place | None]:
        """The places of the values after the loop; None for a constant operand."""
        op, plan = self.anchor.op, self.plan
        assert isinstance(op, While)
        operands = self.anchor.inputs
        indices = range(len(operands))
        invariant = [_passes_through(out, x) for out, x in zip(op.body.results, op.body.inputs, strict=True)]
        constants = {i: c for i in indices if invariant[i] and (c := self._constant(operands[i])) is not None}
        places: dict[int, Place] = {}
        for i in indices:
            if i not in constants:
                x = operands[i]
                places[i] = self._operand_place(x) if invariant[i] else self._first_place(x, self._result_place(i))
        buffers = [places[i][0] if i in places else NO_BUFFER for i in indices]
        varying = [i for i in indices if not invariant[i]]
        start = len(plan.steps)
        ((flag, _),) = plan.inline(_with_constants(op.cond, constants), buffers)
        exit_jump = plan.jump(flag, trip_count=trip_count(op, lambda i: self._number(operands[i])))
        body = op.body.with_outputs([*(op.body.outputs[i] for i in varying), *op.body.size_nodes.values()])
        body = _with_constants(body, constants)
        pairs = list(zip((body.inputs[i] for i in varying), body.results, strict=True))
        for i, source in zip(varying, plan.inline(body, buffers, pairs), strict=True):
            if source != places[i]:
                self._copy(op.body.outputs[i], source, places[i])
        back_jump = plan.jump(target=start)
        plan.set_target(exit_jump)
        for b, _ in places.values():
            plan.buffers[b].touch(back_jump)  # what the loop reads is live until it ends
        return [places.get(i) for i in indices]

    def _case(self) -> list[Place | None]:
        op, plan = self.anchor.op, self.plan
        assert isinstance(op, Case)
        index, *operands = self.anchor.inputs
        last = len(op.branches) - 1
        position = ops.Convert(i64)(index)
        low, high = const(0, np.int64), const(last, np.int64)
        in_range = ops.And()(ops.Compare("GE")(position, low), ops.Compare("LT")(position, high))
        branch_index = ops.Select()(in_range, position, high)
        constants = {i: c for i, x in enumerate(operands) if (c := self._constant(x)) is not None}
        buffers = [NO_BUFFER if i in constants else self._operand_place(x)[0] for i, x in enumerate(operands)]
        results: list[Place | None] = [self._new_place(n) for n in op.branches[0].results]
        end_jumps: list[int] = []
        for number, branch in enumerate(op.branches):
            skip_jump: int | None = None
            if number < last:
                flag = plan.add_temp(boolean.nbytes)
                is_branch = ops.Compare("EQ")(branch_index, const(number, np.int64))
                self._evaluate(is_branch, (flag, Layout.contiguous(())))
                skip_jump = plan.jump(flag)
            values = plan.inline(_with_constants(branch, constants), buffers)
            for value, source, target in zip(branch.results, values, results, strict=True):
                assert target is not None
                self._copy(value, source, target)
            if skip_jump is not None:
                end_jumps.append(plan.jump())
                plan.set_target(skip_jump)
        for number in end_jumps:
            plan.set_target(number)
        return results


def _passes_through(out: Node, operand: Node) -> bool:
    """Whether a fused graph's output is its input `operand`, or a plain copy of it."""
    if out is operand:
        return True
    if not isinstance(out.op, Group) or out.inputs != (operand,):
        return False
    return out.op.body.outputs == out.op.body.inputs


def _with_constants(graph: Graph, constants: dict[int, Node]) -> Graph:
    """The graph with the uses of some inputs replaced by constants; the list of inputs is unchanged."""
    if not constants:
        return graph
    return graph.with_outputs(rebuild(graph.outputs, {graph.inputs[i]: c for i, c in constants.items()}))


__all__ = ["is_control", "launch_control"]
