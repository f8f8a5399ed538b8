"""Sizes that the run finds, in the plan: each has a step behind those that write it.

count = sum(mask)      ->      steps that write count
                               sizes: dims, chunks and rounds that follow from it go into the tables of the steps
                                      behind;  jump to the end if it is beyond its bounds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol

from ingot.ir.dims import FARTHEST, DimLike, postfix, span_of, symbol
from ingot.ir.kernel import Kernel
from ingot.ir.node import Graph
from ingot.runtime import program as rt
from ingot.runtime.expr import Expr
from ingot.schedule.runtime_sizes import size_names, sizes_kernel
from ingot.support.dataclass import dataclass


def expression(d: DimLike) -> Expr:
    """A dimension as the runtime evaluates it."""
    return d if isinstance(d, int) else tuple(postfix(d))


class Plan(Protocol):
    """The linker, as sizes need it."""

    steps: list[rt.Step]
    buffers: list

    def memory(self, kind: rt.BufferKind, index: int) -> int: ...  # the number of a new buffer of a kind, of 8 bytes
    def temp(self, nbytes: DimLike) -> int: ...
    def jump(self, flag: int | None = None, target: int = 0) -> int: ...
    def aim(self, number: int) -> None: ...
    def symbol(self, kernel: Kernel) -> str: ...


@dataclass(frozen=True)
class _Point:
    """Behind step `step` - 1 the sizes `names` are known; the jump behind it looks at the byte in `flag`."""

    step: int
    names: tuple[str, ...]
    flag: int
    checks: tuple[DimLike, ...]


@dataclass
class FoundSizes:
    """The sizes of a program: the buffers that they lie in, and where in the plan they become known."""

    buffers: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, tuple[int, DimLike, int | None]] = field(default_factory=dict)  # the least; two for the most
    conditions: list[DimLike] = field(default_factory=list)
    noted: list[tuple[int, tuple[DimLike, ...]]] = field(default_factory=list)
    points: list[_Point] = field(default_factory=list)

    @property
    def specs(self) -> tuple[rt.Size, ...]:
        """As the program has them, in the order in which they become known."""
        return tuple(rt.Size(name, low, expression(most), high) for name, (low, most, high) in self.bounds.items())

    def declare(self, plan: Plan, graph: Graph) -> None:
        """Have memory for the sizes of a graph. One that another graph gives too is the same."""
        limits = {name: (low, high) for name, low, high in graph.bounds}
        for name, most in graph.sizes:
            if name not in self.buffers:
                self.buffers[name] = plan.memory("size", len(self.buffers))
                low, high = limits.get(name) or span_of(name)
                self.bounds[name] = -FARTHEST if low is None else low, most, high
        self.conditions += [c for c in graph.conditions if size_names((c,)) and c not in self.conditions]

    def note(self, step: int, values: Sequence[DimLike]) -> None:
        """Tell what stands in a step's record and table: chunks, rounds and dims."""
        if size_names(values):
            self.noted.append((step, tuple(values)))

    def known(self, plan: Plan, names: Sequence[str]) -> None:
        """Append the steps behind those that write these sizes; `finish` fills them in."""
        checks: list[DimLike] = []
        for name in names:
            low, most, high = self.bounds[name]
            checks += [symbol(name) - low, most - symbol(name)] + ([] if high is None else [high - symbol(name)])
        number, flag = len(plan.steps), plan.temp(1)
        plan.buffers[flag].touch(number)
        plan.steps.append(rt.Step("", ((flag, 0),), label="sizes"))
        plan.jump(flag)
        self.points.append(_Point(number, tuple(names), flag, tuple(checks)))

    def finish(self, plan: Plan) -> None:
        """Give the steps of all sizes their kernels, once all steps are there."""
        if not self.points:
            return
        steps, seen, table = plan.steps, set[str](), plan.memory("table", 0)
        found: list[tuple[list[DimLike], dict[DimLike, list[tuple[int, int]]]]] = []
        for point in self.points:
            seen.update(point.names)

            def settled(d: DimLike, new: tuple[str, ...] = point.names) -> bool:
                own = size_names((d,))
                return seen.issuperset(own) and not set(own).isdisjoint(new)

            checks = [*point.checks, *filter(settled, self.conditions)]
            written: dict[DimLike, list[tuple[int, int]]] = {}
            for step, values in self.noted:
                for at, d in enumerate(values):
                    if settled(d):
                        written.setdefault(d, []).append((step, at))
            found.append((checks, written))
            # its arguments and dims come first: the places in the table follow from them
            kernel, names = sizes_kernel(checks, dict.fromkeys(written, ())), size_names((*checks, *written))
            args = (*(self.buffers[name] for name in names), table, point.flag)
            dims = tuple((v.name,) for v in kernel.dims)
            steps[point.step] = replace(steps[point.step], args=tuple((a, 0) for a in args), dims=dims)
            plan.aim(point.step + 1)
        places = rt.table_places(steps)
        for point, (checks, written) in zip(self.points, found, strict=True):
            kernel = sizes_kernel(checks, {d: [places(*at) for at in those] for d, those in written.items()})
            steps[point.step] = replace(steps[point.step], kernel=plan.symbol(kernel))
