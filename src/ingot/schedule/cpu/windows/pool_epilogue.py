"""Global pools of an image, folded line by line by the kernel that makes it, while its results are in registers.

image[n, h, w, c] = y;  lines[n, h, c] = fold of y over w     ->     pool[n, c] = epilogue(fold of lines over h)
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt
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
from ingot.schedule.folds import combining
from ingot.schedule.index import ZERO
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.row_box import reduction, reductions_of, rows_of


class PoolEpilogue:
    """The reductions among a group's results behind the first; what they give for each line lies in temporaries of
    shape `lines`: images, any number of dimensions, channels."""

    def __init__(self, body: Graph, lines: Shape) -> None:
        self.pooled = replace(body, outputs=body.outputs[1:])
        self.over = tuple(range(1, len(lines) - 1))
        found = enumerate(reductions_of(body))
        self.lines = {n: Input(f"lines{i}", TensorType(n.dtype, lines))() for i, n in found}
        self.buffers = tuple(Buffer(f"lines{i}", n.dtype, writable=True) for i, n in enumerate(self.lines))
        self.args = tuple(Arg("temp", i) for i in range(len(self.lines)))
        self.temps: tuple[DimLike, ...] = tuple(n.type.nbytes for n in self.lines.values())
        self._open: list[Reducer] = []

    def begin(self, block: Block, lanes: int) -> None:
        """A line starts, or a part of one: `lanes` channels."""
        self._open = [Reducer.of(n, block, lanes, 1) for n in self.lines]

    def add(self, block: Block, em: Emitter, index: Index, mask: Expr | None) -> None:
        """Take in the image's results at `index`."""
        for fold in self._open:
            fold.add(block, em.value(block, fold.node.inputs[0], index, mask), ZERO, None, 0)

    def end(self, block: Block, place: Index, mask: Expr | None, first: Expr | None = None) -> None:
        """Store the line at `place`; fold it into what is there unless it is the `first` part (None: it is whole)."""
        for lines, fold, buffer in zip(self.lines.values(), self._open, self.buffers, strict=True):
            flat = ix.linear(place, Layout.contiguous(lines.shape).strides)
            self._store(block, fold, buffer, flat, mask, first)

    @staticmethod
    def _store(block: Block, fold: Reducer, buffer: Buffer, flat: Expr, mask: Expr | None, first: Expr | None) -> None:
        (value,) = fold.apart(block)

        def store(b: Block) -> None:
            store_at(b, buffer, flat, value, mask)

        def join(b: Block) -> None:
            fn = combining(reduction(fold.node).kind, fold.dtype)
            store_at(b, buffer, flat, k.binary(fn, value, load_at(b, buffer, flat, mask)), mask)

        if first is None:
            store(block)
        else:
            block.when(first, store, join)

    def steps(self, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> tuple[Step, ...]:
        """The kernels that make the pools of the lines. outs: where all results of the group lie."""
        if not self.lines:
            return ()
        memo: dict[Node, Node] = {}
        stored: dict[Node, tuple[Layout, Arg]] = {}
        for (n, lines), arg in zip(self.lines.items(), self.args, strict=True):
            op = reduction(n)
            assert isinstance(op, Reduce)
            memo[n] = cast(replace(op, dims=self.over)(lines), n.dtype)
            stored[lines] = Layout.contiguous(lines.shape), arg
        rest = replace(self.pooled, outputs=rebuilt(self.pooled.outputs, memo))
        return lower_rest(rest, stored, ins, outs[1:], machine, first=1, lower=_one_kernel).steps


def _one_kernel(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    rows = rows_of(body)
    assert rows is not None
    return RowLoops(body, ins, outs, rows, machine).lower()


def lower_apart(
    low: Lowered, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """`low`, which makes the first result of `body`, and kernels that make the others, pools of it, from memory."""
    if len(body.outputs) == 1:
        return low
    image, pooled = body.outputs[0], replace(body, outputs=body.outputs[1:])
    stored = {image: (outs[0], Arg("out", 0))}
    more = lower_rest(pooled, stored, ins, outs[1:], machine, first=1, temps=len(low.temps))
    return replace(low, steps=(*low.steps, *more.steps), temps=(*low.temps, *more.temps))


__all__ = ["PoolEpilogue", "lower_apart"]
