"""One fused group -> kernels of tiles: the table of strategies by the group's kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.ir.kernel import AwaitProducers, Kernel, Lit, ReleaseConsumers
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ops.group import Group
from ingot.schedule.gpu.attention import lower_attention
from ingot.schedule.gpu.contraction.product import lower_contraction
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.pointwise import lower_pointwise
from ingot.schedule.gpu.rows import lower_rows
from ingot.schedule.gpu.scan import lower_scan
from ingot.schedule.gpu.scatter import lower_scatter, lower_update
from ingot.schedule.gpu.sort import lower_sort
from ingot.schedule.gpu.window import lower_window
from ingot.schedule.lowered import Lowered
from ingot.support.errors import CompileError

Strategy = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], Machine], Lowered]


FEW = 8  # multiprocessors for each program of a kernel behind which the next may start at once

STRATEGIES: dict[str, Strategy] = {
    "attention": lower_attention,
    "pointwise": lower_pointwise,
    "rows": lower_rows,
    "window": lower_window,
    "scan": lower_scan,
    "sort": lower_sort,
    "scatter": lower_scatter,
    "update": lower_update,
}


def lower(
    group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """Kernels for `group`, whose operands lie at `ins` and whose results go to `outs`. Raises CompileError."""
    if all(any(d == 0 for d in n.shape) for n in group.body.outputs):
        return Lowered(())
    if group.kind == "contraction":
        return _awaiting(lower_contraction(group.body, ins, outs, constant, machine), machine)
    strategy = STRATEGIES.get(group.kind)
    if strategy is None:
        kinds = ", ".join([*STRATEGIES, "contraction"])
        raise CompileError(f"no kernel strategy for a {group.kind} group", expected=kinds)
    return _awaiting(strategy(group.body, ins, outs, machine), machine)


def _awaiting(low: Lowered, machine: Machine) -> Lowered:
    """Kernels that await what they read from, before all else where they do not say."""
    return replace(low, steps=tuple(replace(step, kernel=_awaits(step.kernel, machine)) for step in low.steps))


def _awaits(kernel: Kernel, machine: Machine) -> Kernel:
    """Behind a kernel of few programs the next one's find even room while it runs."""
    if any(isinstance(s, AwaitProducers | ReleaseConsumers) for s in kernel.body):
        begin = () if any(isinstance(s, AwaitProducers) for s in kernel.body) else (AwaitProducers(),)
        return replace(kernel, body=(*begin, *kernel.body))
    few = isinstance(kernel.chunks, Lit) and kernel.chunks.value <= machine.processors // FEW
    return replace(kernel, body=(AwaitProducers(), *((ReleaseConsumers(),) if few else ()), *kernel.body))


__all__ = ["lower"]
