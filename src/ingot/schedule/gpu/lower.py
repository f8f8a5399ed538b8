"""Lower a fused group to kernels of tiles: the table of strategies by the group's kind."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress

from ingot import ops
from ingot.ir.layout import Layout
from ingot.schedule.gpu.attention.flash import lower_attention
from ingot.schedule.gpu.attention.gradients import lower_attention_gradients
from ingot.schedule.gpu.attention.mask_gradient import lower_attention_mask_gradient
from ingot.schedule.gpu.attention.paged import lower_paged_attention
from ingot.schedule.gpu.blocks import Group, drop_narrow_hints
from ingot.schedule.gpu.contraction.depthwise.gradient import lower_depthwise_gradient
from ingot.schedule.gpu.contraction.product import lower_contraction
from ingot.schedule.gpu.launching import await_producers
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.gpu.pointwise import lower_pointwise
from ingot.schedule.gpu.recurrent import lower_recurrent
from ingot.schedule.gpu.rows import lower_rows
from ingot.schedule.gpu.rows_and_columns import lower_rows_and_columns
from ingot.schedule.gpu.scan import lower_scan
from ingot.schedule.gpu.scatter import lower_scatter, lower_update
from ingot.schedule.gpu.sort import lower_sort
from ingot.schedule.gpu.window import lower_window
from ingot.schedule.lowered import Lowered
from ingot.support.errors import CompileError

Strategy = Callable[[Group, Machine], Lowered]


STRATEGIES: dict[str, Strategy] = {
    "contraction": lower_contraction,
    "attention": lower_attention,
    "attention_with_sums": lower_attention,
    "attention_gradients": lower_attention_gradients,
    "attention_mask_gradient": lower_attention_mask_gradient,
    "paged_attention": lower_paged_attention,
    "kernel_gradient": lower_depthwise_gradient,
    "pointwise": lower_pointwise,
    "rows": lower_rows,
    "rows_and_columns": lower_rows_and_columns,
    "window": lower_window,
    "scan": lower_scan,
    "sort": lower_sort,
    "scatter": lower_scatter,
    "update": lower_update,
    "lstm": lower_recurrent,
    "gru": lower_recurrent,
    "rnn": lower_recurrent,
}


def lower(
    group: ops.Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: Machine
) -> Lowered:
    """Lower `group`. ins, outs: layouts of operands and results. constant: which operands are constants. Raises
    CompileError."""
    if all(any(d == 0 for d in n.shape) for n in group.body.outputs):
        return Lowered(())
    strategy = STRATEGIES.get(group.kind)
    if strategy is None:
        raise CompileError(f"no kernel strategy for a {group.kind} group", expected=", ".join(STRATEGIES))
    low = strategy(Group.of(group.body, ins, outs, frozenset(compress(range(len(ins)), constant))), machine)
    return drop_narrow_hints(await_producers(low, machine))


__all__ = ["lower"]
