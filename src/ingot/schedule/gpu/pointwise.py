"""Pointwise groups: a program computes contiguous elements of the results.

out[i, j] = f(a[i, j], b[j])   ->   at = chunk * 1024 + range(1, 1024);  out[at] = f(a[at], b[at % n])
"""

from __future__ import annotations

from ingot.ir.dims import ceildiv, product
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.schedule.collapse_dims import collapse_dims
from ingot.schedule.gpu.blocks import Elements, Group, write
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.lowered import Lowered

MIN_ELEMENTS, MAX_ELEMENTS = 128, 1024  # of a program


def lower_pointwise(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower to one kernel; all results have the same shape."""
    body, ins, outs = collapse_dims(body, ins, outs) or (body, ins, outs)
    work = Elements.of(Group.of(body, ins, outs), body.outputs[0], machine, MIN_ELEMENTS, MAX_ELEMENTS)
    for root, buffer, layout in work.group.results:
        write(work.top, work.em, root, buffer, layout, work.index, work.span.in_bounds)
    chunks = ceildiv(product(body.outputs[0].shape), work.tile[1])
    return Lowered((work.group.step("pointwise", work.chunk, chunks, work.top),))


__all__ = ["lower_pointwise"]
