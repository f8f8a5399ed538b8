"""A contraction's B of constant levels of 4 or 8 bits: what is packed of it, and the tile that it stands for in a turn.

    (q - zero) * scale        zero and scale of a block of the reduction, and of a column

Levels lie with their columns side by side, or for a single row, with the terms of each column so. Two of 4 bits share a
byte: those of the first half of a turn, and those of its second, which are multiplied one after the other. For a single
row, all that fit share a word of 32 bits in the same way.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import DType, bf16, f16, f32, i8, static_shape, u8, u32
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES
from ingot.schedule.group_io import operand_memory
from ingot.schedule.lowered import Arg, Pack
from ingot.support.dataclass import dataclass

LEAST, MOST = 16, 64  # terms of a product, terms of a turn
EXACT = {f16: 11, bf16: 8, f32: 24}  # bits of an integer that a type holds


@dataclass(frozen=True)
class Parameter:
    """Zeros or scales: a number, or where they lie by the loops of the contraction. ready: before the kernel begins."""

    source: Buffer | Lit
    offset: int = 0
    columns: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    ready: bool = True


@dataclass(frozen=True)
class Levels:
    """turn: terms of the reduction in a turn, which have one zero and scale for each column if `even`. halves: parts of
    a turn whose levels share bytes. bias: added to the levels where they were packed. width: columns. bits: of a level.
    narrow: zeros are integers, and scales of the type that the levels stand for."""

    buffer: Buffer
    turn: int
    even: bool
    halves: int
    bias: int
    width: int
    zero: Parameter
    scale: Parameter
    dtype: DType
    bits: int
    narrow: bool

    @property
    def parameters(self) -> tuple[Parameter, Parameter]:
        return self.zero, self.scale

    def half(self, block: Block, packed: Expr, number: int) -> Expr:
        """The levels of one part of a turn."""
        if self.halves == 1:
            return packed
        if number == 0:
            return block.let(k.binary("and", packed, k.lit(15, u8)))
        return block.let(k.binary("lshr", packed, k.lit(4, u8)))

    def meant(self, levels: Expr, zero: Expr, scale: Expr) -> Expr:
        """What levels stand for, rounded once: in f32, or in their own type, where that holds what is multiplied."""
        wide = self.own
        moved = k.cast(zero, wide)
        moved = moved if not self.bias else k.add(moved, k.lit(float(self.bias), wide))
        return k.cast(k.mul(k.binary("sub", k.cast(levels, wide), moved), k.cast(scale, wide)), self.dtype)

    @property
    def own(self) -> DType:
        """The type in which levels, less their zero, are multiplied by their scale."""
        exact = self.narrow and self.bits + 1 <= EXACT[self.dtype]
        return self.dtype if exact else f32


@dataclass(frozen=True)
class PackedLevels:
    """The operand; the packs that its kernel reads, and as parameters of it, of which pack each; the group's inputs
    that it does not read."""

    levels: Levels
    packs: tuple[Pack, ...]
    params: tuple[tuple[Buffer, int], ...]
    left: tuple[int, ...]

    def packed(self, first: int = 0) -> tuple[tuple[Buffer, Arg], ...]:
        """The kernel's parameters, where it has so many packs before these."""
        return tuple((buffer, Arg("pack", first + i)) for buffer, i in self.params)


def levels_of(
    body: Graph,
    anchor: Node,
    ins: tuple[Layout, ...],
    buffers: tuple[Buffer, ...],
    a: Layout,
    loops: Loops,
    most: int,
    *,
    lines: bool = False,
    mark: str = "",
    constant: tuple[bool, ...] = (),
) -> PackedLevels:
    """The levels that `anchor` multiplies.

    loops: with the strides of the levels in B's place. most: terms of a turn. lines: the terms of a column lie side by
    side. mark: of the names of buffers. constant: of the group's inputs, which are.
    """
    w = anchor.inputs[1]
    q, zero, scale = w.inputs
    at, layout = operand_memory(body, q, ins)
    (block,) = static_shape((loops.reduce[-1].extent,))
    turn = min(block & -block, most)
    even = turn >= LEAST
    bits, signed = q.dtype.bits, q.dtype.kind == "i"
    halves = u32.bits // bits if lines else 2 if bits == 4 and turn >= 2 * LEAST else 1
    most = halves if lines and not even else most  # what lines are padded to
    bias = 1 << (bits - 1) if signed and (lines or bits == 4) else 0
    stored = u32 if lines else i8 if q.dtype == i8 else u8
    packs = [_packed(at, layout, loops, turn if even else most, halves, bias, stored, bits if lines else 0)]
    params = [(Buffer(f"b{mark}", packs[0].dtype, align=ALIGNMENT_BYTES), 0)]
    left = [at]

    def parameter(name: str, p: Node) -> Parameter:
        if p.constant is not None and p not in body.inputs:
            return Parameter(k.lit(float(p.constant.value.reshape(()).item()), f32))
        index, own = operand_memory(body, p, ins)
        buffer = buffers[index]
        spread = own.broadcast(w.shape, tuple(range(w.type.rank - p.type.rank, w.type.rank)))
        if p.dtype.bits < 8:  # in bytes: Triton has nothing narrower
            wide = i8 if p.dtype.kind == "i" else u8
            packs.append(_bytes(index, wide, prod(static_shape(p.shape))))
            buffer = Buffer(f"{name}{mark}", wide, align=ALIGNMENT_BYTES)
            params.append((buffer, len(packs) - 1))
            left.append(index)
        walked = loops_of(anchor, a, spread)
        columns, reduce = (static_shape(tuple(x.b for x in axes)) for axes in (walked.cols, walked.reduce))
        (offset,) = static_shape((spread.offset,))
        return Parameter(buffer, offset, columns, reduce, bool(constant) and constant[index])

    width = prod(static_shape(tuple(x.extent for x in loops.cols)))
    found = parameter("zeros", zero), parameter("scales", scale)
    # a scale of a wider type, or a zero that is no integer, is not held by the levels' own
    narrow = scale.dtype == w.dtype and not zero.dtype.is_float
    levels = Levels(params[0][0], turn if even else most, even, halves, bias, width, *found, w.dtype, bits, narrow)
    return PackedLevels(levels, tuple(packs), tuple(params), tuple(left))


def _packed(
    index: int, layout: Layout, loops: Loops, turn: int, halves: int, bias: int, dtype: DType, lines: int
) -> Pack:
    """lines: bits of a level where the terms of a column lie side by side, in whole turns; else 0."""
    axes: tuple[Axis, ...] = (*loops.reduce, *loops.cols)
    extents, strides = (static_shape(tuple(e)) for e in ([x.extent for x in axes], [x.b for x in axes]))
    (start,) = static_shape((layout.offset,))
    depth = prod(extents[: len(loops.reduce)])
    width = prod(extents[len(loops.reduce) :])
    whole = -(-depth // turn) * turn if lines else depth

    def write(array: np.ndarray, out: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)[start:]
        steps = tuple(s * flat.itemsize for s in strides)
        levels = as_strided(flat, extents, steps, writeable=False).reshape(depth, width)
        levels = (levels.astype(np.int16) + bias).astype(dtype.numpy)
        if halves > 1:
            levels = np.pad(levels, ((0, whole - depth), (0, 0)))
            parts = levels.reshape(-1, halves, turn // halves, width)
            levels = parts[:, 0].copy()
            for number in range(1, halves):
                levels |= parts[:, number] << (number * (lines or 4))
        out[:] = (levels.reshape(-1, width).T if lines else levels).reshape(-1)

    key = f"levels{extents}{strides}{start} {turn}x{halves}+{bias}{f' lines {lines}' if lines else ''}"
    return Pack(index, key, dtype, whole * width // halves, write)


def _bytes(index: int, dtype: DType, size: int) -> Pack:
    def write(array: np.ndarray, out: np.ndarray) -> None:
        out[:] = array.astype(dtype.numpy).reshape(-1)

    return Pack(index, "bytes", dtype, size, write)


__all__ = ["MOST", "Levels", "PackedLevels", "Parameter", "levels_of"]
