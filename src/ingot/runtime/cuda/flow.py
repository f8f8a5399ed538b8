"""The loops and branches that a program's jumps make up, and which of them one CUDA graph can hold.

s: a b  jump-if-0 t  c  jump s  t: d          ->   Loop(a b, body: c)  d
a  jump-if-0 t  b  jump e  t: c  e: d         ->   a  Branch(b, else: c)  d
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ingot.runtime.expr import Expr
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError

WHILE_VERSION = 12040  # of the driver, from which on graphs have conditional nodes, one inside another
ELSE_VERSION = 12080  # those with a body for each of two cases


@dataclass(frozen=True)
class Loop:
    """condition; while the flag of step `at` is not 0: body, condition. trip_count: None if only the run knows it."""

    at: int
    trip_count: Expr | None
    condition: Flow
    body: Flow


@dataclass(frozen=True)
class Branch:
    """then, if the flag of step `at` is not 0, or else otherwise."""

    at: int
    then: Flow
    otherwise: Flow


@dataclass(frozen=True)
class SizeRead:
    """Sizes that the host reads here, as what follows depends on them. Nothing does if the flag of step `at` is 0."""

    at: int


Item: TypeAlias = "int | Loop | Branch | SizeRead"  # a number is that of a step that launches something
Flow: TypeAlias = tuple[Item, ...]
Piece: TypeAlias = "Flow | Loop | Branch | SizeRead"  # a tuple is what one graph holds


def flow(program: Program) -> Flow:
    """The steps of a program. Raises ArtifactError where its jumps are neither loops nor branches."""
    return _Parser(program).items(0, len(program.steps))


class _Parser:
    def __init__(self, program: Program) -> None:
        self._steps = program.steps
        self._tables = {b.id for b in program.buffers if b.kind == "table"}

    def items(self, start: int, end: int) -> Flow:
        result: list[tuple[int, Item]] = []  # each behind the number of its first step
        at = start
        while at < end:
            step = self._steps[at]
            if step.target is None:
                result.append((at, at))
                at += 1
                continue
            if not step.args:
                raise self._unstructured(at)
            if at and any(identity in self._tables for identity, _ in self._steps[at - 1].args):
                result.append((at, SizeRead(at)))
                at += 1
                continue
            target = step.target
            if not at < target <= end:
                raise self._unstructured(at)
            last = self._steps[target - 1]
            jump_target = last.target if last.target is not None and not last.args and target - 1 > at else None
            if jump_target is None:
                result.append((at, Branch(at, self.items(at + 1, target), ())))
                at = target
            elif jump_target > at:
                if not target <= jump_target <= end:
                    raise self._unstructured(target - 1)
                branch = Branch(at, self.items(at + 1, target - 1), self.items(target, jump_target))
                result.append((at, branch))
                at = jump_target
            else:
                first = next((i for i, (number, _) in enumerate(result) if number >= jump_target), len(result))
                if not start <= jump_target or (result[first][0] if first < len(result) else at) != jump_target:
                    raise self._unstructured(target - 1)
                condition = tuple(item for _, item in result[first:])
                trip_count = step.dims[0] if step.dims else None
                result[first:] = [(jump_target, Loop(at, trip_count, condition, self.items(at + 1, target - 1)))]
                at = target
        return tuple(item for _, item in result)

    def _unstructured(self, at: int) -> ArtifactError:
        return ArtifactError("jumps of a program", expected="loops and branches", got=f"step {at} to another place")


def nested_items(items: Sequence[Item]) -> Iterator[Item]:
    """These, and all that is in them."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from nested_items((*item.condition, *item.body))
        elif isinstance(item, Branch):
            yield from nested_items((*item.then, *item.otherwise))


def sized(program: Program) -> list[bool]:
    """Of each step, whether its chunks or dims depend on sizes that steps find."""
    result = {size.name for size in program.sizes}
    return [
        any(isinstance(d, tuple) and not result.isdisjoint(d) for d in (step.chunks, *step.dims))
        for step in program.steps
    ]


def unrolled(items: Flow, trip_count: Callable[[Loop], int | None]) -> Flow:
    """The items with the bodies of all turns in place of each loop whose `trip_count` is known."""
    result: list[Item] = []
    for item in items:
        match item:
            case Loop() if (trips := trip_count(item)) is not None:
                result += unrolled(item.body, trip_count) * trips
            case Loop():
                condition, body = (unrolled(part, trip_count) for part in (item.condition, item.body))
                result.append(Loop(item.at, item.trip_count, condition, body))
            case Branch():
                then, otherwise = (unrolled(part, trip_count) for part in (item.then, item.otherwise))
                result.append(Branch(item.at, then, otherwise))
            case _:
                result.append(item)
    return tuple(result)


def fits(item: Item, version: int, sized: Sequence[bool], *, nested: bool = False) -> bool:
    """Whether a graph can hold it with such a driver. nested: inside of a conditional node, where nothing may depend on
    sizes that steps find."""
    if isinstance(item, int):
        return not (nested and sized[item])
    if isinstance(item, SizeRead):
        return False
    if isinstance(item, Branch):
        min_version, inner = ELSE_VERSION if item.otherwise else WHILE_VERSION, (*item.then, *item.otherwise)
    else:
        min_version, inner = WHILE_VERSION, (*item.condition, *item.body)
    return version >= min_version and all(fits(i, version, sized, nested=True) for i in inner)


def pieces(items: Flow, fits: Callable[[Loop | Branch], bool]) -> list[Piece]:
    """Graphs, and between them what the host follows: loops and branches that do not fit into one, sizes."""
    result: list[Piece] = []
    group: list[Item] = []
    for item in items:
        if isinstance(item, int) or (not isinstance(item, SizeRead) and fits(item)):
            group.append(item)
            continue
        if group:
            result.append(tuple(group))
            group = []
        result.append(item)
    return [*result, tuple(group)] if group else result


__all__ = ["Branch", "Flow", "Item", "Loop", "SizeRead", "fits", "flow", "nested_items", "pieces", "sized", "unrolled"]
