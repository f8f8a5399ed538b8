"""Global pools of an image, reduced per line by the kernel that computes the image, from results in registers.

image[n, h, w, c] = y;  lines[n, h, c] = fold of y over w     ->     pool[n, c] = epilogue(fold of lines over h)
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuild
from ingot.ir.types import Shape, TensorType
from ingot.ops import Reduce
from ingot.ops.build import cast
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.reducers import Reducer
from ingot.schedule.cpu.rows.loops import RowLoops
from ingot.schedule.cpu.rows.lower import lower_rest
from ingot.schedule.emit import Emitter, Index, load_at, store_at
from ingot.schedule.folds import combining_op
from ingot.schedule.index import ZERO
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.row_box import reduction, reductions_of, rows_of


class PoolEpilogue:
    """The reductions among a group's further results. The partial results of the lines are stored in temporaries of
    shape `lines`: images, any number of dimensions, channels."""

    def __init__(self, body: Graph, lines: Shape) -> None:
        self.pooled = replace(body, outputs=body.outputs[1:])
        self.reduced_dims = tuple(range(1, len(lines) - 1))
        reductions = enumerate(reductions_of(body))
        self.lines = {n: Input(f"lines{i}", TensorType(n.dtype, lines))() for i, n in reductions}
        self.buffers = tuple(Buffer(f"lines{i}", n.dtype, writable=True) for i, n in enumerate(self.lines))
        self.args = tuple(Arg("temp", i) for i in range(len(self.lines)))
        self.temps: tuple[DimLike, ...] = tuple(n.type.nbytes for n in self.lines.values())
        self._reducers: list[Reducer] = []

    def begin(self, block: Block, lanes: int) -> None:
        """Start a line or a part of one. lanes: channels."""
        self._reducers = [Reducer.of(n, block, lanes, 1) for n in self.lines]

    def add(self, block: Block, em: Emitter, index: Index, mask: Expr | None) -> None:
        """Accumulate the image's results at `index`."""
        for reducer in self._reducers:
            reducer.add(block, em.value(block, reducer.node.inputs[0], index, mask), ZERO, None, 0)

    def end(self, block: Block, index: Index, mask: Expr | None, is_first: Expr | None = None) -> None:
        """Store the line at `place`, combined with the stored one unless it is the `first` part (None: it is
        complete)."""
        for lines, reducer, buffer in zip(self.lines.values(), self._reducers, self.buffers, strict=True):
            offset = ix.linear(index, Layout.contiguous(lines.shape).strides)
            self._store(block, reducer, buffer, offset, mask, is_first)

    @staticmethod
    def _store(
        block: Block, reducer: Reducer, buffer: Buffer, offset: Expr, mask: Expr | None, is_first: Expr | None
    ) -> None:
        (value,) = reducer.slot_results(block)

        def store(b: Block) -> None:
            store_at(b, buffer, offset, value, mask)

        def combine(b: Block) -> None:
            fn = combining_op(reduction(reducer.node).kind, reducer.dtype)
            store_at(b, buffer, offset, k.binary(fn, value, load_at(b, buffer, offset, mask)), mask)

        if is_first is None:
            store(block)
        else:
            block.when(is_first, store, combine)

    def steps(self, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> tuple[Step, ...]:
        """Return the steps that reduce the lines to the pools. outs: the layouts of all results of the group."""
        if not self.lines:
            return ()
        replacements: dict[Node, Node] = {}
        stored: dict[Node, tuple[Layout, Arg]] = {}
        for (n, lines), arg in zip(self.lines.items(), self.args, strict=True):
            op = reduction(n)
            assert isinstance(op, Reduce)
            replacements[n] = cast(replace(op, dims=self.reduced_dims)(lines), n.dtype)
            stored[lines] = Layout.contiguous(lines.shape), arg
        body = replace(self.pooled, outputs=rebuild(self.pooled.outputs, replacements))
        return lower_rest(body, stored, ins, outs[1:], machine, first=1, lower=_lower_rows).steps


def _lower_rows(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    rows = rows_of(body)
    assert rows is not None
    return RowLoops(body, ins, outs, rows, machine).lower()


def append_pools(
    lowered: Lowered, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """Append steps that compute the further results of `body`, pools of the first result, from memory."""
    if len(body.outputs) == 1:
        return lowered
    image, pooled = body.outputs[0], replace(body, outputs=body.outputs[1:])
    stored = {image: (outs[0], Arg("out", 0))}
    pools = lower_rest(pooled, stored, ins, outs[1:], machine, first=1, temps=len(lowered.temps))
    return replace(lowered, steps=(*lowered.steps, *pools.steps), temps=(*lowered.temps, *pools.temps))


__all__ = ["PoolEpilogue", "append_pools"]
