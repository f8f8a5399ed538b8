"""Whether the caches can hold a group's operands and results."""

from __future__ import annotations

from ingot.ir.dims import estimate
from ingot.ir.node import Graph
from ingot.schedule.cpu.machine import Machine

PREFETCH_BYTES = 4096  # distance of prefetches: out-of-order execution alone keeps too few loads in flight


def results_exceed_caches(body: Graph, machine: Machine) -> bool:
    """Whether a group's results are evicted from all caches before they can be read. Non-temporal stores then avoid
    reading the cache lines that they fill."""
    write_bytes, read_bytes = (sum(estimate(n.type.nbytes) for n in nodes) for nodes in (body.outputs, body.inputs))
    return write_bytes > machine.l3 and write_bytes + read_bytes > 2 * machine.l3


def operands_exceed_caches(body: Graph, machine: Machine) -> bool:
    """Whether a group's operands are too large for any cache to still hold them."""
    return sum(estimate(n.type.nbytes) for n in body.inputs) > machine.l3


__all__ = ["PREFETCH_BYTES", "operands_exceed_caches", "results_exceed_caches"]
