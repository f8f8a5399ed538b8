"""What runs of a program's steps for one set of shapes: CUDA graphs, and between them what the host decides.

a b  Loop(c, body: d)  e   ->   one graph: a b c tell WHILE(d c tell) e
                                or several: [a b], again and again [c], flag read by the host, [d]; [e]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.driver import Driver
from ingot.runtime.cuda.flow import Branch, Flow, Loop, SizeRead, fits, flow, pieces, sized, unrolled
from ingot.runtime.cuda.image import Image
from ingot.runtime.cuda.launch import Exchange, Node
from ingot.runtime.cuda.nccl import Communicators
from ingot.runtime.cuda.order import Access
from ingot.runtime.cuda.resolver import Resolver
from ingot.runtime.expr import OPERATORS, Expr, evaluate
from ingot.runtime.program import Program, Step
from ingot.support.dataclass import dataclass
from ingot.support.errors import DeviceError

_EXCHANGES = -1  # the number of a memory that stands for the GPUs' links
MAX_UNROLLED_KERNELS = 4096  # of an unrolled loop


@dataclass
class Conditional:
    """A conditional node of a graph. flag_nodes: the launches that set its flag; the first immediately precedes it."""

    loop: bool
    flag_nodes: tuple[Node, ...]
    bodies: tuple[list[GraphItem], ...]


GraphItem: TypeAlias = "Node | Exchange | Conditional"


@dataclass
class Segment:
    """The launches of one graph. executables: its instantiated copies."""

    parts: list[GraphItem]
    nodes: list[Node]
    graph: int = 0
    executables: list[int] = field(default_factory=lambda: list[int]())


@dataclass
class Hosted:
    """What the host runs: a loop (first: its condition, second: its body), a branch (its two sides), or sizes."""

    item: Loop | Branch | SizeRead
    flag: tuple[int, int]  # its index into the places, and its byte offset
    first: list[Run]
    second: list[Run]


Run: TypeAlias = "Segment | Hosted"


def kernel_nodes(parts: Sequence[GraphItem]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, Node):
            yield part
        elif isinstance(part, Conditional):
            yield part.flag_nodes[0]
            for body in part.bodies:
                yield from kernel_nodes(body)


def exchanges(parts: Sequence[GraphItem]) -> Iterator[Exchange]:
    for part in parts:
        if isinstance(part, Exchange):
            yield part
        elif isinstance(part, Conditional):
            for body in part.bodies:
                yield from exchanges(body)


def launches(part: GraphItem) -> list[Node | Exchange]:
    return [*kernel_nodes([part]), *exchanges([part])]


def without_conditionals(segment: Segment) -> list[Node | Exchange]:
    """The launches of a segment without conditional nodes."""
    return [part for part in segment.parts if isinstance(part, Exchange) or (isinstance(part, Node) and part.chunks)]


def segments(runs: Sequence[Run]) -> Iterator[Segment]:
    for run in runs:
        if isinstance(run, Segment):
            yield run
        else:
            yield from segments((*run.first, *run.second))


def _is_known(number: Expr, values: Mapping[str, int]) -> bool:
    return isinstance(number, int) or all(not isinstance(i, str) or i in OPERATORS or i in values for i in number)


class RunBuilder:
    """Makes what runs of a program's steps for one set of shapes."""

    def __init__(
        self, driver: Driver, program: Program, image: Image, binding: Binding, resolve: Resolver,
        communicators: Communicators | None,
    ) -> None:  # fmt: skip
        self._driver, self._steps, self._image, self._binding = driver, program.steps, image, binding
        self._communicators = communicators
        self._resolve = resolve
        self._sized = sized(program)
        self._flow = unrolled(flow(program), self._trip_count)

    def runs(self, version: int) -> list[Run]:
        """version: of the driver; 0: without conditional nodes."""
        return self._runs(self._flow, version)

    def _runs(self, items: Flow, version: int) -> list[Run]:
        runs: list[Run] = []
        for piece in pieces(items, lambda item: fits(item, version, self._sized)):
            match piece:
                case Loop():
                    first, second = piece.condition, piece.body
                case Branch():
                    first, second = piece.then, piece.otherwise
                case SizeRead():
                    first = second = ()
                case _:
                    if parts := self._parts(piece):
                        runs.append(Segment(parts, [*kernel_nodes(parts)]))
                    continue
            runs.append(Hosted(piece, self._flag(piece.at), self._runs(first, version), self._runs(second, version)))
        return runs

    def _flag(self, at: int) -> tuple[int, int]:
        return self._resolve.buffer(*self._steps[at].args[0])

    def _trip_count(self, loop: Loop) -> int | None:
        """The trip count of a loop that is unrolled; None: it is not."""
        if loop.trip_count is None or not _is_known(loop.trip_count, self._binding.values):
            return None
        launches, trips = self._launches(loop.body), evaluate(loop.trip_count, self._binding.values)
        return (trips if launches else 0) if trips <= 1 or launches * trips <= MAX_UNROLLED_KERNELS else None

    def _launches(self, items: Flow) -> int:
        count = 0
        for item in items:
            match item:
                case int():
                    count += bool(self._binding.counts[item][0])
                case Loop() if (trips := self._trip_count(item)) is not None:
                    count += trips * self._launches(item.body)
                case Loop():
                    count += self._launches((*item.condition, *item.body, *item.condition)) + 1
                case Branch():
                    count += self._launches((*item.then, *item.otherwise)) + 1
                case SizeRead():
                    pass
        return count

    def _parts(self, items: Flow) -> list[GraphItem]:
        parts: list[GraphItem] = []
        for item in items:
            match item:
                case int():
                    if self._binding.counts[item][0]:
                        parts.append(self._node(item))
                case Loop():
                    first, last_flag = self._flag_node(item.at), self._flag_node(item.at)
                    body = [*self._parts(item.body), *self._parts(item.condition), last_flag]
                    parts += [*self._parts(item.condition), Conditional(True, (first, last_flag), (body,))]
                case Branch():
                    then, otherwise = self._parts(item.then), self._parts(item.otherwise)
                    if then or otherwise:
                        bodies = (then, otherwise) if item.otherwise else (then,)
                        parts.append(Conditional(False, (self._flag_node(item.at),), bodies))
                case SizeRead():
                    raise AssertionError("sizes in a graph")
        return parts

    def _node(self, number: int) -> Node | Exchange:
        step, dims = self._steps[number], self._binding.dims[number]
        bases = [self._resolve.buffer(*arg) for arg in step.args]
        if step.collective is not None:
            return self._exchange(number, step, bases)
        kernel = self._image.kernels[step.kernel]
        sized_step = step if self._sized[number] else None
        accesses = [self._resolve.access(*arg, i in kernel.code.writes) for i, arg in enumerate(step.args)]
        return Node(self._driver, number, kernel, self._binding.counts[number][0], bases, dims, sized_step, accesses)

    def _exchange(self, number: int, step: Step, bases: list[tuple[int, int]]) -> Exchange:
        if self._sized[number]:
            raise DeviceError(str(step.collective), expected="a size that the inputs tell", got="one that a run finds")
        assert self._communicators is not None
        accesses = [self._resolve.access(*arg, writes=i == 1) for i, arg in enumerate(step.args)]
        # one after the other, in the same order on each GPU
        accesses.append(Access(_EXCHANGES, 0, 1, True))
        count = self._binding.dims[number][0]
        return Exchange(self._driver, number, step, self._communicators, count, bases, accesses)

    def _flag_node(self, at: int) -> Node:
        """A launch that sets a conditional node's flag to that of step `at`; `set_condition` says which node."""
        reads = [self._resolve.access(*self._steps[at].args[0], False)]
        return Node(self._driver, at, self._image.condition(), 1, [self._flag(at)], [0], None, reads)


__all__ = [
    "Conditional", "GraphItem", "Hosted", "Run", "RunBuilder", "Segment", "exchanges", "kernel_nodes", "launches",
    "segments", "without_conditionals",
]  # fmt: skip
