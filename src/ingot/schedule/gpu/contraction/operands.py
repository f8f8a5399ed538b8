"""Where a product reads its operands: A where it lies, and B from one of these.

its own memory       its columns or terms allow vector loads, or nothing is gained by a copy
a pack               B is a constant: it is repacked once, when it is compiled
a copy               a kernel in front of the product writes it: from strided columns, or from levels for many rows
packed levels        B is quantized in blocks, and is dequantized in registers
"""

from __future__ import annotations

from functools import cached_property

from ingot.ir.dims import DimLike, estimate, product
from ingot.ir.kernel import Buffer
from ingot.ir.node import Node
from ingot.ops import Dequantize
from ingot.schedule.axes import Axis
from ingot.schedule.dimension_numbers import Loops, loops_of, reduction_in_memory_order, rows_in_memory_order
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES, Group, repack
from ingot.schedule.gpu.contraction.boxes import Boxes, boxes_of
from ingot.schedule.gpu.contraction.columns import columns_step, copy_bytes, needs_column_copy, needs_term_copy
from ingot.schedule.gpu.contraction.levels.packed import Levels, PackedLevels, levels_of
from ingot.schedule.gpu.contraction.levels.widened import MIN_ROWS as MIN_WIDENED_ROWS
from ingot.schedule.gpu.contraction.levels.widened import widened_step
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.schedule.gpu.contraction.reduction import has_other_users, packed_loops
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.lowered import Arg, Pack, Step
from ingot.support.dataclass import dataclass

FIRST_TEMP = Arg("temp", 0)


@dataclass(frozen=True)
class Operand:
    """An operand in memory: its buffer, its offset there in elements, and the position of the group's input."""

    buffer: Buffer
    offset: DimLike
    at: int


@dataclass(frozen=True)
class Copy:
    """B in memory of the group: the kernel that writes it, its argument, and its size."""

    step: Step
    result: Arg
    nbytes: int


@dataclass(frozen=True)
class Source:
    """What a product reads as B: a buffer, an offset there in elements, and the loops with its strides. params: buffers
    that are not the group's. unread: inputs of the group that are not read any more."""

    buffer: Buffer
    offset: DimLike
    loops: Loops
    params: tuple[tuple[Buffer, Arg], ...] = ()
    unread: tuple[int, ...] = ()
    packs: tuple[Pack, ...] = ()
    levels: Levels | None = None
    copy: Copy | None = None


@dataclass(frozen=True)
class Operands:
    """The operands of a product in memory, and what is made of B. loops: with the strides of `a` and `b`. pack: of a
    constant B. packed: of a B in blocks. is_copied: whether a kernel in front of the product writes B. is_in_memory:
    whether products are of the types that the operands have in memory."""

    a: Operand
    b: Operand
    loops: Loops
    multiplied: Multiplied
    pack: Pack | None
    packed: PackedLevels | None
    is_copied: bool
    is_in_memory: bool
    matrices: Boxes | None  # of f32, of whose limbs products are made

    @staticmethod
    def of(group: Group, anchor: Node, machine: Machine) -> Operands:
        x, y = anchor.inputs
        dtypes = x.dtype, y.dtype
        has_levels = isinstance(y.op, Dequantize)
        y = y.inputs[0] if has_levels else y
        (a_at, a_layout), (b_at, b_layout) = map(group.memory, (x, y))
        loops = rows_in_memory_order(loops_of(anchor, a_layout, b_layout))
        loops = loops if has_levels else reduction_in_memory_order(loops)
        rows, columns, terms = (product(x.extent for x in axes) for axes in (loops.rows, loops.cols, loops.reduce))
        multiplied = Multiplied.of(anchor, machine, (rows, columns, terms))
        a, b = (Operand(group.operands.ins[at], lay.offset, at) for at, lay in ((a_at, a_layout), (b_at, b_layout)))
        is_of_operands = multiplied.dtypes == dtypes
        if has_levels:
            levels = levels_of(group, anchor, a_layout, loops)
            has_16_bits = multiplied.dtypes is not None and multiplied.dtypes[0].bits == 16
            is_widened = has_16_bits and estimate(rows) >= MIN_WIDENED_ROWS
            return Operands(a, b, loops, multiplied, None, levels, is_widened, is_widened and is_of_operands, None)
        order, matrices = _packed_order(loops, multiplied), None
        pack = repack(order, b_at, b.offset, y.dtype) if b_at in group.constants else None
        if multiplied.bf16x6 and machine.has_box_copies:
            b_source = (0, Arg("pack", 0)) if pack else (b.offset, Arg("in", b_at))
            read_loops = packed_loops(loops, order) if pack else loops
            matrices = boxes_of(read_loops, multiplied, (a.offset, Arg("in", a_at)), b_source, is_aligned=False)
        is_copied = pack is None and matrices is None and _needs_copy(loops, b.offset, y, multiplied)
        return Operands(a, b, loops, multiplied, pack, None, is_copied, is_of_operands, matrices)

    @property
    def is_rewritten(self) -> bool:
        """Whether B is read from a pack or from a copy."""
        return self.pack is not None or self.is_copied

    @property
    def levels(self) -> Levels | None:
        """B's, if they are dequantized in registers."""
        return None if self.packed is None or self.is_copied else self.packed.levels

    @cached_property
    def read_loops(self) -> Loops:
        """With the strides of the pack or of the copy, if there is one, as B's."""
        order = _packed_order(self.loops, self.multiplied)
        return packed_loops(self.loops, order) if self.is_rewritten else self.loops

    def boxes(self, machine: Machine, copy: Arg = FIRST_TEMP) -> Boxes | None:
        """Those of A and of B, its pack or its copy, if the product may read these. copy: the argument for the copy."""
        if not (machine.has_box_copies and self.multiplied.by_tensor_cores and self.is_in_memory):
            return None
        b = (self.b.offset, Arg("in", self.b.at))
        if self.is_rewritten:
            b = (0, Arg("pack", 0) if self.pack is not None else copy)
        return boxes_of(self.read_loops, self.multiplied, (self.a.offset, Arg("in", self.a.at)), b)

    def source(self, group: Group, anchor: Node, copy: Arg, *, by_boxes: bool) -> Source:
        """copy: the argument for B's copy, if there is one. by_boxes: whether the product reads B by boxes alone, so
        that its buffer is no parameter."""
        packed, dtype = self.packed, anchor.inputs[1].dtype
        unread = () if packed is None else packed.unread
        packs = () if packed is None else packed.packs
        if packed is not None and not self.is_copied:
            loops = packed_loops(self.loops, (*self.loops.reduce, *self.loops.cols))
            return Source(packed.levels.buffer, 0, loops, packed.arguments(), unread, packs, packed.levels)
        if not self.is_rewritten:
            return Source(self.b.buffer, self.b.offset, self.loops)
        if packed is None and not has_other_users(group.body, group.body.inputs[self.b.at], anchor):
            unread = (self.b.at,)
        if self.pack is not None:
            buffer = Buffer("b", self.pack.dtype, align=ALIGNMENT_BYTES)
            params = () if by_boxes else ((buffer, Arg("pack", 0)),)
            return Source(buffer, 0, self.read_loops, params, unread, (self.pack,))
        if packed is not None:
            args = dict(packed.arguments())
            args = {b: args.get(b) or Arg("in", group.operands.ins.index(b)) for b in packed.levels.sources}
            step = widened_step(packed.levels, self.read_loops, dtype, args, copy)
        else:
            args = (Arg("in", self.b.at), copy)
            step = columns_step(self.loops, self.read_loops, self.b.buffer, self.b.offset, args)
        buffer = Buffer("b", dtype, align=ALIGNMENT_BYTES)
        params = () if by_boxes else ((buffer, copy),)
        made = Copy(step, copy, copy_bytes(self.read_loops, dtype))
        return Source(buffer, 0, self.read_loops, params, unread, packs, copy=made)


def _packed_order(loops: Loops, multiplied: Multiplied) -> tuple[Axis, ...]:
    """B's axes in a pack or a copy."""
    if multiplied.needs_contiguous_terms:
        return (*loops.batch, *loops.cols, *loops.reduce)
    return (*loops.batch, *loops.reduce, *loops.cols)


def _needs_copy(loops: Loops, offset: DimLike, b: Node, multiplied: Multiplied) -> bool:
    if multiplied.dtypes is None:
        return False
    if multiplied.tf32 and multiplied.needs_contiguous_terms:
        return needs_term_copy(loops, offset)
    return needs_column_copy(loops, offset, b.dtype, multiplied.by_tensor_cores)


__all__ = ["Operand", "Operands", "Source"]
