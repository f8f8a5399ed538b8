"""A contraction group as all lowering strategies see it: the operands' layouts, the epilogue and the kernel
parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.dims import Dim
from ingot.ir.kernel import Buffer, Expr, Kernel, Var
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import (
    LEVEL_FORMS,
    WEIGHT_FORMS,
    Convolution,
    Densify,
    DequantizeBlocks,
    DotGeneral,
    RoundToBytes,
)
from ingot.ops.views import base_of
from ingot.schedule.axes import Contraction, merge_axes
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.prologue import is_computed
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.dimension_numbers import Loops, loops_of
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.folds import accumulator_of
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.lowered import Arg, Step
from ingot.support.dataclass import dataclass

Param = tuple[Buffer, Arg]
Epilogue = Callable[[Block, Index, Expr, Expr | None], Index]


@dataclass(frozen=True)
class ContractionGroup:
    """A group around the contraction `anchor`.

    body: the group with only its first result. a_input, b_input: positions of the group's inputs that hold A and B.
    a_input is -1 if the group computes A; b_input is that of the levels or values if B is quantized or sparse.
    a_layout, b_layout: the layouts of A and B. loops: the loops over them. packed: B is constant, so that each strategy
    can choose its layout.
    """

    body: Graph
    ins: tuple[Layout, ...]
    outs: tuple[Layout, ...]
    anchor: Node
    machine: Machine
    operands: Operands
    em: Emitter
    a_input: int
    a_layout: Layout
    b_input: int
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
        if isinstance(a.op, RoundToBytes):
            (a,) = a.inputs  # which each chunk rounds
        of_levels = isinstance(b.op, LEVEL_FORMS)
        b_input, b_layout = operand_memory(body, b.inputs[0] if isinstance(b.op, WEIGHT_FORMS) else b, ins)
        if isinstance(b.op, Densify):
            b_layout = Layout.contiguous(b.shape)  # of the dense B
        a_input, a_layout = (-1, Layout.contiguous(a.shape)) if is_computed(body, a) else operand_memory(body, a, ins)
        loops = loops_of(anchor, a_layout, b_layout)
        if of_levels:
            # blocks of blocks are one axis
            blocks = tuple(replace(x, is_separate=True) for x in merge_axes(loops.reduce[:-1]) if x.extent != 1)
            loops = replace(loops, reduce=(*blocks, *loops.reduce[-1:]))
        # a B with a dynamic offset or a broadcast axis of dynamic extent is read in place
        axes = (*loops.batch, *loops.cols, *loops.reduce)
        is_static = isinstance(b_layout.offset, int) and not any(isinstance(x.extent, Dim) for x in axes)
        packed = constant[b_input] and is_static
        operands = Operands.of(body)
        em = operands.emitter(body, ins)
        return ContractionGroup(
            body, ins, outs, anchor, machine, operands, em, a_input, a_layout, b_input, b_layout, loops, packed
        )

    @property
    def a(self) -> Operand:
        """A in memory."""
        return Operand(self.operands.ins[self.a_input], self.a_layout.offset)

    @property
    def b(self) -> Operand:
        """B in memory, if it is not packed."""
        return Operand(self.operands.ins[self.b_input], self.b_layout.offset)

    def contraction(self, loops: Loops, computed: bool = False, inner: Contraction | None = None) -> Contraction:
        a, b = self.anchor.inputs[0], self.body.inputs[self.b_input]
        form = self.anchor.inputs[1].op
        return Contraction(
            loops.batch, loops.rows, loops.cols, loops.reduce, a.dtype, b.dtype, accumulator_of(self.anchor),
            self.packed, computed, inner, self.machine.dot_bytes,
            form.bits if isinstance(form, DequantizeBlocks) else 0, self.ins[self.b_input].panel,
            of_signs=is_of_signs(self.anchor),
        )  # fmt: skip

    def epilogue(self, loops: Loops) -> Epilogue:
        """Return a function that stores the group's results for sums at an index of `loops`, and returns their index in
        the first result."""

        def write(block: Block, loop_index: Index, acc: Expr, mask: Expr | None) -> Index:
            bind_result(self.em, block, self.anchor, block.let(k.cast(acc, self.anchor.dtype), "acc"))
            index = self.result_index(block, loops, loop_index)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)
            return index

        return write

    def result_index(self, block: Block, loops: Loops, loop_index: Index) -> Index:
        """Return the index in the group's first result of sums at an index of `loops`."""
        return result_index(block, self.body.outputs[0], self.anchor, loops.result(loops.full(loop_index)))

    def params(self, *b: Param) -> list[Param]:
        """Return the kernel's parameters. An input that only B was read from is left out if B is in other buffers."""
        params = list(zip(self.operands.params, self.operands.args, strict=True))
        if b[0][0] in self.operands.params:
            return params
        w = self.anchor.inputs[1]
        b_nodes = [(x, w) for x in w.inputs] if isinstance(w.op, WEIGHT_FORMS) else [(w, self.anchor)]
        unread = [base_of(x) for x, by in b_nodes if not has_other_readers(self.body, x, by)]
        unread_args = {Arg("in", self.body.inputs.index(x)) for x in unread if x in self.body.inputs}
        return [*((x, arg) for x, arg in params if arg not in unread_args or arg == Arg("in", self.a_input)), *b]

    def step(
        self, name: str, c: Contraction, params: Sequence[Param], chunk: Var, chunks: Expr, top: Block, scratch: int
    ) -> Step:
        """Return the kernel of the statements in `top`."""
        extents = tuple(x.extent for x in (*c.batch, *c.rows, *c.cols, *c.reduce))
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *extents)
        kernel = Kernel(name, tuple(b for b, _ in params), dims, chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(arg for _, arg in params))


def is_of_signs(anchor: Node) -> bool:
    """Whether the contraction counts the bits in which words differ."""
    return isinstance(anchor.op, DotGeneral | Convolution) and anchor.op.of_signs


def has_other_readers(body: Graph, node: Node, anchor: Node) -> bool:
    """Whether anything but `anchor` reads the value of `node`, directly or through views."""
    chain = {node}
    while node.inputs:
        node = node.inputs[0]
        chain.add(node)
    readers = (n for n in body.nodes() if n is not anchor and n not in chain)
    return any(i in chain for n in readers for i in n.inputs) or any(o in chain for o in body.outputs)


__all__ = ["ContractionGroup", "has_other_readers", "is_of_signs"]
