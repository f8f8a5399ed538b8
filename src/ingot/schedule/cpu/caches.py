"""What of a group's operands and results the caches can hold."""

from __future__ import annotations

from ingot.ir.dims import estimate
from ingot.ir.node import Graph
from ingot.schedule.cpu.machine import Machine

AHEAD = 4096  # bytes, past the caches: with arithmetic between them too few loads are in flight by themselves


def leaves_caches(body: Graph, machine: Machine) -> bool:
    """Whether a group's results are gone from all caches before anybody can read them: stores past the caches then
    save reading the lines that they fill."""
    written, read = (sum(estimate(n.type.nbytes) for n in nodes) for nodes in (body.outputs, body.inputs))
    return written > machine.l3 and written + read > 2 * machine.l3


def comes_from_memory(body: Graph, machine: Machine) -> bool:
    """Whether what a group reads is too large for any cache to hold it since it was written."""
    return sum(estimate(n.type.nbytes) for n in body.inputs) > machine.l3


__all__ = ["AHEAD", "comes_from_memory", "leaves_caches"]
