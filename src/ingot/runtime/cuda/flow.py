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
    """condition; while the flag of step `at` is not 0: body, condition. turns: how many, if known beforehand."""

    at: int
    turns: Expr | None
    condition: Flow
    body: Flow


@dataclass(frozen=True)
class Branch:
    """then, if the flag of step `at` is not 0, or else otherwise."""

    at: int
    then: Flow
    otherwise: Flow


@dataclass(frozen=True)
class Found:
    """Sizes that the host reads here, as what follows depends on them. Nothing does if the flag of step `at` is 0."""

    at: int


Item: TypeAlias = "int | Loop | Branch | Found"  # a number is that of a step that launches something
Flow: TypeAlias = tuple[Item, ...]
Piece: TypeAlias = "Flow | Loop | Branch | Found"  # a tuple is what one graph holds


def flow(program: Program) -> Flow:
    """The steps of a program. Raises ArtifactError where its jumps are neither loops nor branches."""
    return _Parser(program).items(0, len(program.steps))


class _Parser:
    def __init__(self, program: Program) -> None:
        self._steps = program.steps
        self._tables = {b.id for b in program.buffers if b.kind == "table"}

    def items(self, start: int, end: int) -> Flow:
        found: list[tuple[int, Item]] = []  # each behind the number of its first step
        at = start
        while at < end:
            step = self._steps[at]
            if step.target is None:
                found.append((at, at))
                at += 1
                continue
            if not step.args:
                raise self._odd(at)
            if at and any(identity in self._tables for identity, _ in self._steps[at - 1].args):
                found.append((at, Found(at)))
                at += 1
                continue
            target = step.target
            if not at < target <= end:
                raise self._odd(at)
            last = self._steps[target - 1]
            back = last.target if last.target is not None and not last.args and target - 1 > at else None
            if back is None:
                found.append((at, Branch(at, self.items(at + 1, target), ())))
                at = target
            elif back > at:
                if not target <= back <= end:
                    raise self._odd(target - 1)
                branch = Branch(at, self.items(at + 1, target - 1), self.items(target, back))
                found.append((at, branch))
                at = back
            else:
                first = next((i for i, (number, _) in enumerate(found) if number >= back), len(found))
                if not start <= back or (found[first][0] if first < len(found) else at) != back:
                    raise self._odd(target - 1)
                condition = tuple(item for _, item in found[first:])
                turns = step.dims[0] if step.dims else None
                found[first:] = [(back, Loop(at, turns, condition, self.items(at + 1, target - 1)))]
                at = target
        return tuple(item for _, item in found)

    def _odd(self, at: int) -> ArtifactError:
        return ArtifactError("jumps of a program", expected="loops and branches", got=f"step {at} to another place")


def inside(items: Sequence[Item]) -> Iterator[Item]:
    """These, and all that is in them."""
    for item in items:
        yield item
        if isinstance(item, Loop):
            yield from inside((*item.condition, *item.body))
        elif isinstance(item, Branch):
            yield from inside((*item.then, *item.otherwise))


def sized(program: Program) -> list[bool]:
    """Of each step, whether its chunks or dims depend on sizes that steps find."""
    found = {size.name for size in program.sizes}
    return [
        any(isinstance(d, tuple) and not found.isdisjoint(d) for d in (step.chunks, *step.dims))
        for step in program.steps
    ]


def fits(
    item: Item, version: int, sized: Sequence[bool], laid_out: Callable[[Loop], bool], *, held: bool = False
) -> bool:
    """Whether a graph can hold it with such a driver. laid_out: whether a loop's turns are. held: by a conditional
    node, where nothing may depend on sizes that steps find."""
    if isinstance(item, int):
        return not (held and sized[item])
    if isinstance(item, Found):
        return False
    if isinstance(item, Branch):
        needed, inner = ELSE_VERSION if item.otherwise else WHILE_VERSION, (*item.then, *item.otherwise)
    elif laid_out(item):
        needed, inner = version, item.body
    else:
        needed, inner = WHILE_VERSION, (*item.condition, *item.body)
    held = held or isinstance(item, Branch) or not laid_out(item)
    return version >= needed and all(fits(i, version, sized, laid_out, held=held) for i in inner)


def pieces(items: Flow, fits: Callable[[Loop | Branch], bool]) -> list[Piece]:
    """Graphs, and between them what the host follows: loops and branches that do not fit into one, sizes."""
    found: list[Piece] = []
    together: list[Item] = []
    for item in items:
        if isinstance(item, int) or (not isinstance(item, Found) and fits(item)):
            together.append(item)
            continue
        if together:
            found.append(tuple(together))
            together = []
        found.append(item)
    return [*found, tuple(together)] if together else found


__all__ = ["Branch", "Flow", "Found", "Item", "Loop", "fits", "flow", "inside", "pieces", "sized"]
