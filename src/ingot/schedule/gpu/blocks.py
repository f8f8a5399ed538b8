"""What all tiled kernels share: positions along rows and columns, loads and stores of tiles, and launches.

Positions past the end of an extent are out of bounds. They are either masked, so that nothing is read there, or wrapped
around to the first elements, so that loads need no mask and only the stores of results are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.array import view_of_flat
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
from ingot.schedule.group_io import operand_memory, result_index
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.schedule.lowered import Arg, Lowered, Pack, Step
from ingot.support.dataclass import dataclass

ALIGNMENT_BYTES = 16  # of operands' addresses, so that a thread can load as many bytes at once
HINT_32_BIT_INDICES = ("narrow", 1)
# less than 2^31, as the last tile and the last step of a split-K part go past the end of an extent
MAX_ELEMENTS_32_BIT = (1 << 31) - (1 << 22)
Bounds = Sequence[Expr]  # masks


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def pieces_of(size: int) -> tuple[int, ...]:
    """A side of a tile as powers of two, which the sides of a value's tile are.   192 -> (128, 64)"""
    return tuple(1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1)


@dataclass(frozen=True)
class Span:
    """Positions along one axis of a tile. in_bounds: the mask of those inside the extent; None: all are."""

    position: Expr
    in_bounds: Expr | None

    @staticmethod
    def of(
        block: Block, start: Expr, size: int, extent: DimLike, axis: int, *, wraps: bool = False, tile: int = 0
    ) -> Span:
        """`size` positions from `start` along `axis`. tile: they are a piece of so many positions, the first of which
        is a multiple of `tile`; 0: of `size`. wraps: positions past the end wrap around to the first ones; if they were
        clamped to the last one, all programs would wait for its cache line."""
        position = block.let(k.add(start, k.lane_indices(size, axis)), "at")
        if isinstance(extent, int) and extent > 0 and extent % (tile or size) == 0:
            return Span(position, None)
        in_bounds = block.let(k.binary("lt", position, dim_expr(extent)), "live")
        if wraps:
            position = block.let(k.binary("rem", position, dim_expr(extent)), "at")
        return Span(position, in_bounds)

    def index(self, block: Block, shape: Shape) -> Index:
        """The positions as an index of a box of `shape`, in row-major order."""
        return tuple(block.let(e, "i") for e in ix.delinearize(self.position, shape, block.multiples))


def all_of(*masks: Expr | None) -> Expr | None:
    """The conjunction of masks; None is a mask that is true everywhere."""
    conditions = [m for m in masks if m is not None]
    return reduce(partial(k.binary, "and"), conditions) if conditions else None


def tile_index(
    block: Block, first: Expr, size: int, shape: Shape, axis: int, *, wraps: bool = False, tile: int = 0
) -> tuple[Index, Expr | None]:
    """The index of `size` elements of a box of `shape` from element `first` on along `axis`, and the mask of those in
    bounds (None: all). wraps, tile: see `Span.of`."""
    inner = shape[-1]
    if (
        len(shape) > 1 and isinstance(inner, int) and inner % (tile or size) == 0
    ):  # all are in one row of the innermost axis
        line = block.let(k.binary("div", first, integer(inner)), "n")
        outer = [block.let(e, "o") for e in ix.delinearize(line, shape[:-1], {})]
        # not a remainder: Triton must know what it is a multiple of to load contiguous elements at once
        start = ix.sub(first, ix.mul(line, integer(inner)))
        return (*outer, block.let(k.add(start, k.lane_indices(size, axis)), "at")), None
    span = Span.of(block, first, size, product(shape), axis, wraps=wraps, tile=tile)
    return span.index(block, shape), span.in_bounds


def read_at(block: Block, buffer: Buffer, flat: Expr, mask: Expr | None, bounds: Bounds = ()) -> Expr:
    """Load the elements at `flat`. bounds: masks of elements that no result needs; such a mask is dropped where the
    offsets do not vary along its axis."""
    if mask is not None and any(mask is b for b in bounds) and not _varies(flat, mask):
        mask = None
    if mask is None and flat.tile is None:
        return block.let(k.load(buffer, flat))
    if mask is None:
        return block.let(k.gather(buffer, flat))
    flat, mask = k.broadcast(flat, mask)
    return block.let(k.gather(buffer, flat, mask))


def constant_tile(dtype: DType, tile: Tile, value: float = 0) -> Lit:
    """A tile whose elements are all `value`."""
    return Lit(dtype, tile[0] * tile[1], float(value) if dtype.is_float else value, tile=tile)


def register(block: Block, hint: str, value: Expr) -> Buffer:
    """A register initialized with `value`."""
    buffer = block.alloc(hint, value.dtype, 1, lanes=value.lanes, tile=value.tile)
    block.store(buffer, ZERO, value)
    return buffer


def store_tile(block: Block, buffer: Buffer, flat: Expr, value: Expr, mask: Expr | None = None) -> None:
    """Store `value` at the offsets `flat`, broadcast to a common tile."""
    flat, value, *masks = k.broadcast(flat, value, *(() if mask is None else (mask,)))
    block.store(buffer, flat, value, *masks)


def if_last(block: Block, parts: int, counter: Buffer, index: Expr, then: Callable[[Block], None]) -> None:
    """Increment the counter of finished parts; the program that finishes last resets it and runs `then`, and sees what
    the others stored."""
    count = block.fresh("before")
    block.stmts.append(Increment(count, counter, index))

    def reset_and_continue(block: Block) -> None:
        block.store(counter, index, ZERO)
        then(block)

    block.when(k.binary("eq", count, integer(parts - 1)), reset_and_continue)


def offset_of(coordinates: Sequence[Expr], strides: Sequence[DimLike]) -> Expr:
    """The offset of an element: the sum of coordinate * stride."""
    total: Expr = ZERO
    for e, s in zip(coordinates, strides, strict=True):
        if s != 0:  # else the offset is the same for all of them
            total = ix.add(total, ix.mul(e, dim_expr(s)))
    return total


def repack(axes: tuple[Axis, ...], index: int, offset: DimLike, dtype: DType) -> Pack | None:
    """The repacking of a constant, input `index`, to the order of `axes`; None if its sizes are symbolic."""
    if any(isinstance(n, Dim) for x in axes for n in (x.extent, x.b, offset)):
        return None
    extents, strides = static_shape(tuple(x.extent for x in axes)), static_shape(tuple(x.b for x in axes))
    (start,) = static_shape((offset,))

    def write(array: np.ndarray, out: np.ndarray) -> None:
        out.reshape(extents)[...] = view_of_flat(array, extents, strides, start)

    keeps_order = start == 0 and all(
        n == 1 or s == dense for n, s, dense in zip(extents, strides, Layout.contiguous(extents).strides, strict=True)
    )
    key = f"columns{extents}{strides}{start}"
    return Pack(index, key, dtype, prod(extents), write, keeps_order=keeps_order)


def _varies(flat: Expr, mask: Expr) -> bool:
    """Whether the offsets vary along an axis along which the mask does."""
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
    in_bounds: Expr | None = None,
    stored_index: Index | None = None,
) -> None:
    """Evaluate a result at `index` under `mask`, and store it where it is also in bounds. stored_index: the index to
    store it at, if that differs."""
    value = em.value(block, root, index, mask)
    flat = ix.linear(index if stored_index is None else stored_index, layout.strides, layout.offset)
    store_tile(block, buffer, flat, value, all_of(in_bounds, mask))


@dataclass(frozen=True)
class Group:
    """A fused group as its kernels see it: its body, the layouts of operands and results, and their aligned buffers.
    The body's results past the last layout are computed, but not stored. constants: which operands are constants.
    unread: which operands no kernel reads."""

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    operands: Operands
    constants: frozenset[int] = frozenset()
    unread: tuple[int, ...] = ()

    @staticmethod
    def of(
        body: Graph, ins: Iterable[Layout], outs: Iterable[Layout], constants: frozenset[int] = frozenset()
    ) -> Group:
        plain = Operands.of(body)
        aligned = (tuple(replace(b, align=ALIGNMENT_BYTES) for b in buffers) for buffers in (plain.ins, plain.outs))
        return Group(body, tuple(ins), tuple(outs), Operands(*aligned), constants)

    def memory(self, operand: Node) -> tuple[int, Layout]:
        """The input that holds an operand of a node of the body, and its layout there. Raises CompileError if no
        strides express it."""
        return operand_memory(self.body, operand, self.ins)

    def without(self, *indices: int) -> Group:
        """The same group, whose kernels do not read these operands."""
        return replace(self, unread=(*self.unread, *indices))

    def storing(self, count: int) -> Group:
        """The same group, whose kernels store its first `count` results alone."""
        operands = replace(self.operands, outs=self.operands.outs[:count])
        return replace(self, outs=self.outs[:count], operands=operands)

    def emitter(self, bounds: Bounds = ()) -> Emitter:
        """An emitter of the group's values. bounds: as in `read_at`."""
        leaves = zip(self.body.inputs, self.operands.ins, self.ins, strict=True)
        return Emitter({n: leaf(b, lay, bounds) for n, b, lay in leaves})

    @property
    def results(self) -> Iterator[tuple[Node, Buffer, Layout]]:
        return zip(self.body.outputs, self.operands.outs, self.outs, strict=False)

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
        """A launch of `top`'s statements, with `extra` buffers after the group's own."""
        group_params = zip(self.operands.params, self.operands.args, strict=True)
        pairs = [*((b, a) for b, a in group_params if a.kind != "in" or a.index not in self.unread), *extra]
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), chunks)
        hints = (("warps", warps), ("stages", stages), *self._index_hints)
        kernel = Kernel(name, tuple(b for b, _ in pairs), dims, chunk, dim_expr(chunks), top.body, hints=hints)
        return Step(kernel, tuple(a for _, a in pairs))

    @property
    def _index_hints(self) -> tuple[tuple[str, int], ...]:
        """32-bit indices, unless the group computes with an index of 64 bits as a value."""
        ops = ((n.op, n.types[0].dtype.bits) for n in self.body.nodes())
        if any(isinstance(op, ArgReduce | DimValue) or (isinstance(op, Iota) and bits > 32) for op, bits in ops):
            return ()
        sizes = (t.size for n in self.body.nodes() for t in n.types)
        return index_hints(*map(end_offset, (*self.ins, *self.outs)), *sizes)


def index_hints(*sizes: DimLike) -> tuple[tuple[str, int], ...]:
    """The hint that indices fit in 32 bits, if operands of these sizes, in elements, allow it."""
    return (HINT_32_BIT_INDICES,) if all(isinstance(n, int) and n <= MAX_ELEMENTS_32_BIT for n in sizes) else ()


def drop_narrow_hints(low: Lowered) -> Lowered:
    """Remove the 32-bit hint from kernels whose temporaries are too large for it."""

    def step(own: Step) -> Step:
        pairs = zip(own.kernel.params, own.args, strict=True)
        if index_hints(*(floordiv(low.temps[a.index], b.dtype.nbytes) for b, a in pairs if a.kind == "temp")):
            return own
        return replace(
            own, kernel=replace(own.kernel, hints=tuple(h for h in own.kernel.hints if h != HINT_32_BIT_INDICES))
        )

    return replace(low, steps=tuple(map(step, low.steps)))


def end_offset(layout: Layout) -> DimLike:
    """The offset just past the last element of a value."""
    end = layout.offset
    for n, s in zip(layout.shape, layout.strides, strict=True):
        end = end + dim_max((n - 1) * s, 0)
    return end + 1


def memory_order(group: Group, anchor: Node) -> tuple[int, ...]:
    """The dimensions of `anchor` by decreasing stride in the first result, which may be a transpose of it."""
    dims = range(len(anchor.types[0].shape))
    layout = pull_back(group.body.outputs[0], anchor, group.outs[0])
    return tuple(dims if layout is None else sorted(dims, key=lambda d: -estimate(layout.strides[d])))


@dataclass
class Elements:
    """A kernel in which each program computes contiguous elements of `anchor` and the epilogue on them."""

    group: Group
    anchor: Node
    top: Block
    chunk: Var
    tile: Tile
    span: Span
    index: Index
    em: Emitter

    @staticmethod
    def of(group: Group, anchor: Node, machine: Machine, min_size: int = 32, max_size: int = 256) -> Elements:
        """min_size, max_size: bounds of the elements per program."""
        top, chunk, shape = Block(), k.var("chunk"), anchor.types[0].shape
        total = product(shape)
        size = min(max_size, max(min_size, power_of_two(estimate(total) // machine.target_programs)))
        span = Span.of(top, k.mul(chunk, integer(size)), size, total, 1)
        em = group.emitter(() if span.in_bounds is None else (span.in_bounds,))
        order = memory_order(group, anchor)
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
        """Store the group's results and return the launch."""
        for root, buffer, layout in self.group.results:
            index = result_index(self.top, root, self.anchor, self.index)
            write(self.top, self.em, root, buffer, layout, index, self.span.in_bounds)
        chunks = ceildiv(product(self.anchor.types[0].shape), self.tile[1])
        return self.group.step(name, self.chunk, chunks, self.top, *extra)


__all__ = [
    "ALIGNMENT_BYTES",
    "HINT_32_BIT_INDICES",
    "Bounds",
    "Elements",
    "Group",
    "Span",
    "all_of",
    "constant_tile",
    "drop_narrow_hints",
    "end_offset",
    "if_last",
    "index_hints",
    "leaf",
    "offset_of",
    "power_of_two",
    "read_at",
    "register",
    "repack",
    "store_tile",
    "tile_index",
    "write",
]
