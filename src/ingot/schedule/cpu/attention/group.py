"""An attention group as all of its kernels see it: the operands in memory, the sizes, and the result."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, f32, f64
from ingot.ops import Attention
from ingot.ops.nn import terms
from ingot.ops.nn.terms import Term
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.emit import Emitter, Index
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError

CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class Tensor:
    """An operand in memory."""

    buffer: Buffer
    layout: Layout

    def offset(self, *index: Expr) -> Expr:
        return ix.linear(index, self.layout.strides, self.layout.offset)

    @property
    def last_stride(self) -> DimLike:
        return self.layout.strides[-1]


class AttentionGroup:
    """The operands in memory, the sizes, and the stores of the result, which all kernels share.

    rows: queries. depth, cols: the head size of keys and of values. key_heads: heads of keys and values. positions:
    where the keys are among those that are stored. steps: steps before the kernel, which write temporaries of `temps`
    bytes. extra_params: parameters for these.
    """

    def __init__(self, anchor: Node, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine):
        op = anchor.op
        assert isinstance(op, Attention)
        self.op, self.anchor, self.body, self.outs, self.machine = op, anchor, body, outs, machine
        q, key, value = anchor.inputs[:3]
        self.batch, self.heads, self.rows, depth = q.shape
        self.key_heads, cols = key.shape[1], value.shape[3]
        self.keys, self.stored_keys = op.key_count([x.type for x in anchor.inputs]), key.shape[2]
        if isinstance(depth, Dim) or isinstance(cols, Dim):
            raise CompileError("attention", expected="a static head size", got=f"{q.type} and {value.type}")
        self.depth, self.cols = depth, cols
        self.dtype: DType = f64 if q.dtype == f64 else f32
        self.operands = Operands.of(body)
        self.em: Emitter = self.operands.emitter(body, ins)
        self.dims: list[DimLike] = [*body_dims(body, (*ins, *outs))]
        self.steps: list[Step] = []
        self.temps: list[DimLike] = []
        self.extra_params: list[tuple[Buffer, Arg]] = []
        self.q, self.k, self.v = (self._tensor(x, ins) for x in (q, key, value))
        self.mask: Tensor | None = None
        self.scales = [self._tensor(x, ins) for x in op.scales(anchor.inputs)]  # of keys and of values
        self.positions = self._tensor(anchor.inputs[-1], ins) if op.indexed else None
        for operand in op.mask(anchor.inputs):
            mask = self._tensor(operand, ins)
            scores = (self.batch, self.heads, self.rows, self.keys)
            dims = tuple(range(4 - len(mask.layout.shape), 4))
            self.mask = Tensor(mask.buffer, mask.layout.broadcast(scores, dims))

    def _tensor(self, operand: Node, ins: tuple[Layout, ...]) -> Tensor:
        position, layout = operand_memory(self.body, operand, ins)
        return Tensor(self.operands.ins[position], layout)

    def converted(self, operand: int, tensor: Tensor) -> Tensor:
        """Return an operand as f32 in the order of the keys, by a separate step: conversions within the loops would
        cost more."""
        if tensor.buffer.dtype == self.dtype and self.positions is None:
            return tensor
        tensors = [tensor, *self.scales[operand - 1 : operand], *([self.positions] if self.positions else [])]
        xs = [Input(f"x{i}", TensorType(x.buffer.dtype, x.layout.shape))() for i, x in enumerate(tensors)]
        parts = [terms.take(Term(x), Term(xs[-1]), 2).node for x in xs[:-1]] if self.positions else xs
        wide = functools.reduce(ops.mul, (ops.cast(x, self.dtype) for x in parts))
        dense = Layout.contiguous(wide.shape)
        body, layouts = Graph(tuple(xs), (wide,)), tuple(x.layout for x in tensors)
        lowered = lower_pointwise(body, layouts, (dense,), self.machine)
        sources = [Arg("in", self.operands.ins.index(x.buffer)) for x in tensors]
        target = Arg("temp", len(self.temps))
        self.steps += lowered.inlined(sources, [target], len(self.temps)).steps
        buffer = Buffer(f"wide{operand}", self.dtype)
        self.extra_params.append((buffer, target))
        self.temps.append(wide.type.nbytes)
        return Tensor(buffer, dense)

    def kernel(self, name: str, chunk: k.Var, chunks: DimLike, top: Block, scratch: int) -> Lowered:
        buffers = tuple(b for b, _ in self.extra_params)
        args = tuple(a for _, a in self.extra_params)
        dims = symbol_params(*self.dims)
        kernel = Kernel(name, (*self.operands.params, *buffers), dims, chunk, dim_expr(chunks), top.body, scratch)
        step = Step(kernel, (*self.operands.args, *args))
        return Lowered((*self.steps, step), tuple(self.temps))

    def store(self, block: Block, index: Index, value: Expr, mask: Expr | None) -> None:
        """Store elements of the result."""
        value = block.let(k.cast(value, self.anchor.dtype), "o")
        bind_result(self.em, block, self.anchor, value)
        index = result_index(block, self.body.outputs[0], self.anchor, index)
        store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)

    def key_head_of(self, block: Block, head: Expr) -> Expr:
        """The key head that a query head reads."""
        if self.key_heads == self.heads:
            return head
        assert isinstance(self.heads, int) and isinstance(self.key_heads, int)
        return block.let(k.binary("div", head, integer(self.heads // self.key_heads)), "kh")

    def normalizer(self, block: Block, total: Expr, lanes: int) -> Callable[[Expr], Expr]:
        """Return x -> x / total, the sum of a row's weights. A row without weights stays zero; a guarded op gives 0 for
        a row of NaN."""
        one, zero = (k.lit(c, self.dtype, total.lanes) for c in (1.0, 0.0))
        is_empty = k.binary("eq", total, zero)
        inverse = k.splat(block.let(k.binary("div", one, k.select(is_empty, one, total)), "l"), lanes)
        if not self.op.guarded:
            return lambda x: k.mul(x, inverse)
        is_nan = k.splat(block.let(k.binary("ne", total, total), "n"), lanes)
        return lambda x: k.select(is_nan, k.lit(0.0, self.dtype, lanes), k.mul(x, inverse))

    def softcap(self, value: Expr) -> Expr:
        """softcap(score)."""
        if not self.op.softcap:
            return value
        inverse = k.lit(1 / self.op.softcap, self.dtype, value.lanes)
        return k.mul(k.call("tanh", k.mul(value, inverse)), k.lit(self.op.softcap, self.dtype, value.lanes))


class Scratch:
    """Allocates buffers in a worker's scratch."""

    def __init__(self, block: Block):
        self.block, self.nbytes = block, 0

    def alloc(self, hint: str, dtype: DType, size: int) -> Buffer:
        buffer = self.block.alloc(hint, dtype, size, scratch=self.nbytes)
        self.nbytes += -(-size * dtype.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        return buffer


__all__ = ["AttentionGroup", "Scratch", "Tensor"]
