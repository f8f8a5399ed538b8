"""Global pools of an image, folded line by line by the kernel that makes it, while its results are in registers.

image[n, h, w, c] = y;  lines[n, h, c] = fold of y over w     ->     pool[n, c] = epilogue(fold of lines over h)
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Buffer, Expr, Lit
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input
from ingot.ir.types import Shape, TensorType
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, load_at, store_at
from ingot.schedule.fold import Fold, combining, reduction
from ingot.schedule.index import ZERO
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.reduction import Parts, lower_folded, lower_rows, rest_of, with_args
from ingot.schedule.rows import reductions_of


class LineFolds:
    """The reductions among a group's results behind the first; what they give for each line lies in temporaries of
    shape `lines`: images, any number of dimensions, channels."""

    def __init__(self, body: Graph, lines: Shape) -> None:
        self.pooled = replace(body, outputs=body.outputs[1:])
        over = tuple(range(1, len(lines) - 1))
        self.parts = tuple(Parts(n, TensorType(n.dtype, lines), over) for n in reductions_of(body))
        self.buffers = tuple(Buffer(f"lines{i}", p.type.dtype, writable=True) for i, p in enumerate(self.parts))
        self.args = tuple(Arg("temp", i) for i in range(len(self.parts)))
        self.temps: tuple[DimLike, ...] = tuple(p.type.nbytes for p in self.parts)
        self._open: list[Fold] = []

    def begin(self, block: Block, lanes: int) -> None:
        """A line starts, or a part of one: `lanes` channels."""
        self._open = [Fold.of(p.node, block, lanes, 1) for p in self.parts]

    def add(self, block: Block, em: Emitter, index: Index, mask: Expr | None) -> None:
        """Take in the image's results at `index`."""
        for fold in self._open:
            fold.add(block, em.value(block, fold.node.inputs[0], index, mask), ZERO, None, 0)

    def end(self, block: Block, place: Index, mask: Expr | None, first: Expr | None = None) -> None:
        """Store the line at `place`; fold it into what is there unless it is the `first` part (None: it is whole)."""
        for part, fold, buffer in zip(self.parts, self._open, self.buffers, strict=True):
            flat = ix.linear(place, Layout.contiguous(part.type.shape).strides)
            self._store(block, fold, buffer, flat, mask, first)

    @staticmethod
    def _store(block: Block, fold: Fold, buffer: Buffer, flat: Expr, mask: Expr | None, first: Expr | None) -> None:
        (value,) = fold.apart(block)

        def store(b: Block) -> None:
            store_at(b, buffer, flat, value, mask)

        def join(b: Block) -> None:
            fn = combining(reduction(fold.node).kind, fold.dtype)
            store_at(b, buffer, flat, k.binary(fn, value, load_at(b, buffer, flat, mask)), mask)

        if first is None:
            store(block)
        elif isinstance(first, Lit):
            (store if first.value else join)(block)
        else:
            block.when(first, store, join)

    def steps(self, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> tuple[Step, ...]:
        """The kernels that make the pools of the lines. outs: where all results of the group lie."""
        return lower_folded(self.pooled, self.parts, ins, outs[1:], machine, first=1) if self.parts else ()


def lower_apart(
    low: Lowered, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """`low`, which makes the first result of `body`, and kernels that make the others, pools of it, from memory."""
    if len(body.outputs) == 1:
        return low
    image, pooled = body.outputs[0], replace(body, outputs=body.outputs[1:])
    given = Input("image", image.type)()
    rest, left = rest_of(pooled, {image: given}, [given])
    more = lower_rows(rest, (outs[0], *(ins[i] for i in left)), outs[1:], machine)
    args = {
        "in": [Arg("out", 0), *(Arg("in", i) for i in left)],
        "out": [Arg("out", 1 + i) for i in range(len(rest.outputs))],
        "temp": [Arg("temp", len(low.temps) + i) for i in range(len(more.temps))],
    }
    steps = (*low.steps, *(with_args(s, args) for s in more.steps))
    return replace(low, steps=steps, temps=(*low.temps, *more.temps))


__all__ = ["LineFolds", "lower_apart"]
