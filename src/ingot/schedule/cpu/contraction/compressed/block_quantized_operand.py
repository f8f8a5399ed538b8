"""Packing of a constant block-quantized B. Packs depend on the weight and the machine alone, so that all kernels that
read a weight share them: products of one row and of many, and lookups of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.array import Rows
from ingot.ir.kernel import Buffer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import f32, static_shape, u8, u32
from ingot.schedule.axes import level_planes
from ingot.schedule.cpu.contraction.group import ContractionGroup, Param
from ingot.schedule.cpu.contraction.operands import BlockQuantized, Factor
from ingot.schedule.cpu.contraction.pack import strided_view
from ingot.schedule.group_io import operand_memory
from ingot.schedule.lowered import Arg, Pack
from ingot.support.dataclass import dataclass
from ingot.support.files import release

_LEVELS_AT_ONCE = 1 << 18  # bytes that fit in caches
Packed = tuple[BlockQuantized, tuple[Param, ...], tuple[Pack, ...]]


@dataclass(frozen=True)
class Dims:
    """The roles of the dimensions of levels in a product: its column, the blocks of its sum, and the place in a
    block."""

    column: int
    blocks: tuple[int, ...]
    place: int


def block_quantized_operand(g: ContractionGroup, widths: Sequence[int]) -> Packed:
    """(B of a product, the kernel's parameters, the packs). widths: the columns of each panel."""
    w, op = g.anchor.inputs[1], g.anchor.op
    assert isinstance(op, ops.DotGeneral)
    (column,) = op.free(g.anchor.inputs[0].type.rank, w.type.rank)[1]
    *blocks, place = op.contract[1]
    return packed_levels(g.body, w, g.ins, Dims(column, tuple(blocks), place), widths)


def packed_levels(body: Graph, w: Node, ins: tuple[Layout, ...], dims: Dims, widths: Sequence[int]) -> Packed:
    """(the weight form `w`, the kernel's parameters, the packs). widths: the columns of each panel, full vectors."""
    levels, *parameters = w.inputs
    bits, zero = levels.dtype.bits, k.lit(0.0, f32)
    if isinstance(w.op, ops.DequantizeBlocks):
        bits, zero = w.op.bits, k.lit(float(w.op.zero), f32)
    planes, bias = level_planes(bits), 0
    if levels.dtype.kind == "i":
        bias = 1 << (sum(planes) - 1)  # levels are packed as unsigned
    packs: list[Pack] = []
    params: list[Param] = []

    def add(name: str, pack: Pack) -> Buffer:
        params.append((Buffer(name, pack.dtype), Arg("pack", len(packs))))
        packs.append(pack)
        return params[-1][0]

    words = add("b", _pack_levels(*operand_memory(body, levels, ins), dims, planes, bias, widths))

    def read(name: str, p: Node, shift: int = 0) -> Factor:
        if p.constant is not None and p not in body.inputs:
            return Factor(k.lit(float(p.constant.value.reshape(()).item()) + shift, f32))
        index, layout = operand_memory(body, p, ins)
        layout = layout.broadcast(w.shape, tuple(range(w.type.rank - p.type.rank, w.type.rank)))
        rows, blocks = _rows(layout, dims)
        return Factor(add(name, _pack_factor(p, index, layout, rows, dims, shift, widths)), prod(rows), blocks)

    if isinstance(w.op, ops.DequantizeBlocks):
        parts = [tuple(read(f"{name}{i}", p) for i, p in enumerate(part)) for name, part in
                 zip(("scales", "minima"), w.op.parts(parameters), strict=False)]  # fmt: skip
        zeros = Factor(k.lit(zero.value + bias, f32))
        form = BlockQuantized(words, planes, zeros, parts[0], parts[1] if len(parts) > 1 else (), True, bias)
        return form, tuple(params), tuple(packs)
    has_integer_zeros = parameters[0].dtype.is_integer
    zeros = read("zeros", parameters[0], bias if has_integer_zeros else 0)
    form = BlockQuantized(words, planes, zeros, (read("scales", parameters[1]),), (), has_integer_zeros, bias)
    return form, tuple(params), tuple(packs)


def _rows(layout: Layout, dims: Dims) -> tuple[tuple[int, ...], int]:
    """(the extents of the block dimensions along which zeros or factors vary, the number of blocks that share each)"""
    extents, strides = (static_shape(tuple(of[d] for d in dims.blocks)) for of in (layout.shape, layout.strides))
    varying = max((i + 1 for i, (n, s) in enumerate(zip(extents, strides, strict=True)) if n != 1 and s), default=0)
    return extents[:varying], prod(extents[varying:])


def _pack_factor(
    p: Node, index: int, layout: Layout, rows: tuple[int, ...], dims: Dims, shift: int, widths: Sequence[int]
) -> Pack:
    """[panel][rows][columns]. `shift` is added to integer zeros, which are then stored as unsigned bytes."""
    steps = static_shape(tuple(layout.strides[d] for d in (*dims.blocks[: len(rows)], dims.column)))
    columns, offset = static_shape((layout.shape[dims.column], layout.offset))
    dtype = u8 if shift or p.dtype.bits < 8 else p.dtype

    def write(array: np.ndarray, out: np.ndarray) -> None:
        if dtype != p.dtype:
            array = (array.astype(np.int16) + shift).astype(np.uint8)
        dense = strided_view(array, offset, (*rows, columns), steps).reshape(-1, columns)
        start = 0
        for width in widths:
            part = dense[:, start : start + width]
            panel = out[start * len(dense) : (start + width) * len(dense)].reshape(len(dense), width)
            panel[:, : part.shape[1]] = part
            start += width

    key = f"factor {rows}:{steps} {columns} @{offset} {widths[0]}:{widths[-1]} + {shift}"
    return Pack(index, key, dtype, prod(rows) * sum(widths), write)


def _pack_levels(
    index: int, layout: Layout, dims: Dims, planes: tuple[int, ...], bias: int, widths: Sequence[int]
) -> Pack:
    """[panel][blocks][words of each plane][columns] of u32, see `BlockQuantized`."""
    order = (*dims.blocks, dims.place, dims.column)
    *blocks, block, columns = static_shape(tuple(layout.shape[d] for d in order))
    steps, (offset,) = static_shape(tuple(layout.strides[d] for d in order)), static_shape((layout.offset,))
    rows = [-(-block // (32 // bits)) for bits in planes]
    lines = prod(blocks)  # blocks of a column
    count = lines * sum(rows)

    def write_panels(levels: np.ndarray, out: np.ndarray, start: int, width: int) -> None:
        """Panels of `width` columns from column `start` on. levels: [columns, lines, block], at most as many columns as
        the panels have."""
        levels = np.add(levels.view(np.uint8), np.uint8(bias)) if bias else levels.view(np.uint8)
        n = -(-len(levels) // width)
        panels = out[start * count : (start + n * width) * count].reshape(n, lines, sum(rows), width)
        place = row = 0
        for bits, plane_rows in zip(planes, rows, strict=True):
            words = _words(levels, place, bits, is_whole=len(planes) == 1 and not bias)
            if len(levels) == n * width:
                words = words.reshape(n, width, lines, plane_rows).transpose(0, 2, 3, 1)
                panels[:, :, row : row + plane_rows] = words
            else:
                panels[0, :, row : row + plane_rows, : len(levels)] = words.transpose(1, 2, 0)
            place, row = place + bits, row + plane_rows

    def write(array: np.ndarray, out: np.ndarray) -> None:
        dense = strided_view(array, offset, (*blocks, block, columns), steps)
        start = 0
        for width in widths:
            source = dense[..., start : start + width]
            write_panels(np.ascontiguousarray(source.reshape(lines, block, -1).transpose(2, 0, 1)), out, start, width)
            release(source)  # of a large transposed weight, panel by panel
            start += width

    def write_rows(array_rows: Rows, out: np.ndarray) -> None:
        start = 0
        while start < columns:
            width = widths[start // widths[0]]
            n = max(1, min(_LEVELS_AT_ONCE // (width * lines * block), (columns - start) // width))
            stop = min(start + n * width, columns)
            write_panels(array_rows(start, stop).reshape(stop - start, lines, block), out, start, width)
            start = stop

    # whether each row of the array is a column of B
    is_by_row = offset == 0 and steps == (*(Layout.contiguous((*blocks, block)).strides), lines * block)
    key = f"quads {blocks}x{block}:{steps} {columns} @{offset} {widths[0]}:{widths[-1]} {planes} + {bias}"
    return Pack(index, key, u32, count * sum(widths), write, write_rows=write_rows if is_by_row else None)


def _words(levels: np.ndarray, place: int, bits: int, *, is_whole: bool) -> np.ndarray:
    """u8[.., k] -> u32[.., words] of `bits` bits from bit `place` on, four neighbours in the four bytes. is_whole:
    levels have no other bits."""
    per_word = 32 // bits
    padding = -levels.shape[-1] % per_word
    levels = np.pad(levels, [(0, 0)] * (levels.ndim - 1) + [(0, padding)]) if padding else levels
    quads = np.ascontiguousarray(levels).view("<u4")
    if bits == 8:
        return quads
    if not is_whole:
        quads = (quads >> np.uint32(place)) & np.uint32(((1 << bits) - 1) * 0x01010101)
    levels_per_byte = per_word // 4
    words = quads[..., ::levels_per_byte].copy()
    for q in range(1, levels_per_byte):
        words |= quads[..., q::levels_per_byte] << np.uint32(q * bits)
    return words


__all__ = ["Dims", "Packed", "block_quantized_operand", "packed_levels"]
