"""Lower a fused group to kernels of a single form, which a circuit runs with a step in each clock cycle.

    for each element of the result:              counters
        acc = identity
        for each term:                           counters
            acc = combine(acc, term)             an inner step: one read of each operand
        store epilogue(acc)                      an outer step

A group without a reduction has no inner loops. All sizes are static, all values integers or booleans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops.core.base import identity_of
from ingot.ops.group import Group
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands
from ingot.schedule.emit import Emitter, Index, load_leaf, store_at
from ingot.schedule.folds import combining_op
from ingot.schedule.group_io import bind_result, result_index
from ingot.schedule.index import ZERO, mask_and
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.support.errors import CompileError

_ANCHORS = (ops.DotGeneral, ops.Convolution, ops.ReduceWindow, ops.Reduce)
# the extents of the inner loops, and the term at (index of the result, counters)
Terms = tuple[tuple[int, ...], Callable[[Block, Index, Index], Expr]]


def lower(
    group: Group, ins: tuple[Layout, ...], outs: tuple[Layout, ...], constant: tuple[bool, ...], machine: object
) -> Lowered:
    """See `ingot.pipeline.target.Target`. Raises CompileError for floats, open sizes and other ops."""
    body = group.body
    for node in body.nodes():
        if any(t.dtype.is_float for t in node.types):
            fix = "quantize the model to int8 from its inputs to its outputs"
            raise CompileError("a circuit", expected="integers only", got=node.op.name, where=node.loc, fix=fix)
        if any(not isinstance(d, int) for t in node.types for d in t.shape):
            raise CompileError(
                "a circuit", expected="fixed sizes", got=node.op.name, where=node.loc, fix="--dim NAME=SIZE"
            )
        if isinstance(node.op, ops.DotGeneral | ops.Convolution) and node.op.of_signs:
            raise CompileError("a circuit", expected="products of integers", got="words of signs", where=node.loc)
    return _Group(body, ins, outs).lowered()


class _Group:
    """A group as nests: one for each reduction, and for each result that is not the epilogue of the last of them."""

    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...]) -> None:
        self.body, self.outs = body, outs
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.params: list[tuple[Buffer, Arg]] = list(zip(self.operands.ins, self.operands.args, strict=False))
        self.temps: list[int] = []
        self.steps: list[Step] = []

    def lowered(self) -> Lowered:
        anchors = [n for n in self.body.nodes() if isinstance(n.op, _ANCHORS)]
        results = list(range(len(self.body.outputs)))
        for anchor in anchors:
            is_last = anchor is anchors[-1] and len(results) == 1 and _is_epilogue(self.body.outputs[0], anchor)
            self._nest(anchor, anchor, results.pop() if is_last else None)
        for i in results:
            self._nest(None, self.body.outputs[i], i)
        return Lowered(tuple(self.steps), temps=tuple(self.temps))

    def _nest(self, anchor: Node | None, value: Node, result: int | None) -> None:
        """Compute `value` into a result, by an epilogue if there is an anchor, or into a temporary."""
        block, em = Block(), self.em
        if result is None:
            layout = Layout.contiguous(value.shape)
            out, arg = Buffer(f"temp{len(self.temps)}", value.dtype, writable=True), Arg("temp", len(self.temps))
            self.temps.append(prod(_static(value)) * value.dtype.nbytes)
        else:
            layout, out, arg = self.outs[result], self.operands.outs[result], Arg("out", result)

        def element(b: Block, index: Index) -> None:
            if anchor is not None:
                _reduce(b, em, anchor, index)
            if result is None:
                store_at(b, out, ix.linear(index, layout.strides, layout.offset), em.value(b, value, index))
                return
            root = self.body.outputs[result]
            at = index if anchor is None else result_index(b, root, anchor, index)
            store_at(b, out, ix.linear(at, layout.strides, layout.offset), em.value(b, root, at))

        _loops(block, _static(value), (), element)
        params = [*self.params, (out, arg)]
        kernel = Kernel("nest", tuple(b for b, _ in params), (), k.var("chunk"), integer(1), block.body)
        self.steps.append(Step(kernel, tuple(a for _, a in params)))
        if result is None:
            register = Buffer(out.name, out.dtype)
            em.bind(value, load_leaf(register, layout))
            self.params.append((register, arg))


def _is_epilogue(root: Node, anchor: Node) -> bool:
    """Whether each element of `root` depends on the one element of the anchor at its place."""
    depends: dict[Node, bool] = {}

    def check(node: Node) -> bool:
        if node is anchor:
            return True
        if node not in depends:
            depends[node] = False
            parts = [check(i) for i in node.inputs]
            if any(parts):
                is_free = isinstance(node.op, ops.Reshape | ops.Transpose | ops.Elementwise)
                if not is_free or _count(node) != _count(anchor):
                    raise _NotAnEpilogueError
                depends[node] = True
        return depends[node]

    try:
        return check(root)
    except _NotAnEpilogueError:
        return False


class _NotAnEpilogueError(Exception):
    pass


def _count(node: Node) -> int:
    return prod(_static(node))


def _static(node: Node) -> tuple[int, ...]:
    return tuple(d for d in node.shape if isinstance(d, int))


def _loops(block: Block, extents: Sequence[int], index: Index, body: Callable[[Block, Index], None]) -> None:
    if not extents:
        body(block, index)
        return
    block.loop("i", 0, extents[0], 1, lambda b, i: _loops(b, extents[1:], (*index, i), body))


def _reduce(block: Block, em: Emitter, anchor: Node, index: Index) -> None:
    """Fold all terms of the anchor's element at `index` in a register and bind it to the anchor."""
    op, dtype = anchor.op, anchor.dtype
    kind = op.kind if isinstance(op, ops.ReduceWindow | ops.Reduce) else "sum"
    acc = block.alloc("acc", dtype, 1)
    block.store(acc, ZERO, k.lit(identity_of(kind, dtype), dtype))
    extents, term = _TERMS[type(op)](em, anchor)

    def step(b: Block, counters: Index) -> None:
        value = k.cast(term(b, index, counters), dtype)
        b.store(acc, ZERO, k.binary(combining_op(kind, dtype), k.load(acc, ZERO), value))

    _loops(block, extents, (), step)
    bind_result(em, block, anchor, block.let(k.load(acc, ZERO), "acc"))


def _product(block: Block, em: Emitter, anchor: Node, at: Sequence[Index], mask: Expr | None = None) -> Expr:
    a, b = (k.cast(em.value(block, x, i, mask), anchor.dtype) for x, i in zip(anchor.inputs, at, strict=True))
    product = block.let(k.mul(a, b))
    return product if mask is None else k.select(mask, product, k.lit(0, anchor.dtype))


def _dot_terms(em: Emitter, anchor: Node) -> Terms:
    op, (a, b) = anchor.op, anchor.inputs
    assert isinstance(op, ops.DotGeneral)
    ranks = a.type.rank, b.type.rank
    batch = len(op.batch[0])
    free = op.free(*ranks)

    def term(block: Block, index: Index, counters: Index) -> Expr:
        starts = batch, batch + len(free[0])
        at: list[Index] = []
        for side, rank in enumerate(ranks):
            positions = dict(zip(op.batch[side], index[:batch], strict=True))
            positions |= dict(zip(free[side], index[starts[side] :], strict=False))
            positions |= dict(zip(op.contract[side], counters, strict=True))
            at.append(tuple(positions[d] for d in range(rank)))
        return _product(block, em, anchor, at)

    return tuple(_static(a)[d] for d in op.contract[0]), term


def _convolution_terms(em: Emitter, anchor: Node) -> Terms:
    op, (x, w) = anchor.op, anchor.inputs
    assert isinstance(op, ops.Convolution)
    if op.batch_groups != 1 or set(op.lhs_dilation) - {1}:
        raise CompileError("a circuit", expected="a convolution without dilation of its operand", where=anchor.loc)
    axes = [d for d in op.lhs_layout if d not in "NC"]
    sizes = dict(zip(op.rhs_layout, _static(w), strict=True))
    per_group = sizes["O"] // op.feature_groups

    def term(block: Block, index: Index, counters: Index) -> Expr:
        out = dict(zip(op.out_layout, index, strict=True))
        tap = dict(zip((*axes, "I"), counters, strict=True))
        at, inside = {"N": out["N"]}, None
        for n, axis in enumerate(axes):
            start = ix.add(ix.mul(out[axis], integer(op.strides[n])), ix.mul(tap[axis], integer(op.rhs_dilation[n])))
            at[axis] = ix.sub(start, integer(op.padding[n][0]))
            if any(op.padding[n]):
                inside = _within(inside, at[axis], _static(x)[op.lhs_layout.index(axis)])
        group = k.binary("div", out["C"], integer(per_group)) if op.feature_groups > 1 else ZERO
        at["C"] = ix.add(ix.mul(group, integer(sizes["I"])), tap["I"])
        inside = None if inside is None else block.let(inside, "in")
        places = tuple(at[d] for d in op.lhs_layout), tuple({**tap, "O": out["C"]}[d] for d in op.rhs_layout)
        return _product(block, em, anchor, places, inside)

    return tuple(sizes[d] for d in (*axes, "I")), term


def _within(inside: Expr | None, at: Expr, size: int) -> Expr | None:
    return mask_and(mask_and(inside, k.binary("ge", at, ZERO)), k.binary("lt", at, integer(size)))


def _window_terms(em: Emitter, anchor: Node) -> Terms:
    op, (x,) = anchor.op, anchor.inputs
    assert isinstance(op, ops.ReduceWindow)
    if set(op.base_dilation) - {1}:
        raise CompileError("a circuit", expected="a window without dilation of its operand", where=anchor.loc)

    def term(block: Block, index: Index, counters: Index) -> Expr:
        at: list[Expr] = []
        inside: Expr | None = None
        for n, (i, tap) in enumerate(zip(index, counters, strict=True)):
            start = ix.add(ix.mul(i, integer(op.strides[n])), ix.mul(tap, integer(op.dilation[n])))
            at.append(ix.sub(start, integer(op.padding[n][0])))
            if any(op.padding[n]):
                inside = _within(inside, at[n], _static(x)[n])
        inside = None if inside is None else block.let(inside, "in")
        value = em.value(block, x, tuple(at), inside)
        return value if inside is None else k.select(inside, value, k.lit(identity_of(op.kind, x.dtype), x.dtype))

    return op.window, term


def _reduce_terms(em: Emitter, anchor: Node) -> Terms:
    op, (x,) = anchor.op, anchor.inputs
    assert isinstance(op, ops.Reduce)

    def term(block: Block, index: Index, counters: Index) -> Expr:
        kept_index, reduced_index = iter(index), iter(counters)
        return em.value(
            block, x, tuple(next(reduced_index if d in op.dims else kept_index) for d in range(x.type.rank))
        )

    return tuple(_static(x)[d] for d in op.dims), term


_TERMS: dict[type, Callable[[Emitter, Node], Terms]] = {
    ops.DotGeneral: _dot_terms,
    ops.Convolution: _convolution_terms,
    ops.ReduceWindow: _window_terms,
    ops.Reduce: _reduce_terms,
}
