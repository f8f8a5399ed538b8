"""Control flow in the plan: While and Case become steps and jumps between them.

    values = While(cond, body)(x...)   ->        copy x to v
                                           loop: steps of cond(v);  jump to end if its result is 0
                                                 steps of body(v);  copy its results to v;  jump to loop
                                           end:
    Case(branches)(index, x...)        ->        is[i] = index selects branch i
                                                 jump to next if not is[0];  steps of branch 0;  jump to end;  next: ...

The body writes its results over v where it can (`in_place`). A value that it hands on unchanged is not copied: the body
reads it where it lies, and knows it if it is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, const, rebuilt, topological
from ingot.ir.types import boolean, i64
from ingot.ops import Case, While
from ingot.ops.core.base import Category, category
from ingot.ops.core.turns import turns, value_of
from ingot.ops.group import Group
from ingot.plan.in_place import Pairs
from ingot.schedule.lowered import Arg, Lowered

Place = tuple[int, Layout]
NOWHERE = -1  # the buffer of a value that nothing reads: it is known


class Plan(Protocol):
    """The linker, as control flow needs it."""

    graph: Graph
    lower: Callable[[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]], Lowered]
    steps: list
    buffers: list

    def buffer(self, node: Node) -> int: ...
    def temp(self, nbytes: DimLike) -> int: ...
    def append(self, low: Lowered, place: Callable[[Arg], int], packed: Sequence[int], what: str) -> None: ...
    def jump(self, flag: int | None = None, target: int = 0, turns: DimLike | None = None) -> int: ...
    def aim(self, number: int) -> None: ...
    def nested(self, graph: Graph, places: Sequence[int], pairs: Pairs = ()) -> list[Place]: ...


def launch_control(plan: Plan, node: Node, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> None:
    """Append the steps of a group whose anchor is a While or a Case, and whose graphs are fused."""
    _Control(plan, node, ins, outs).run()


class _Control:
    def __init__(self, plan: Plan, node: Node, ins: tuple[Layout, ...], outs: tuple[Layout, ...]):
        group = node.op
        assert isinstance(group, Group)
        self.plan, self.node, self.body, self.ins, self.outs = plan, node, group.body, ins, outs
        self.anchor = next(n for n in self.body.nodes() if category(n.op) is Category.CONTROL)
        self.read = set(node.results).intersection(plan.graph.nodes())

    def run(self) -> None:
        values = self._while() if isinstance(self.anchor.op, While) else self._case()
        # the group's results: the anchor's, and the views behind them
        results = self.anchor.results
        inputs = tuple(Input(f"v{i}", r.type)() for i, r in enumerate(results))
        views = rebuilt(self.body.outputs, dict(zip(results, inputs, strict=True)))
        for view, own, layout in zip(views, self.node.results, self.outs, strict=True):
            if own not in self.read:
                continue
            target = self.plan.buffer(own)
            used = [i for i, n in enumerate(inputs) if n in set(topological([view]))]
            graph = Graph(tuple(inputs[i] for i in used), (view,))
            sources = [values[i] or self._where(self.anchor.inputs[i]) for i in used]
            if sources != [(target, layout)] or view not in inputs:
                self._write(graph, sources, (target, layout))

    def _write(self, graph: Graph, sources: Sequence[Place], target: Place) -> None:
        """A pointwise graph of values in memory."""
        if any(d == 0 for d in graph.outputs[0].shape):
            return
        ins = tuple(layout for _, layout in sources)
        low = self.plan.lower(Group(graph, "pointwise"), ins, (target[1],), (False,) * len(ins))
        self.plan.append(low, lambda a: sources[a.index][0] if a.kind == "in" else target[0], (), self.anchor.op.name)

    def _copy(self, value: Node, source: Place, target: Place) -> None:
        p = Input("p", value.type)()
        self._write(Graph((p,), (p,)), [source], target)

    def _evaluate(self, value: Node, target: Place) -> None:
        """A view, a constant or another cheap value of the group's operands."""
        needed = set(topological([value]))
        used = [i for i, n in enumerate(self.body.inputs) if n in needed]
        sources = [(self.plan.buffer(self.node.inputs[i]), self.ins[i]) for i in used]
        self._write(Graph(tuple(self.body.inputs[i] for i in used), (value,)), sources, target)

    def _fresh(self, value: Node) -> Place:
        return self.plan.temp(value.type.nbytes), Layout.contiguous(value.shape)

    def _in_place(self, operand: Node) -> int | None:
        """The buffer that an operand fills, if it can be read there as it is."""
        if operand not in self.body.inputs:
            return None
        at = self.body.inputs.index(operand)
        return self.plan.buffer(self.node.inputs[at]) if self.ins[at].is_contiguous else None

    def _constant(self, operand: Node) -> Node | None:
        if operand.constant is not None:
            return operand
        outer = self.node.inputs[self.body.inputs.index(operand)] if operand in self.body.inputs else operand
        return outer if outer.constant is not None else None

    def _number(self, operand: Node) -> DimLike | None:
        """The integer that an operand is, if that is known beforehand."""
        return value_of(self.node.inputs[self.body.inputs.index(operand)] if operand in self.body.inputs else operand)

    def _copied(self, operand: Node, place: Place | None = None) -> Place:
        place = place or self._fresh(operand)
        self._evaluate(operand, place)
        return place

    def _result(self, i: int) -> Place | None:
        """Where value i is to lie after the loop, if it can be there all along."""
        for own, out, layout in zip(self.node.results, self.body.outputs, self.outs, strict=True):
            if out is self.anchor.results[i] and own in self.read and layout.is_contiguous:
                return self.plan.buffer(own), layout
        return None

    def _where(self, operand: Node) -> Place:
        """An operand's own memory, or else a copy."""
        own = self._in_place(operand)
        return self._copied(operand) if own is None else (own, Layout.contiguous(operand.shape))

    def _while(self) -> list[Place | None]:
        """Where the values lie after the loop; None: as the operand."""
        op, plan = self.anchor.op, self.plan
        assert isinstance(op, While)
        operands = self.anchor.inputs
        count = range(len(operands))
        fixed = [_hands_on(out, given) for out, given in zip(op.body.results, op.body.inputs, strict=True)]
        constants = {i: c for i in count if fixed[i] and (c := self._constant(operands[i])) is not None}
        places: dict[int, Place] = {}
        for i in count:
            if i not in constants:
                places[i] = self._where(operands[i]) if fixed[i] else self._copied(operands[i], self._result(i))
        buffers = [places[i][0] if i in places else NOWHERE for i in count]
        changing = [i for i in count if not fixed[i]]
        start = len(plan.steps)
        ((flag, _),) = plan.nested(_with_constants(op.cond, constants), buffers)
        leave = plan.jump(flag, turns=turns(op, lambda i: self._number(operands[i])))
        body = op.body.with_outputs([*(op.body.outputs[i] for i in changing), *op.body.found.values()])
        body = _with_constants(body, constants)
        pairs = list(zip((body.inputs[i] for i in changing), body.results, strict=True))
        for i, source in zip(changing, plan.nested(body, buffers, pairs), strict=True):
            if source != places[i]:
                self._copy(op.body.outputs[i], source, places[i])
        back = plan.jump(target=start)
        plan.aim(leave)
        for b, _ in places.values():
            plan.buffers[b].touch(back)  # what the loop reads lives as long as it may run again
        return [places.get(i) for i in count]

    def _case(self) -> list[Place | None]:
        op, plan = self.anchor.op, self.plan
        assert isinstance(op, Case)
        index, *operands = self.anchor.inputs
        last = len(op.branches) - 1
        at = ops.Convert(i64)(index)
        low, high = const(0, np.int64), const(last, np.int64)
        inside = ops.And()(ops.Compare("GE")(at, low), ops.Compare("LT")(at, high))
        chosen = ops.Select()(inside, at, high)
        constants = {i: c for i, x in enumerate(operands) if (c := self._constant(x)) is not None}
        buffers = [NOWHERE if i in constants else self._where(x)[0] for i, x in enumerate(operands)]
        results: list[Place | None] = [self._fresh(n) for n in op.branches[0].results]
        ends: list[int] = []
        for number, branch in enumerate(op.branches):
            skip: int | None = None
            if number < last:
                flag = plan.temp(boolean.nbytes)
                here = ops.Compare("EQ")(chosen, const(number, np.int64))
                self._evaluate(here, (flag, Layout.contiguous(())))
                skip = plan.jump(flag)
            found = plan.nested(_with_constants(branch, constants), buffers)
            for value, source, target in zip(branch.results, found, results, strict=True):
                assert target is not None
                self._copy(value, source, target)
            if skip is not None:
                ends.append(plan.jump())
                plan.aim(skip)
        for number in ends:
            plan.aim(number)
        return results


def _hands_on(out: Node, given: Node) -> bool:
    """Whether a fused graph's output is a plain copy of its input `given`."""
    if out is given:
        return True
    if not isinstance(out.op, Group) or out.inputs != (given,):
        return False
    return out.op.body.outputs == out.op.body.inputs


def _with_constants(graph: Graph, constants: dict[int, Node]) -> Graph:
    """The graph with some of its inputs known; they stay inputs."""
    if not constants:
        return graph
    return graph.with_outputs(rebuilt(graph.outputs, {graph.inputs[i]: c for i, c in constants.items()}))


__all__ = ["launch_control"]
