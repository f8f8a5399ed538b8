"""Lower a fused group to kernels: the table of strategies by the group's kind."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import KernelGradient
from ingot.ops.group import Group
from ingot.schedule.cpu.attention.lower import lower_attention
from ingot.schedule.cpu.contraction.compressed.embedding_lookup import lower_embedding_lookup
from ingot.schedule.cpu.contraction.lower import lower_contraction
from ingot.schedule.cpu.cumulative import lower_cumulative
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.recurrent.lower import lower_recurrent
from ingot.schedule.cpu.rows.lower import lower_rows
from ingot.schedule.cpu.scatter import lower_scatter, lower_update
from ingot.schedule.cpu.sort import lower_sort
from ingot.schedule.cpu.windows.depthwise_gradient import lower_depthwise_gradient
from ingot.schedule.cpu.windows.inverted_bottleneck import lower_inverted_bottleneck
from ingot.schedule.cpu.windows.pool import lower_pool
from ingot.schedule.cpu.winograd.kernel_gradient import lower_kernel_gradient
from ingot.schedule.lowered import Lowered
from ingot.support.errors import CompileError

Strategy = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], Machine], Lowered]
PackingStrategy = Callable[[Graph, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...], Machine], Lowered]


def _lower_kernel_gradient(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    depthwise = any(isinstance(n.op, KernelGradient) and n.op.depthwise for n in body.nodes())
    return (lower_depthwise_gradient if depthwise else lower_kernel_gradient)(body, ins, outs, machine)


STRATEGIES: dict[str, Strategy] = {
    "pointwise": lower_pointwise,
    "rows": lower_rows,
    "window": lower_pool,
    "attention": lower_attention,
    "kernel_gradient": _lower_kernel_gradient,
    "scan": lower_cumulative,
    "sort": lower_sort,
    "scatter": lower_scatter,
    "update": lower_update,
}


PACKING: dict[str, PackingStrategy] = {
    "contraction": lower_contraction,
    "embedding_lookup": lower_embedding_lookup,
    "inverted_bottleneck": lower_inverted_bottleneck,
    "lstm": lower_recurrent,
    "gru": lower_recurrent,
    "rnn": lower_recurrent,
}


def _is_empty(node: Node) -> bool:
    return any(d == 0 for d in node.shape)


def lower(
    group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """Kernels for `group`. Raises CompileError.

    ins, outs: the layouts of its operands and results. constant: which operands are constants, which can be repacked
    at compile time.
    """
    if all(_is_empty(n) for n in group.body.outputs):
        return Lowered(())
    packing = PACKING.get(group.kind)
    if packing is not None:
        return packing(group.body, ins, outs, constant, machine)
    strategy = STRATEGIES.get(group.kind)
    if strategy is None:
        raise CompileError(f"no kernel strategy for a {group.kind} group", expected=", ".join([*STRATEGIES, *PACKING]))
    return strategy(group.body, ins, outs, machine)
