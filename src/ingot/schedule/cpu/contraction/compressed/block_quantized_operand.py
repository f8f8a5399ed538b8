"""A contraction group's B of levels: what is packed of the dequantization before it, and how its kernel reads that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Lit
from ingot.ir.node import Node
from ingot.ir.types import DType, f32, i32, static_shape, u8, u32
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.cpu.contraction.group import ContractionGroup, Param
from ingot.schedule.cpu.contraction.operands import BlockQuantized
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.group_io import operand_memory
from ingot.schedule.lowered import Arg, Pack


def block_quantized_operand(
    g: ContractionGroup, c: Contraction, plan: Plan
) -> tuple[BlockQuantized, tuple[Param, ...], tuple[Pack, ...]]:
    """The operand, its parameters of the kernel, and the packs that these are."""
    _, zero, scale = g.anchor.inputs[1].inputs
    bias = 1 << (c.b.bits - 1) if c.b.kind == "i" else 0  # levels are packed as unsigned
    words = Buffer("b", u32)
    params: list[Param] = [(words, Arg("pack", 0))]
    packs = [pack_panels(g.b_input, c, plan, *static_shape((g.b_layout.offset,)))]

    def read(name: str, p: Node, moved: int) -> Buffer | Lit:
        if p.constant is not None and p not in g.body.inputs:
            value = p.constant.value.reshape(()).item()
            return k.lit(float(value) + moved, f32)
        pack = _parameters(g, p, c, plan, moved)
        params.append((Buffer(name, pack.dtype), Arg("pack", len(packs))))
        packs.append(pack)
        return params[-1][0]

    exact = zero.dtype.is_integer
    zeros, scales = read("zeros", zero, bias if exact else 0), read("scales", scale, 0)
    return BlockQuantized(words, zeros, scales, exact, bias), tuple(params), tuple(packs)


def _parameters(g: ContractionGroup, p: Node, c: Contraction, plan: Plan, moved: int) -> Pack:
    """Zeros or scales as [panel][blocks][columns]; integers, `moved` to be unsigned, as bytes."""
    w, op = g.anchor.inputs[1], g.anchor.op
    assert isinstance(op, ops.DotGeneral)
    index, layout = operand_memory(g.body, p, g.ins)
    layout = layout.broadcast(w.shape, tuple(range(w.type.rank - p.type.rank, w.type.rank)))
    (column,) = op.free(g.anchor.inputs[0].type.rank, w.type.rank)[1]
    turns = [d for d in op.contract[1][:-1] if w.shape[d] != 1]
    cols = Axis(layout.shape[column], 0, layout.strides[column])
    blocks = [Axis(layout.shape[d], 0, layout.strides[d]) for d in turns] or [Axis(1)]
    kind: tuple[DType, DType, DType] = (f32, f32, f32) if p.dtype.is_float else (u8, u8, i32)
    pack = pack_panels(
        index, Contraction((), c.rows, (cols,), tuple(blocks), *kind), plan, *static_shape((layout.offset,))
    )

    def write(array: np.ndarray, out: np.ndarray) -> None:
        pack.write((array.astype(np.int16) + moved).astype(np.uint8), out)

    return pack if not moved else replace(pack, key=f"{pack.key} + {moved}", write=write)


__all__ = ["block_quantized_operand"]
