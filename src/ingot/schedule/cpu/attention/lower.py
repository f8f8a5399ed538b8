"""Lower attention groups: an Attention and the reshapes and transposes of its result."""

from __future__ import annotations

from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops import Attention
from ingot.schedule.cpu.attention.decode import Decode
from ingot.schedule.cpu.attention.flash import Flash
from ingot.schedule.cpu.attention.group import AttentionGroup
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.lowered import Lowered


def lower_attention(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower an Attention, and reshapes and transposes of its result. Raises CompileError for a symbolic head size."""
    anchor = next(n for n in body.nodes() if isinstance(n.op, Attention))
    group = AttentionGroup(anchor, body, ins, outs, machine)
    return Decode(group).lower() if Decode.supports(group) else Flash(group).lower()


__all__ = ["lower_attention"]
