"""Sizes found at run time: each has a `sizes` step in the plan, after the steps that compute it.

count = sum(mask)      ->      steps that write count
                               sizes: write the dims, chunks and rounds that depend on it into the tables of later
                                      steps;  jump to the end if it is out of its bounds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol

from ingot.ir.dims import MAX_INTEGER, DimLike, default_bounds, postfix, symbol
from ingot.ir.kernel import Expr as KernelExpr
from ingot.ir.kernel import Kernel
from ingot.ir.node import Graph
from ingot.runtime import program as rt
from ingot.runtime.expr import Expr
from ingot.schedule.index import dim_of
from ingot.schedule.runtime_sizes import size_names, sizes_kernel
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError


def expression(d: DimLike) -> Expr:
    """A dimension as the runtime evaluates it."""
    return d if isinstance(d, int) else tuple(postfix(d))


def kernel_dim(e: KernelExpr) -> DimLike:
    """An expression over a kernel's dims (chunks, rounds) as a dimension."""
    dim = dim_of(e)
    if dim is None:
        raise CompileError("a kernel's number of chunks", expected="arithmetic on its dims", got=repr(e))
    return dim


class Plan(Protocol):
    """The part of the linker that sizes use."""

    buffers: list

    @property
    def steps(self) -> list[rt.Step]: ...
    def add_scalar(self, kind: rt.BufferKind, index: int) -> int: ...  # the number of a new 8-byte buffer
    def add_temp(self, nbytes: DimLike) -> int: ...
    def jump(self, flag: int | None = None, target: int = 0) -> int: ...
    def set_target(self, number: int) -> None: ...
    def symbol(self, kernel: Kernel) -> str: ...


@dataclass(frozen=True)
class _Point:
    """A `sizes` step. step: its number. names: sizes that are known from then on. flag: the buffer of the byte that the
    next step, a jump, tests. checks: dimensions that must not be negative."""

    step: int
    names: tuple[str, ...]
    flag: int
    checks: tuple[DimLike, ...]


@dataclass
class RuntimeSizes:
    """The sizes that a program finds at run time.

    buffers: the buffer of each size. bounds: its minimum, its maximum as a dimension, and as a number or None.
    conditions: dimensions that must not be negative. step_dims: each step's chunks, rounds and dims. points: the
    `sizes` steps, in order.
    """

    buffers: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, tuple[int, DimLike, int | None]] = field(default_factory=dict)
    conditions: list[DimLike] = field(default_factory=list)
    step_dims: list[tuple[int, tuple[DimLike, ...]]] = field(default_factory=list)
    points: list[_Point] = field(default_factory=list)

    @property
    def specs(self) -> tuple[rt.Size, ...]:
        """The sizes of the program, in declaration order."""
        return tuple(rt.Size(name, low, expression(limit), high) for name, (low, limit, high) in self.bounds.items())

    def declare(self, plan: Plan, graph: Graph) -> None:
        """Allocate memory for the sizes of a graph. Graphs that find a size of the same name share it."""
        bounds = {name: (low, high) for name, low, high in graph.bounds}
        for name, limit in graph.sizes:
            if name not in self.buffers:
                self.buffers[name] = plan.add_scalar("size", len(self.buffers))
                low, high = bounds.get(name) or default_bounds(name)
                self.bounds[name] = -MAX_INTEGER if low is None else low, limit, high
        self.conditions += [c for c in graph.conditions if size_names((c,)) and c not in self.conditions]

    def add_step_dims(self, step: int, values: Sequence[DimLike]) -> None:
        """Record the values in a step's table: chunks, rounds and dims."""
        if size_names(values):
            self.step_dims.append((step, tuple(values)))

    def add_sizes_step(self, plan: Plan, names: Sequence[str]) -> None:
        """Append the `sizes` step of these sizes, which `finish` completes, and its jump."""
        checks: list[DimLike] = []
        for name in names:
            low, limit, high = self.bounds[name]
            checks += [symbol(name) - low, limit - symbol(name)] + ([] if high is None else [high - symbol(name)])
        number, flag = len(plan.steps), plan.add_temp(1)
        plan.buffers[flag].touch(number)
        plan.steps.append(rt.Step("", ((flag, 0),), label="sizes"))
        plan.jump(flag)
        self.points.append(_Point(number, tuple(names), flag, tuple(checks)))

    def finish(self, plan: Plan) -> None:
        """Complete the `sizes` steps with their kernels, once all steps are known."""
        if not self.points:
            return
        steps, known_sizes, table = plan.steps, set[str](), plan.add_scalar("table", 0)
        contents: list[tuple[list[DimLike], dict[DimLike, list[tuple[int, int]]]]] = []
        for point in self.points:
            known_sizes.update(point.names)

            def becomes_known(d: DimLike, new_sizes: tuple[str, ...] = point.names) -> bool:
                names = size_names((d,))
                return known_sizes.issuperset(names) and not set(names).isdisjoint(new_sizes)

            checks = [*point.checks, *filter(becomes_known, self.conditions)]
            table_dims: dict[DimLike, list[tuple[int, int]]] = {}
            for step, values in self.step_dims:
                for at, d in enumerate(values):
                    if becomes_known(d):
                        table_dims.setdefault(d, []).append((step, at))
            contents.append((checks, table_dims))
            # set its arguments and dims first: positions in the table depend on them
            kernel, names = sizes_kernel(checks, dict.fromkeys(table_dims, ())), size_names((*checks, *table_dims))
            args = (*(self.buffers[name] for name in names), table, point.flag)
            dims = tuple((v.name,) for v in kernel.dims)
            steps[point.step] = replace(steps[point.step], args=tuple((a, 0) for a in args), dims=dims)
            plan.set_target(point.step + 1)
        table_index = rt.table_offsets(steps)
        for point, (checks, table_dims) in zip(self.points, contents, strict=True):
            kernel = sizes_kernel(checks, {d: [table_index(*at) for at in those] for d, those in table_dims.items()})
            steps[point.step] = replace(steps[point.step], kernel=plan.symbol(kernel))
