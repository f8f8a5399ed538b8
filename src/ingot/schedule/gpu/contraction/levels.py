"""A contraction's constant B of 4- or 8-bit levels: how it is packed, and how a tile of it is dequantized.

    (q - zero) * scale        one zero and scale per block of the reduction and column

Levels are packed with contiguous columns or, for a single row, with contiguous terms. A byte holds two 4-bit levels:
one of the first half of a k-step and one of the second; the halves are multiplied one after the other. For a single
row, a 32-bit word holds as many levels as fit, one of each part of the k-step.
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

MIN_TERMS = 16  # of a tensor core product
MAX_STEP = 64
EXACT_INTEGER_BITS = {f16: 11, bf16: 8, f32: 24}


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

    step: terms of a k-step. has_one_scale: all terms of a k-step share one zero and scale per column. packed_halves:
    parts of a k-step that share bytes. bias: what packing added to the levels. width: columns. dtype: of the values
    that levels represent. bits: of a level. has_exact_parameters: zeros are integers, and scales have type `dtype`.
    """

    buffer: Buffer
    step: int
    has_one_scale: bool
    packed_halves: int
    bias: int
    width: int
    zero: Parameter
    scale: Parameter
    dtype: DType
    bits: int
    has_exact_parameters: bool

    @property
    def parameters(self) -> tuple[Parameter, Parameter]:
        return self.zero, self.scale

    def unpack(self, block: Block, packed: Expr, half: int) -> Expr:
        """The levels of one part of a k-step."""
        if self.packed_halves == 1:
            return packed
        if half == 0:
            return block.let(k.binary("and", packed, k.lit(15, u8)))
        return block.let(k.binary("lshr", packed, k.lit(4, u8)))

    def dequantize(self, levels: Expr, zero: Expr, scale: Expr) -> Expr:
        """The values that levels represent, rounded once."""
        dtype = self.scale_dtype
        biased_zero = k.cast(zero, dtype)
        biased_zero = biased_zero if not self.bias else k.add(biased_zero, k.lit(float(self.bias), dtype))
        return k.cast(k.mul(k.binary("sub", k.cast(levels, dtype), biased_zero), k.cast(scale, dtype)), self.dtype)

    @property
    def scale_dtype(self) -> DType:
        """The dtype that holds level - zero exactly, in which it is multiplied by the scale."""
        is_exact = self.has_exact_parameters and self.bits + 1 <= EXACT_INTEGER_BITS[self.dtype]
        return self.dtype if is_exact else f32


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


def levels_of(
    body: Graph,
    anchor: Node,
    ins: tuple[Layout, ...],
    buffers: tuple[Buffer, ...],
    a: Layout,
    loops: Loops,
    max_step: int,
    *,
    is_k_contiguous: bool = False,
    suffix: str = "",
    constant: tuple[bool, ...] = (),
) -> PackedLevels:
    """The packed levels that `anchor` multiplies.

    loops: of the contraction, with the strides of the levels as B's. max_step: the largest k-step. is_k_contiguous:
    pack the terms of a column contiguously. suffix: of buffer names. constant: which of the group's inputs are
    constants.
    """
    w = anchor.inputs[1]
    q, zero, scale = w.inputs
    at, layout = operand_memory(body, q, ins)
    (block,) = static_shape((loops.reduce[-1].extent,))
    step = min(block & -block, max_step)
    has_one_scale = step >= MIN_TERMS
    bits, signed = q.dtype.bits, q.dtype.kind == "i"
    packed_halves = u32.bits // bits if is_k_contiguous else 2 if bits == 4 and step >= 2 * MIN_TERMS else 1
    max_step = packed_halves if is_k_contiguous and not has_one_scale else max_step  # columns are padded to it
    bias = 1 << (bits - 1) if signed and (is_k_contiguous or bits == 4) else 0
    packed_dtype = u32 if is_k_contiguous else i8 if q.dtype == i8 else u8
    pack_step, word_bits = step if has_one_scale else max_step, bits if is_k_contiguous else 0
    packs = [_level_pack(at, layout, loops, pack_step, packed_halves, bias, packed_dtype, word_bits)]
    params = [(Buffer(f"b{suffix}", packs[0].dtype, align=ALIGNMENT_BYTES), 0)]
    unread = [at]

    def parameter(name: str, p: Node) -> Parameter:
        if p.constant is not None and p not in body.inputs:
            return Parameter(k.lit(float(p.constant.value.reshape(()).item()), f32))
        index, stored = operand_memory(body, p, ins)
        buffer = buffers[index]
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
        return Parameter(buffer, offset, columns, reduce, bool(constant) and constant[index])

    width = prod(static_shape(tuple(x.extent for x in loops.cols)))
    parameters = parameter("zeros", zero), parameter("scales", scale)
    # a scale of a wider type, or a zero that is not an integer, is not exact in the dtype of the values
    has_exact_parameters = scale.dtype == w.dtype and not zero.dtype.is_float
    levels = Levels(
        params[0][0],
        step if has_one_scale else max_step,
        has_one_scale,
        packed_halves,
        bias,
        width,
        *parameters,
        w.dtype,
        bits,
        has_exact_parameters,
    )
    return PackedLevels(levels, tuple(packs), tuple(params), tuple(unread))


def _level_pack(
    index: int, layout: Layout, loops: Loops, step: int, packed_halves: int, bias: int, dtype: DType, word_bits: int
) -> Pack:
    """word_bits: bits of a level if the terms of a column are packed contiguously into words; else 0."""
    axes: tuple[Axis, ...] = (*loops.reduce, *loops.cols)
    extents, strides = (static_shape(tuple(e)) for e in ([x.extent for x in axes], [x.b for x in axes]))
    (start,) = static_shape((layout.offset,))
    depth = prod(extents[: len(loops.reduce)])
    width = prod(extents[len(loops.reduce) :])
    padded_depth = -(-depth // step) * step if word_bits else depth

    def write(array: np.ndarray, out: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1)[start:]
        steps = tuple(s * flat.itemsize for s in strides)
        levels = as_strided(flat, extents, steps, writeable=False).reshape(depth, width)
        levels = (levels.astype(np.int16) + bias).astype(dtype.numpy)
        if packed_halves > 1:
            levels = np.pad(levels, ((0, padded_depth - depth), (0, 0)))
            parts = levels.reshape(-1, packed_halves, step // packed_halves, width)
            levels = parts[:, 0].copy()
            for half in range(1, packed_halves):
                levels |= parts[:, half] << (half * (word_bits or 4))
        out[:] = (levels.reshape(-1, width).T if word_bits else levels).reshape(-1)

    key = f"levels{extents}{strides}{start} {step}x{packed_halves}+{bias}{f' lines {word_bits}' if word_bits else ''}"
    return Pack(index, key, dtype, padded_depth * width // packed_halves, write)


def _byte_pack(index: int, dtype: DType, size: int) -> Pack:
    def write(array: np.ndarray, out: np.ndarray) -> None:
        out[:] = array.astype(dtype.numpy).reshape(-1)

    return Pack(index, "bytes", dtype, size, write)


__all__ = ["MAX_STEP", "Levels", "PackedLevels", "Parameter", "levels_of"]
