"""A group with a contraction in its middle, as all of its strategies see it: where the operands lie, what is done with
the sums, and the parameters of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import Dim
from ingot.ir.kernel import Buffer, Expr, Kernel, Var
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import WEIGHT_FORMS, Densify, Dequantize
from ingot.ops.views import base_of
from ingot.schedule.axes import Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.prologue import is_computed
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.folds import accumulates
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

Param = tuple[Buffer, Arg]
Epilogue = Callable[[Block, Index, Expr, Expr | None], Index]


@dataclass(frozen=True)
class ContractionGroup:
    """body: the group with its first result alone. a_at, b_at: the inputs that the operands of `anchor` are, A's -1
    where the group computes it, B's its levels or values where it has such; a_layout, b_layout: where they lie there.
    loops: over these. packed: B is a constant, to be laid out as a strategy likes."""

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    anchor: Node
    machine: Machine
    operands: Operands
    em: Emitter
    a_at: int
    a_layout: Layout
    b_at: int
    b_layout: Layout
    loops: Loops
    packed: bool

    @staticmethod
    def of(
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
        anchor: Node,
        machine: Machine,
    ) -> ContractionGroup:
        a, b = anchor.inputs
        of_levels = isinstance(b.op, Dequantize)
        b_at, b_layout = operand_memory(body, b.inputs[0] if isinstance(b.op, WEIGHT_FORMS) else b, ins)
        if isinstance(b.op, Densify):
            b_layout = Layout.contiguous(b.shape)  # of what it stands for
        a_at, a_layout = (-1, Layout.contiguous(a.shape)) if is_computed(body, a) else operand_memory(body, a, ins)
        loops = loops_of(anchor, a_layout, b_layout)
        if of_levels:
            blocks = tuple(replace(x, apart=True) for x in loops.reduce[:-1])
            loops = replace(loops, reduce=(*blocks, *loops.reduce[-1:]))
        # a B that is repeated along an axis of unknown size, or begins at an unknown place, is read where it lies
        axes = (*loops.batch, *loops.cols, *loops.reduce)
        known = isinstance(b_layout.offset, int) and not any(isinstance(x.extent, Dim) for x in axes)
        packed = constant[b_at] and known
        operands = Operands.of(body)
        em = operands.emitter(body, ins)
        return ContractionGroup(
            body, ins, outs, anchor, machine, operands, em, a_at, a_layout, b_at, b_layout, loops, packed
        )

    @property
    def a(self) -> Operand:
        """A in memory."""
        return Operand(self.operands.ins[self.a_at], self.a_layout.offset)

    @property
    def b(self) -> Operand:
        """B in memory, where it is not packed."""
        return Operand(self.operands.ins[self.b_at], self.b_layout.offset)

    def contraction(self, loops: Loops, computed: bool = False, inner: Contraction | None = None) -> Contraction:
        a, b = self.anchor.inputs[0], self.body.inputs[self.b_at]
        return Contraction(
            loops.batch, loops.rows, loops.cols, loops.reduce, a.dtype, b.dtype, accumulates(self.anchor), self.packed,
            computed, inner,
        )  # fmt: skip

    def epilogue(self, loops: Loops) -> Epilogue:
        """What stores the group's results for sums at a place of `loops`, and tells where they are in the first one."""

        def write(block: Block, place: Index, acc: Expr, mask: Expr | None) -> Index:
            bind_result(self.em, block, self.anchor, block.let(k.cast(acc, self.anchor.dtype), "acc"))
            index = self.result_index(block, loops, place)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)
            return index

        return write

    def result_index(self, block: Block, loops: Loops, place: Index) -> Index:
        """Where sums at a place of `loops` belong in the group's first result."""
        return result_index(block, self.body.outputs[0], self.anchor, loops.result(loops.full(place)))

    def params(self, *b: Param) -> list[Param]:
        """The kernel's parameters. An operand that only the contraction's own B was read from has no place among them
        where B is other buffers."""
        params = list(zip(self.operands.params, self.operands.args, strict=True))
        if b[0][0] in self.operands.params:
            return params
        w = self.anchor.inputs[1]
        parts = [(x, w) for x in w.inputs] if isinstance(w.op, WEIGHT_FORMS) else [(w, self.anchor)]
        alone = [base_of(x) for x, by in parts if not reads(self.body, x, by)]
        own = {Arg("in", self.body.inputs.index(x)) for x in alone if x in self.body.inputs}
        return [*((x, arg) for x, arg in params if arg not in own or arg == Arg("in", self.a_at)), *b]

    def step(
        self, name: str, c: Contraction, params: Sequence[Param], chunk: Var, chunks: Expr, top: Block, scratch: int
    ) -> Step:
        """The kernel of `top`'s statements."""
        extents = tuple(x.extent for x in (*c.batch, *c.rows, *c.cols, *c.reduce))
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *extents)
        kernel = Kernel(name, tuple(b for b, _ in params), dims, chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(arg for _, arg in params))


def reads(body: Graph, node: Node, anchor: Node) -> bool:
    """Whether something else than `anchor` reads the value under `node`, directly or through views of it."""
    chain = {node}
    while node.inputs:
        node = node.inputs[0]
        chain.add(node)
    others = (n for n in body.nodes() if n is not anchor and n not in chain)
    return any(i in chain for n in others for i in n.inputs) or any(o in chain for o in body.outputs)


__all__ = ["ContractionGroup", "reads"]
