"""A contraction's constant B of 4- or 8-bit levels: how it is packed, and how a tile of it is dequantized.

    (q - zero) * scale        one zero and scale per block of the reduction and column

Levels are packed with contiguous terms. A 32-bit word holds as many levels of a column as fit, one of each part of a
block. They are not converted from integers: level q at bit `place` of a word, among the fraction's bits of the float32
2^(23 - place), is 2^(23 - place) + q, from which 2^(23 - place) + zero is subtracted. All of this is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import DType, f32, i8, static_shape, u8, u32
from ingot.schedule.axes import Axis
from ingot.schedule.block import Block
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group
from ingot.schedule.lowered import Arg, Pack
from ingot.support.dataclass import dataclass

MAX_FEW_ROWS = 64  # of A, whose products with levels take less time than what loads these
MIN_TERMS = 16  # of a tensor core product
MAX_WORDS = 16  # of a block
FRACTION_BITS, EXPONENT_BIAS = 23, 127  # of a float32


@dataclass(frozen=True)
class Parameter:
    """Zeros or scales: a literal, or a buffer with strides along the contraction's columns and reduction.
    is_constant: available before the kernel starts."""

    source: Buffer | Lit
    offset: int = 0
    columns: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    is_constant: bool = True


@dataclass(frozen=True)
class Levels:
    """Packed levels.

    step: terms of a block. has_one_scale: all terms of a block share one zero and scale per column. bias: what packing
    added to the levels. bits: of a level. has_exact_parameters: zeros are integers, and scales have the type of the
    values.
    """

    buffer: Buffer
    step: int
    has_one_scale: bool
    bias: int
    zero: Parameter
    scale: Parameter
    bits: int
    has_exact_parameters: bool

    @property
    def parameters(self) -> tuple[Parameter, Parameter]:
        return self.zero, self.scale

    @property
    def sources(self) -> tuple[Buffer, ...]:
        """The buffers that are read."""
        return tuple(
            dict.fromkeys(b for b in (self.buffer, *(p.source for p in self.parameters)) if isinstance(b, Buffer))
        )

    @property
    def parts(self) -> int:
        """Levels of a word."""
        return u32.bits // self.bits

    @property
    def words(self) -> int:
        """Words of a block."""
        return self.step // self.parts

    def row_words(self, depth: int) -> int:
        """Words of a column of `depth` terms, which is padded to whole blocks."""
        return -(-depth // self.step) * self.words

    def differences(self, block: Block, words: Expr, zeros: Sequence[Expr]) -> Iterator[Expr]:
        """level - zero of each part of `words`, exact in f32. zeros: of each part."""
        levels_per_shift = FRACTION_BITS // self.bits
        for part, zero in enumerate(zeros):
            place = part % levels_per_shift * self.bits  # of the lowest bit, after a shift into the fraction
            if part and place == 0:
                words = block.let(k.binary("lshr", words, k.lit(levels_per_shift * self.bits, u32)), "q")
            fraction = k.binary("and", words, k.lit((1 << self.bits) - 1 << place, u32))
            yield self.difference(block, fraction, FRACTION_BITS - place, zero)

    def difference(self, block: Block, fraction: Expr, exponent: int, zero: Expr) -> Expr:
        """level - zero, exact in f32. fraction: the level as bits of the fraction of 2^exponent."""
        shifted = k.bitcast(k.binary("or", fraction, k.lit(EXPONENT_BIAS + exponent << FRACTION_BITS, u32)), f32)
        shift, zero = k.lit(2.0**exponent + self.bias, f32), k.cast(zero, f32)
        if self.has_exact_parameters:
            return k.binary("sub", shifted, block.let(k.add(zero, shift), "zero"))
        return k.binary("sub", k.binary("sub", shifted, shift), zero)


@dataclass(frozen=True)
class PackedLevels:
    """Levels and what their kernel reads: packs; params, each a buffer and the index of its pack. unread: inputs of the
    group that the packs replace."""

    levels: Levels
    packs: tuple[Pack, ...]
    params: tuple[tuple[Buffer, int], ...]
    unread: tuple[int, ...]

    def arguments(self, first: int = 0) -> tuple[tuple[Buffer, Arg], ...]:
        """The kernel's arguments, if `first` packs come before these."""
        return tuple((buffer, Arg("pack", first + i)) for buffer, i in self.params)


def levels_of(group: Group, anchor: Node, a: Layout, loops: Loops, suffix: str = "") -> PackedLevels:
    """The packed levels that `anchor` multiplies. loops: of the contraction, with the strides of the levels as B's.
    suffix: of buffer names."""
    w = anchor.inputs[1]
    q, zero, scale = w.inputs
    at, layout = group.memory(q)
    (block,) = static_shape((loops.reduce[-1].extent,))
    bits, signed = q.dtype.bits, q.dtype.kind == "i"
    parts = u32.bits // bits
    step = min(block & -block, MAX_WORDS * parts)
    has_one_scale = step >= MIN_TERMS
    step = step if has_one_scale else parts  # columns are padded to it
    bias = 1 << (bits - 1) if signed else 0
    packs = [_level_pack(at, layout, loops, step, bits, bias)]
    params = [(Buffer(f"b{suffix}", packs[0].dtype, align=ALIGNMENT_BYTES), 0)]
    unread = [at]

    def parameter(name: str, p: Node) -> Parameter:
        if p.constant is not None and p not in group.body.inputs:
            return Parameter(k.lit(float(p.constant.value.reshape(()).item()), f32))
        index, stored = group.memory(p)
        buffer = group.operands.ins[index]
        broadcast = stored.broadcast(w.shape, tuple(range(w.type.rank - p.type.rank, w.type.rank)))
        if p.dtype.bits < 8:  # in bytes: Triton has nothing narrower
            byte_dtype = i8 if p.dtype.kind == "i" else u8
            packs.append(_byte_pack(index, byte_dtype, prod(static_shape(p.shape))))
            buffer = Buffer(f"{name}{suffix}", byte_dtype, align=ALIGNMENT_BYTES)
            params.append((buffer, len(packs) - 1))
            unread.append(index)
        parameter_loops = loops_of(anchor, a, broadcast)
        columns, reduce = (
            static_shape(tuple(x.b for x in axes)) for axes in (parameter_loops.cols, parameter_loops.reduce)
        )
        (offset,) = static_shape((broadcast.offset,))
        return Parameter(buffer, offset, columns, reduce, index in group.constants)

    parameters = parameter("zeros", zero), parameter("scales", scale)
    # a scale of a wider type, or a zero that is not an integer, is not exact in the dtype of the values
    has_exact_parameters = scale.dtype == w.dtype and not zero.dtype.is_float
    levels = Levels(params[0][0], step, has_one_scale, bias, *parameters, bits, has_exact_parameters)
    return PackedLevels(levels, tuple(packs), tuple(params), tuple(unread))


def _level_pack(index: int, layout: Layout, loops: Loops, step: int, bits: int, bias: int) -> Pack:
    axes: tuple[Axis, ...] = (*loops.reduce, *loops.cols)
    extents, strides = (static_shape(tuple(e)) for e in ([x.extent for x in axes], [x.b for x in axes]))
    (start,) = static_shape((layout.offset,))
    depth, width = prod(extents[: len(loops.reduce)]), prod(extents[len(loops.reduce) :])
    padded_depth, parts = -(-depth // step) * step, u32.bits // bits

    def write(array: np.ndarray, out: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)[start:]
        steps = tuple(s * flat.itemsize for s in strides)
        levels = as_strided(flat, extents, steps, writeable=False).reshape(depth, width)
        levels = np.pad((levels.astype(np.int16) + bias).astype(np.uint8), ((0, padded_depth - depth), (0, 0)))
        blocks = levels.reshape(-1, parts, step // parts, width)
        words = blocks[:, 0].astype(np.uint32)
        for part in range(1, parts):
            words |= blocks[:, part].astype(np.uint32) << (part * bits)
        out[:] = words.reshape(-1, width).T.reshape(-1)

    key = f"levels{extents}{strides}{start} {step}x{parts}+{bias}"
    return Pack(index, key, u32, padded_depth * width // parts, write)


def _byte_pack(index: int, dtype: DType, size: int) -> Pack:
    def write(array: np.ndarray, out: np.ndarray) -> None:
        out[:] = array.astype(dtype.numpy).reshape(-1)

    return Pack(index, "bytes", dtype, size, write)


def step_of_levels(levels: Levels, dtype: DType, rows: int) -> int:
    """The terms of a k-step of levels, which is longer for few rows, as their loads take more time than products."""
    words = 2 * MIN_TERMS if rows <= MAX_FEW_ROWS and dtype.bits == 16 else MIN_TERMS
    return max(levels.words, words) * levels.parts


__all__ = ["MIN_TERMS", "Levels", "PackedLevels", "Parameter", "levels_of", "step_of_levels"]
