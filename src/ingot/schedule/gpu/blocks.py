"""What all kernels of tiles share: positions along their rows and columns, and how operands and results lie in memory.

Positions behind the end of an extent are off. Where a mask covers them, nothing is read there; where they are held
back, the last element is read again, and only the results' stores are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.array import by_strides
from ingot.ir.dims import Dim, DimLike, ceildiv, dim_max, estimate, floordiv, product
from ingot.ir.kernel import Buffer, Expr, Increment, Kernel, Lit, Tile, Var
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, Shape, static_shape
from ingot.ops import ArgReduce, DimValue, Iota
from ingot.ops.views import pull_back
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.emit import Emitter, Index, Leaf
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.group_io import result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass

ALIGN = 16  # bytes: what the addresses of operands are multiples of, so that a thread loads as many at once
NARROW = ("narrow", 1)  # the hint that indices are 32 bits wide
# places up to which 32 bits count: the last tile, and the turns of parts behind the last one, go beyond an extent
MOST_PLACES = (1 << 31) - (1 << 22)
Bounds = tuple[Expr, ...]  # masks


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class Span:
    """Positions along one axis of a tile. live: which of them lie inside the extent; None: all."""

    at: Expr
    live: Expr | None

    @staticmethod
    def of(block: Block, first: Expr, size: int, extent: DimLike, axis: int, *, held: bool = False) -> Span:
        """`size` positions from `first`, a multiple of `size`, along `axis`. held: those past the end are the first
        ones again, and not one of them many times over, whose line of the cache all programs would wait for."""
        at = block.let(k.add(first, k.positions(size, axis)), "at")
        if isinstance(extent, int) and extent > 0 and extent % size == 0:
            return Span(at, None)
        live = block.let(k.binary("lt", at, dim_expr(extent)), "live")
        if held:
            at = block.let(k.binary("rem", at, dim_expr(extent)), "at")
        return Span(at, live)

    def index(self, block: Block, shape: Shape) -> Index:
        """Coordinates in a box of `shape`, of which the positions count the elements."""
        return tuple(block.let(e, "i") for e in ix.delinearize(self.at, shape, block.multiples))


def meet(*masks: Expr | None) -> Expr | None:
    """Where all masks are on; None: everywhere."""
    known = [m for m in masks if m is not None]
    return reduce(partial(k.binary, "and"), known) if known else None


def places_of(
    block: Block, first: Expr, size: int, shape: Shape, axis: int, *, held: bool = False
) -> tuple[Index, Expr | None]:
    """Coordinates of `size` elements of a box of `shape` from number `first` on, a multiple of `size`, along `axis`,
    and which of them there are; None: all. held: see `Span.of`."""
    inner = shape[-1]
    if len(shape) > 1 and isinstance(inner, int) and inner % size == 0:  # they stay in one line of the innermost axis
        number = block.let(k.binary("div", first, integer(inner)), "n")
        outer = [block.let(e, "o") for e in ix.delinearize(number, shape[:-1], {})]
        # not a remainder, of which Triton knows no multiple: elements side by side are loaded together
        start = ix.sub(first, ix.mul(number, integer(inner)))
        return (*outer, block.let(k.add(start, k.positions(size, axis)), "at")), None
    span = Span.of(block, first, size, product(shape), axis, held=held)
    return span.index(block, shape), span.live


def read_at(block: Block, buffer: Buffer, flat: Expr, mask: Expr | None, bounds: Bounds = ()) -> Expr:
    """The elements at `flat`: a scalar's place is read once. A mask of `bounds`, which covers what no result needs, is
    left out along an axis along which the places do not differ."""
    if mask is not None and any(mask is b for b in bounds) and not _varies(flat, mask):
        mask = None
    if mask is None and flat.tile is None:
        return block.let(k.load(buffer, flat))
    if mask is None:
        return block.let(k.gather(buffer, flat))
    flat, mask = k.alike(flat, mask)
    return block.let(k.gather(buffer, flat, mask))


def filled(dtype: DType, tile: Tile, value: float = 0) -> Lit:
    """A tile of one number."""
    return Lit(dtype, tile[0] * tile[1], float(value) if dtype.is_float else value, tile=tile)


def register(block: Block, hint: str, first: Expr) -> Buffer:
    """A register that begins as `first`."""
    made = block.alloc(hint, first.dtype, 1, lanes=first.lanes, tile=first.tile)
    block.store(made, ZERO, first)
    return made


def store_tile(block: Block, buffer: Buffer, flat: Expr, value: Expr, mask: Expr | None = None) -> None:
    """Store the tile that places, values and a mask form together."""
    flat, value, *masks = k.alike(flat, value, *(() if mask is None else (mask,)))
    block.store(buffer, flat, value, *masks)


def last_of(block: Block, parts: int, counter: Buffer, at: Expr, then: Callable[[Block], None]) -> None:
    """Count that a part has ended. Whoever ends last of so many goes on, with the count zero again; it sees what the
    others stored before."""
    before = block.fresh("before")
    block.stmts.append(Increment(before, counter, at))

    def last(inner: Block) -> None:
        inner.store(counter, at, ZERO)
        then(inner)

    block.when(k.binary("eq", before, integer(parts - 1)), last)


def dot(coordinates: Sequence[Expr], strides: Sequence[DimLike]) -> Expr:
    """Where elements at these coordinates lie."""
    total: Expr = ZERO
    for e, s in zip(coordinates, strides, strict=True):
        if s != 0:  # else the place is one for all of them
            total = ix.add(total, ix.mul(e, dim_expr(s)))
    return total


def repacked(axes: tuple[Axis, ...], index: int, offset: DimLike, dtype: DType) -> Pack | None:
    """A constant B, input `index`, with its axes in that order; None where its sizes are not known."""
    if any(isinstance(n, Dim) for x in axes for n in (x.extent, x.b, offset)):
        return None
    extents, strides = static_shape(tuple(x.extent for x in axes)), static_shape(tuple(x.b for x in axes))
    (start,) = static_shape((offset,))

    def write(array: np.ndarray, out: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)[start:]
        out[:] = by_strides(flat, extents, [s * flat.itemsize for s in strides]).reshape(-1)

    return Pack(index, f"columns{extents}{strides}{start}", dtype, prod(extents), write)


def _varies(flat: Expr, mask: Expr) -> bool:
    """Whether the places differ along an axis along which the mask does."""
    if flat.tile is None or mask.tile is None:
        return flat.tile is not None
    return any(a > 1 and m > 1 for a, m in zip(flat.tile, mask.tile, strict=True))


def leaf(buffer: Buffer, layout: Layout, bounds: Bounds = ()) -> Leaf:
    """A leaf that reads `buffer` by `layout`."""

    def read(block: Block, index: Index, mask: Expr | None) -> Expr:
        return read_at(block, buffer, ix.linear(index, layout.strides, layout.offset), mask, bounds)

    return Leaf(read)


def write(
    block: Block,
    em: Emitter,
    root: Node,
    buffer: Buffer,
    layout: Layout,
    index: Index,
    mask: Expr | None,
    live: Expr | None = None,
    place: Index | None = None,
) -> None:
    """Evaluate a result at `index`, what is read under `mask`, and store it where it is also `live`. place: its own
    index, if that is another."""
    value = em.value(block, root, index, mask)
    flat = ix.linear(index if place is None else place, layout.strides, layout.offset)
    store_tile(block, buffer, flat, value, meet(live, mask))


@dataclass(frozen=True)
class Group:
    """A fused group as its kernels see it: the body, where its operands lie and its results go, and their buffers,
    which the runtime aligns."""

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    operands: Operands
    left: tuple[int, ...] = ()  # operands that no kernel reads

    @staticmethod
    def of(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> Group:
        plain = Operands.of(body)
        aligned = (tuple(replace(b, align=ALIGN) for b in buffers) for buffers in (plain.ins, plain.outs))
        return Group(body, ins, outs, Operands(*aligned))

    def without(self, index: int) -> Group:
        """The group whose kernels do not read operand `index`."""
        return replace(self, left=(*self.left, index))

    def emitter(self, bounds: Bounds = ()) -> Emitter:
        """bounds: masks of what no result needs."""
        leaves = zip(self.body.inputs, self.operands.ins, self.ins, strict=True)
        return Emitter({n: leaf(b, lay, bounds) for n, b, lay in leaves})

    @property
    def results(self) -> Iterator[tuple[Node, Buffer, Layout]]:
        return zip(self.body.outputs, self.operands.outs, self.outs, strict=True)

    def step(
        self,
        name: str,
        chunk: Var,
        chunks: DimLike,
        top: Block,
        *extra: tuple[Buffer, Arg],
        warps: int = 4,
        stages: int = 3,
    ) -> Step:
        """The launch of `top`'s statements, on `extra` buffers behind the group's own."""
        own = zip(self.operands.params, self.operands.args, strict=True)
        pairs = [*((b, a) for b, a in own if a.kind != "in" or a.index not in self.left), *extra]
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), chunks)
        hints = (("warps", warps), ("stages", stages), *self._narrow)
        kernel = Kernel(name, tuple(b for b, _ in pairs), dims, chunk, dim_expr(chunks), top.body, hints=hints)
        return Step(kernel, tuple(a for _, a in pairs))

    @property
    def _narrow(self) -> tuple[tuple[str, int], ...]:
        """As `narrow`; no place may be a value that the group computes with, either."""
        if any(isinstance(n.op, Iota | ArgReduce | DimValue) for n in self.body.nodes()):
            return ()
        sizes = (t.size for n in self.body.nodes() for t in n.types)
        return narrow(*map(reach, (*self.ins, *self.outs)), *sizes)


def narrow(*sizes: DimLike) -> tuple[tuple[str, int], ...]:
    """The hint of a kernel whose operands have so many places; none, where 32 bits do not count these."""
    return (NARROW,) if all(isinstance(n, int) and n <= MOST_PLACES for n in sizes) else ()


def widened(low: Lowered) -> Lowered:
    """Without the hint where temporaries have more places than that."""

    def step(own: Step) -> Step:
        pairs = zip(own.kernel.params, own.args, strict=True)
        if narrow(*(floordiv(low.temps[a.index], b.dtype.nbytes) for b, a in pairs if a.kind == "temp")):
            return own
        return replace(own, kernel=replace(own.kernel, hints=tuple(h for h in own.kernel.hints if h != NARROW)))

    return replace(low, steps=tuple(map(step, low.steps)))


def reach(layout: Layout) -> DimLike:
    """Behind the last element of a value in its buffer."""
    last = layout.offset
    for n, s in zip(layout.shape, layout.strides, strict=True):
        last = last + dim_max((n - 1) * s, 0)
    return last + 1


def _in_memory(group: Group, anchor: Node) -> tuple[int, ...]:
    """The dimensions of `anchor` as the first result has them, which may be a transpose of it, from the widest stride
    to the narrowest."""
    dims = range(len(anchor.types[0].shape))
    at = pull_back(group.body.outputs[0], anchor, group.outs[0])
    return tuple(dims if at is None else sorted(dims, key=lambda d: -estimate(at.strides[d])))


@dataclass
class Elements:
    """A kernel whose programs each compute elements of `anchor`, neighbours in memory, and what is behind it."""

    group: Group
    anchor: Node
    top: Block
    chunk: Var
    tile: Tile
    span: Span
    index: Index
    em: Emitter

    @staticmethod
    def of(group: Group, anchor: Node, machine: Machine, least: int = 32, most: int = 256) -> Elements:
        """least, most: elements of a program."""
        top, chunk, shape = Block(), k.var("chunk"), anchor.types[0].shape
        total = product(shape)
        size = min(most, max(least, power_of_two(estimate(total) // machine.programs)))
        span = Span.of(top, k.mul(chunk, integer(size)), size, total, 1)
        em = group.emitter(() if span.live is None else (span.live,))
        order = _in_memory(group, anchor)
        index = dict(zip(order, span.index(top, tuple(shape[d] for d in order)), strict=True))
        return Elements(group, anchor, top, chunk, (1, size), span, tuple(index[d] for d in range(len(shape))), em)

    def nest(self, block: Block, extents: Sequence[DimLike], visit: Callable[[Block, Index], None]) -> None:
        """Loops over a box of `extents`."""

        def loop(b: Block, at: Index) -> None:
            if len(at) == len(extents):
                return visit(b, at)
            return b.loop("t", 0, extents[len(at)], 1, lambda c, e: loop(c, (*at, e)))

        loop(block, ())

    def step(self, name: str, *extra: tuple[Buffer, Arg]) -> Step:
        """The kernel, which stores the group's results at its elements."""
        for root, buffer, layout in self.group.results:
            index = result_index(self.top, root, self.anchor, self.index)
            write(self.top, self.em, root, buffer, layout, index, self.span.live)
        chunks = ceildiv(product(self.anchor.types[0].shape), self.tile[1])
        return self.group.step(name, self.chunk, chunks, self.top, *extra)


__all__ = [
    "ALIGN", "NARROW", "Bounds", "Elements", "Group", "Span", "dot", "filled", "last_of", "leaf", "meet", "narrow",
    "places_of", "power_of_two", "reach", "read_at", "register", "repacked", "store_tile", "widened", "write",
]  # fmt: skip
