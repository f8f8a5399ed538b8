"""Row groups: reductions over one set of dimensions and the pointwise work around them, as one kernel.

    softmax:  for row: m = max(x); s = sum(e = exp(x - m)); out = e / s
    mean of NHWC over H, W:  for 32 channels at once: for h: for w: acc += x

Reductions whose operands wait for other reductions run as later passes over the row. Where the innermost dimension is
reduced, vectors run along it and are folded at the end of the pass; where it is kept, a vector holds that many rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Input, Node, rebuilt, topological
from ingot.ir.types import DType, Shape, TensorType, boolean
from ingot.ops import ArgReduce, Reduce, build
from ingot.ops.build import cast
from ingot.schedule import index as ix
from ingot.schedule.block import Block
from ingot.schedule.emit import Emitter, Index, Leaf, reshape_index, store_at
from ingot.schedule.fold import Fold, accumulator, combining, reduction
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.joined import box_inside, join_reduced, reshapes
from ingot.schedule.lowered import Arg, Lowered, Step
from ingot.schedule.machine import Machine
from ingot.schedule.pointwise import (
    AHEAD,
    CHUNK,
    Operands,
    body_dims,
    comes_from_memory,
    lanes_for,
    leaves_caches,
    lower_pointwise,
    symbol_params,
    vector_loop,
)
from ingot.schedule.short_rows import LINE, fold_rows, lines_ahead, width_of
from ingot.support.errors import CompileError

UNROLL = 4  # independent accumulators: they hide the latency of an add, or of a maximum that lets NaN through
WIDE = 8  # vectors of neighbouring rows that are read together where the reduced dimension is an outer one
CACHE = 16384  # elements of a row that may be kept on the stack between passes


@dataclass(frozen=True)
class Rows:
    """The shape of a row group: the full box, the reduced dimensions, and the dimension that vectors run along."""

    shape: Shape
    reduced: tuple[int, ...]
    axis: int

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d not in self.reduced)

    @property
    def kept_shape(self) -> Shape:
        return tuple(self.shape[d] for d in self.kept)

    @property
    def horizontal(self) -> bool:
        """Vectors run along a reduced dimension."""
        return self.axis in self.reduced


def reductions_of(body: Graph) -> list[Node]:
    return [n for n in body.nodes() if isinstance(n.op, Reduce | ArgReduce)]


def reduced_dims(node: Node) -> tuple[int, ...]:
    return tuple(sorted(reduction(node).dims))


def rows_of(body: Graph) -> Rows | None:
    """The common row shape of the group's reductions; None where they have none or disagree."""
    found = reductions_of(body)
    if not found:
        return None
    shape, reduced = found[0].inputs[0].shape, reduced_dims(found[0])
    if any(n.inputs[0].shape != shape or reduced_dims(n) != reduced for n in found):
        return None
    sized = [d for d in range(len(shape)) if shape[d] != 1]
    axis = sized[-1] if sized else len(shape) - 1
    return Rows(shape, reduced, axis)


class _Lowering:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], rows: Rows, machine: Machine):
        self.body, self.ins, self.outs, self.rows, self.machine = body, ins, outs, rows, machine
        self.operands = Operands.of(body)
        self.em: Emitter = self.operands.emitter(body, ins)
        self.found = reductions_of(body)
        self.lanes = lanes_for(body, machine)
        size = estimate(rows.shape[rows.axis])
        if rows.shape[rows.axis] == 1 or (size < self.lanes and not machine.masks):
            self.lanes = 1
        if not rows.horizontal and size % (2 * self.lanes) == 0 and size >= 16 * self.lanes:
            self.lanes *= 2
        if not rows.horizontal and self._reads_only(self.found) and not any(map(self._is_full, body.outputs)):
            # arg reductions keep a position beside each value
            wide = WIDE // 2 if any(isinstance(n.op, ArgReduce) for n in self.found) else WIDE
            widest = wide * lanes_for(body, machine)
            while self.lanes < widest and size % (2 * self.lanes) == 0:
                self.lanes *= 2
        self.stream = leaves_caches(body, machine)
        self.row: Index = ()
        self.next: Index | None = None  # the row to be asked for while this one is at work
        self.row_mask: Expr | None = None
        self.cached: dict[Node, Buffer] = {}

    def lower(self) -> Lowered:
        rows, chunk = self.rows, k.var("chunk")
        top = Block()
        outer = [d for d in rows.kept if d != rows.axis]
        count = product(rows.shape[d] for d in outer)
        per_row = estimate(product(rows.shape[d] for d in rows.reduced)) * (1 if rows.horizontal else self.lanes)
        run = max(1, CHUNK // max(per_row, 1))
        blocks: DimLike = 1 if rows.horizontal else ceildiv(rows.shape[rows.axis], self.lanes)
        if isinstance(count, int) and isinstance(blocks, int):
            run = max(1, min(run, count * blocks // (4 * self.machine.threads)))
        total = count * blocks
        width = width_of(self.body, rows.shape, rows.reduced, self.lanes, self.machine) if rows.horizontal else None
        if width is not None:
            run = -(-run // self.lanes) * self.lanes

        def one(block: Block, at: Expr) -> None:
            first, vector = at, ZERO
            if not rows.horizontal:
                first = block.let(k.binary("div", at, dim_expr(blocks)), "row")
                vector = block.let(k.binary("rem", at, dim_expr(blocks)), "vb")
            coordinates = dict(
                zip(outer, ix.delinearize(first, tuple(rows.shape[d] for d in outer), block.multiples), strict=True)
                if outer
                else ()
            )
            index = {d: block.let(e, "i") for d, e in coordinates.items()}
            far, kept = self._rows_ahead(), tuple(rows.shape[d] for d in outer)
            if far:
                behind = ix.delinearize(k.add(first, integer(far)), kept, block.multiples)
                after = {d: block.let(e, "n") for d, e in zip(outer, behind, strict=True)}
                self.next = tuple(after[d] for d in rows.kept)
            self.row_mask = None
            if not rows.horizontal:
                low = block.let(k.mul(vector, integer(self.lanes)), "lo")
                block.multiples[getattr(low, "name", "")] = self.lanes
                index[rows.axis] = k.ramp(low, self.lanes) if self.lanes > 1 else low
                extent = rows.shape[rows.axis]
                if not isinstance(extent, int) or extent % self.lanes:
                    self.row_mask = block.let(k.binary("lt", k.ramp(low, self.lanes), dim_expr(extent)), "live")
            self.row = tuple(index[d] for d in rows.kept)
            self._row(block)

        if run == 1:
            one(top, chunk)
        else:
            first = top.let(k.mul(chunk, integer(run)), "first")
            last = top.let(k.binary("min", k.add(first, integer(run)), dim_expr(total)), "last")
            if width is not None:
                span = k.mul(k.binary("div", k.sub(last, first), integer(self.lanes)), integer(self.lanes))
                begin, first = first, top.let(k.add(first, span), "rest")
                top.loop("r", begin, first, self.lanes, lambda b, at: self._rows_together(b, at, width))
            top.loop("r", first, last, 1, one)
        shapes = (d for n in self.body.inputs for d in n.shape)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)), *shapes)
        kernel = Kernel("rows", self.operands.params, dims, chunk, dim_expr(ceildiv(total, run)), top.body)
        return Lowered((Step(kernel, self.operands.args),))

    def _rows_together(self, block: Block, first: Expr, width: int) -> None:
        """As many short rows as a vector has lanes, from `first` on."""
        rows, lanes = self.rows, self.lanes
        (axis,) = (d for d in rows.reduced if rows.shape[d] != 1)
        size = estimate(rows.shape[axis])
        found: dict[Node, Expr] = {}
        for stream in self._streams():
            for row, position in lines_ahead(size, stream.dtype.nbytes, lanes):
                at = tuple(integer(position) if d == axis else ZERO for d in rows.reduced)
                self._prefetch(block, stream, at, ix.split(ix.add(first, integer(row)), rows.kept_shape))
        for n in self.found:
            dtype = accumulator(n.inputs[0].dtype)

            def value(b: Block, row: Expr, where: Expr, mask: Expr | None, n: Node = n, dtype: DType = dtype) -> Expr:
                at = tuple(where if d == axis else ZERO for d in rows.reduced)
                index = self._full_index(at, ix.split(row, rows.kept_shape))
                return k.splat(k.cast(self.em.value(b, n.inputs[0], index, mask), dtype), width)

            combine = combining(reduction(n).kind, dtype)
            found[n] = k.cast(fold_rows(block, value, n, combine, first, size, width, lanes), n.dtype)
        self.row, self.row_mask = ix.split(k.ramp(first, lanes), rows.kept_shape), None
        for n, result in found.items():
            self.em.bind(n, self._row_leaf(block, n, block.let(result, "red")))
        for i, root in enumerate(self.body.outputs):
            self._store_row(block, i, root)

    def _row(self, block: Block) -> None:
        """All passes over one row (or one vector of rows)."""
        if self.cached:
            raise CompileError("a row group visits its rows in one loop")
        levels = self._levels()
        for level in levels:
            self._pass(block, level, again=level is not levels[0])
        full = [i for i, r in enumerate(self.body.outputs) if r.shape == self.rows.shape and self._is_full(r)]
        for i, root in enumerate(self.body.outputs):
            if i not in full:
                self._store_row(block, i, root)
        if full:
            lanes = self.lanes if self.rows.horizontal else 0
            self._over_row(block, lanes, lambda b, at, m, _: self._store(b, full, at, m), again=True)

    def _rows_ahead(self) -> int:
        """How many rows on to ask for operands in the later passes over a row: these read it from the caches while the
        memory would rest. 0 where nothing comes from memory or a row would not stay."""
        row = product(self.rows.shape[d] for d in self.rows.reduced)
        nbytes = max((estimate(row) * n.dtype.nbytes for n in self._streams()), default=0)
        visits = len(self._levels()) + any(map(self._is_full, self.body.outputs))
        if not (self.stream and self.rows.horizontal and visits > 1 and 0 < nbytes <= self.machine.l2 // 4):
            return 0
        return -(-AHEAD // nbytes)

    def _streams(self) -> list[Node]:
        """The operands that every row reads elements of its own from, side by side."""
        pairs = zip(self.body.inputs, self.ins, strict=True)
        return [n for n, lay in pairs if n.shape == self.rows.shape and lay.strides[self.rows.axis] == 1]

    def _prefetch(self, block: Block, stream: Node, at: tuple[Expr, ...], row: Index) -> None:
        """Ask for what is at `at` of another row."""
        buffer, lay = next(
            (b, lay) for n, b, lay in zip(self.body.inputs, self.operands.ins, self.ins, strict=True) if n is stream
        )
        flat = ix.linear(self._full_index(at, row), lay.strides, lay.offset)
        block.stmts.append(k.Prefetch(buffer, ix.first_lane(flat)))

    def _ask_below(self, block: Block, at: tuple[Expr, ...]) -> None:
        """Where vectors run across rows that come from memory: ask for the same columns of a row further on. Each row
        is at a place of its own, which processors do not follow by themselves."""
        if not comes_from_memory(self.body, self.machine) or self.rows.horizontal or not at:
            return
        for stream in self._streams():
            nbytes = stream.dtype.nbytes
            below = (*at[:-1], k.add(at[-1], integer(-(-AHEAD // (self.lanes * nbytes)))))
            for i in range(0, self.lanes, LINE // nbytes):
                pairs = zip(self.rows.kept, self.row, strict=True)
                row = tuple(ix.add(e, integer(i)) if d == self.rows.axis else e for d, e in pairs)
                self._prefetch(block, stream, below, row)

    def _reads_only(self, found: Sequence[Node]) -> bool:
        """Operands that are only read leave registers for more sums."""
        return all(_behind_views(n.inputs[0]) in self.body.inputs for n in found)

    def _is_full(self, root: Node) -> bool:
        return not (root.shape == self.rows.kept_shape and self.rows.kept_shape != self.rows.shape)

    def _levels(self) -> list[list[Node]]:
        level: dict[Node, int] = {}
        for n in self.body.nodes():
            below = max((level[i] for i in n.inputs), default=0)
            level[n] = below + (1 if n in self.found else 0)
        order: dict[int, list[Node]] = {}
        for n in self.found:
            order.setdefault(level[n], []).append(n)
        return [order[i] for i in sorted(order)]

    def _full_index(self, at: tuple[Expr, ...], row: Index | None = None) -> Index:
        """The index in the full box: the row's coordinates and `at`, one expression per reduced dimension."""
        index: list[Expr] = [ZERO] * len(self.rows.shape)
        for d, e in zip(self.rows.kept, row or self.row, strict=True):
            index[d] = e
        for d, e in zip(self.rows.reduced, at, strict=True):
            index[d] = e
        return tuple(index)

    def _over_row(
        self,
        block: Block,
        lanes: int,
        body: Callable[[Block, tuple[Expr, ...], Expr | None, int], None],
        unroll: int = 1,
        again: bool = False,
    ) -> None:
        """Loops over the reduced dimensions; the vectorized one innermost, `unroll` vectors at a time, which the body
        is told apart by a number. lanes 0: none is. `again`: an earlier pass has read the row."""
        loops = [d for d in self.rows.reduced if not (lanes and d == self.rows.axis)]

        def nest(b: Block, left: list[int], at: dict[int, Expr]) -> None:
            if left:
                b.loop("k", 0, self.rows.shape[left[0]], 1, lambda c, e: nest(c, left[1:], at | {left[0]: e}))
                return
            if not lanes:
                full = tuple(at[d] for d in self.rows.reduced)
                if not again:
                    self._ask_below(b, full)
                body(b, full, self.row_mask, 0)
                return

            def vector(c: Block, e: Expr, mask: Expr | None, slot: int = 0) -> None:
                full = at | {self.rows.axis: e}
                if again and self.next is not None and mask is None and e.lanes > 1:
                    for stream in self._streams():
                        self._prefetch(c, stream, tuple(full[d] for d in self.rows.reduced), self.next)
                body(c, tuple(full[d] for d in self.rows.reduced), mask, slot)

            def several(c: Block, e: Expr) -> None:
                for u in range(unroll):
                    vector(c, k.ramp(ix.add(e, integer(u * lanes)), lanes), None, u)

            extent, start = self.rows.shape[self.rows.axis], ZERO
            if unroll > 1:
                step = integer(unroll * lanes)
                start = b.let(k.mul(k.binary("div", dim_expr(extent), step), step), "m")
                b.loop("j", 0, start, unroll * lanes, several)
            vector_loop(b, start, extent, lanes, self.machine, vector, multiple=lanes)

        nest(block, loops, {})

    def _pass(self, block: Block, level: list[Node], again: bool) -> None:
        """One loop over the row for all reductions of a level."""
        lanes = self.lanes
        unroll = 1
        if self.rows.horizontal and lanes > 1:
            unroll = UNROLL if self._reads_only(level) else UNROLL // 2
            unroll = unroll if estimate(self.rows.shape[self.rows.axis]) >= 2 * unroll * lanes else 1
        folds = [Fold.of(n, block, lanes, unroll) for n in level]
        keep = [n for n in level if self._worth_caching(n)]
        for n in keep:
            self._alloc_cache(block, n.inputs[0])

        def body(b: Block, at: tuple[Expr, ...], mask: Expr | None, slot: int) -> None:
            index = self._full_index(at)
            for n, fold in zip(level, folds, strict=True):
                operand = n.inputs[0]
                value = self.em.value(b, operand, index, mask)
                if n in keep:
                    where = self._cache_index(index)
                    store_at(b, self.cached[operand], where, value, mask if self.rows.horizontal else None)
                if self.rows.horizontal and lanes > index[self.rows.axis].lanes:
                    value = fold.alone(value)  # one by one, behind the last whole vector
                fold.add(b, value, self._position(at), mask if self.rows.horizontal else None, slot)

        self._over_row(block, lanes if self.rows.horizontal else 0, body, unroll, again)
        for n, fold in zip(level, folds, strict=True):
            result = block.let(k.cast(fold.result(block, self.rows.horizontal), n.dtype), "red")
            self.em.bind(n, self._row_leaf(block, n, result))
        for n in keep:
            buffer = self.cached[n.inputs[0]]
            self.em.bind(
                n.inputs[0],
                Leaf(
                    lambda b, index, mask, buffer=buffer: b.let(
                        k.load(buffer, ix.first_lane(self._cache_index(index)), self._cache_index(index).lanes, mask)
                    ),
                    home=block,
                    pinned=True,
                ),
            )
        self.cached = {}

    def _position(self, at: tuple[Expr, ...]) -> Expr:
        """The index along the reduced dimension, for arg reductions (which reduce one)."""
        return at[0] if at else ZERO

    def _row_leaf(self, block: Block, node: Node, result: Expr) -> Leaf:
        row = self.row
        spread = len(self.rows.shape) == len(node.shape)  # an arg reduction may keep its dimension

        def read(b: Block, index: Index, mask: Expr | None) -> Expr:
            own = tuple(index[d] for d in self.rows.kept) if spread else index
            shape = self.rows.kept_shape
            if len(own) != len(row) or any(d != 1 and not _same(a, c) for a, c, d in zip(own, row, shape, strict=True)):
                raise CompileError("a reduction's result is read at another row than the one at hand", where=node.loc)
            return result

        return Leaf(read, home=block)

    def _worth_caching(self, node: Node) -> bool:
        """The reduced value is computed (not just read) and needed again after this pass."""
        operand = node.inputs[0]
        if operand in self.body.inputs or not operand.inputs or operand.dtype == boolean:
            return False
        again = (
            any(u not in self.found and operand in u.inputs for u in self.body.nodes()) or operand in self.body.outputs
        )
        size = product(self.rows.shape[d] for d in self.rows.reduced)
        return again and isinstance(size, int) and size * (1 if self.rows.horizontal else self.lanes) <= CACHE

    def _alloc_cache(self, block: Block, operand: Node) -> None:
        size = product(self.rows.shape[d] for d in self.rows.reduced)
        assert isinstance(size, int)
        lanes = self.lanes
        extent = size * lanes if not self.rows.horizontal else -(-size // lanes) * lanes
        self.cached[operand] = block.alloc("row", operand.dtype, extent, stack=True)

    def _cache_index(self, index: Index) -> Expr:
        extents = Layout.contiguous(tuple(self.rows.shape[d] for d in self.rows.reduced))
        flat = ix.linear(tuple(index[d] for d in self.rows.reduced), extents.strides)
        return flat if self.rows.horizontal else k.ramp(ix.mul(flat, integer(self.lanes)), self.lanes)

    def _store(self, block: Block, roots: list[int], at: tuple[Expr, ...], mask: Expr | None) -> None:
        index = self._full_index(at)
        for i in roots:
            lay = self.outs[i]
            value = self.em.value(block, self.body.outputs[i], index, mask)
            flat = ix.linear(index, lay.strides, lay.offset)
            store_at(block, self.operands.outs[i], flat, value, mask, stream=self.stream)

    def _store_row(self, block: Block, i: int, root: Node) -> None:
        index = reshape_index(block, root.shape, self.rows.kept_shape, self.row)
        lay = self.outs[i]
        value = self.em.value(block, root, index, self.row_mask)
        flat = ix.linear(index, lay.strides, lay.offset)
        store_at(block, self.operands.outs[i], flat, value, self.row_mask, stream=self.stream)


def _behind_views(node: Node) -> Node:
    while isinstance(node.op, ops.Reshape | ops.Transpose):
        node = node.inputs[0]
    return node


def _same(a: Expr, b: Expr) -> bool:
    """Whether two index expressions are the same, by structure (they are small)."""
    return a is b or a == b


PART = 4096  # elements that a part of a row should have at least


def _parts(body: Graph, rows: Rows, machine: Machine) -> tuple[int, int] | None:
    """(dimension, parts) to cut a reduction in, where there are too few rows for all threads."""
    rest = product(rows.shape[d] for d in rows.reduced)
    outer = product(rows.shape[d] for d in rows.kept if d != rows.axis)
    across = 1 if rows.horizontal else -(-estimate(rows.shape[rows.axis]) // (WIDE * lanes_for(body, machine)))
    units, goal = estimate(outer) * across, 4 * machine.threads
    if machine.threads == 1 or units >= goal or not isinstance(rest, int):
        return None
    least = -(-goal // max(units, 1))
    for d in rows.reduced:
        extent = rows.shape[d]
        assert isinstance(extent, int)
        for parts in (*range(least, 8 * goal), *range(least - 1, 1, -1)):
            if extent % parts == 0 and rest // parts >= PART:
                return d, parts
    return None


def _lower_parts(
    body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], at: int, parts: int, machine: Machine
) -> Lowered:
    """Two kernels:   sum(x[n])   ->   p[i] = sum(x[i * n / parts ...]);  sum(p)"""
    partial: list[Node] = []
    memo: dict[Node, Node] = {}
    for n in reductions_of(body):
        x, op = n.inputs[0], reduction(n)
        extent = x.shape[at]
        assert isinstance(extent, int)
        cut = (*x.shape[:at], parts, extent // parts, *x.shape[at + 1 :])
        wide = ops.Reshape(cut)(cast(x, accumulator(x.dtype)))
        where = sum(d not in op.dims for d in range(at))
        values = Reduce(op.kind, tuple(d + (d >= at) for d in op.dims))(wide)
        partial.append(values)
        if isinstance(op, Reduce):
            memo[n] = cast(Reduce(op.kind, (where,))(values), n.dtype)
        else:
            partial.append(replace(op, dim=at + 1)(wide))
            memo[n] = _place(op, values, partial[-1], where, extent // parts)
    whole, own = rest_of(body, memo, ())
    return _lower_apart(whole, tuple(dict.fromkeys(partial)), tuple(ins[i] for i in own), outs, machine)


def _place(op: ArgReduce, values: Node, places: Node, at: int, length: int) -> Node:
    """Where the best value is: parts of `length` along dimension `at` have their best `values` at `places`."""
    best = build.reduce(op.kind, values, at, keepdims=True)
    same = build.compare("EQ", values, best)
    if values.dtype.is_float:
        same = build.or_(same, build.and_(build.compare("NE", values, values), build.compare("NE", best, best)))
    behind = build.add(places, build.mul(ops.Iota(places.type, at)(), length))
    nowhere = -1 if op.last else (1 << 63) - 1
    return build.reduce("max" if op.last else "min", build.where(same, behind, nowhere), at)


@dataclass(frozen=True)
class Parts:
    """What a reduction gives for parts of its operand, in a temporary of this type, to be folded over `dims`."""

    node: Node
    type: TensorType
    dims: tuple[int, ...]


def lower_folded(
    body: Graph, parts: tuple[Parts, ...], ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine,
    first: int = 0,
) -> tuple[Step, ...]:
    """The rest of a group whose reductions have been folded in parts, which lie in its first temporaries. first: the
    number of the group's result that is the first of `body`'s."""
    memo: dict[Node, Node] = {}
    given: list[Node] = []
    for i, f in enumerate(parts):
        op = reduction(f.node)
        assert isinstance(op, Reduce)
        given.append(Input(f"part{i}", f.type)())
        memo[f.node] = cast(replace(op, dims=f.dims)(given[-1]), f.node.dtype)
    rest, lasts = rest_of(body, memo, given)
    places = tuple(Layout.contiguous(f.type.shape) for f in parts)
    rows = rows_of(rest)
    assert rows is not None
    low = _Lowering(rest, (*places, *(ins[i] for i in lasts)), outs, rows, machine).lower()
    args = [*(Arg("temp", i) for i in range(len(parts))), *(Arg("in", i) for i in lasts)]
    results = [Arg("out", first + i) for i in range(len(rest.outputs))]
    return tuple(with_args(s, {"in": args, "out": results}) for s in low.steps)


def rest_of(body: Graph, memo: dict[Node, Node], given: Sequence[Node]) -> tuple[Graph, list[int]]:
    """`body` with what `memo` has in the place of its nodes, and the numbers of its own inputs that are still read:
    they come behind the new ones, `given`."""
    outputs = rebuilt(body.outputs, memo)
    read = set(topological(outputs))
    left = [i for i, n in enumerate(body.inputs) if n in read]
    return Graph((*given, *(body.inputs[i] for i in left)), outputs), left


def _lower_levels(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """The first reductions of a group, then the rest of it, by kernels that all threads share:

    y = x - mean(x)   ->   s = sum(x);  y = x - s / n
    """
    found = set(reductions_of(body))
    firsts = [n for n in reductions_of(body) if not found.intersection(topological([n.inputs[0]]))]
    return _lower_apart(body, firsts, ins, outs, machine)


def _lower_apart(
    body: Graph, firsts: Sequence[Node], ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine
) -> Lowered:
    """Kernels for `firsts`, which are stored, then kernels for what comes behind them."""
    read = set(topological(firsts))
    own = [i for i, n in enumerate(body.inputs) if n in read]
    places = tuple(Layout.contiguous(n.shape) for n in firsts)
    start = Graph(tuple(body.inputs[i] for i in own), tuple(firsts))
    one = lower_rows(start, tuple(ins[i] for i in own), places, machine)

    # names of their own: the rest may have levels too, and equal inputs are one node
    taken = {n.op.label for n in body.inputs if isinstance(n.op, Input)}
    labels = (label for label in map("row{}".format, itertools.count()) if label not in taken)
    memo: dict[Node, Node] = {n: Input(label, n.type)() for n, label in zip(firsts, labels, strict=False)}
    rest, left = rest_of(body, memo, [memo[n] for n in firsts])
    lower = lower_rows if reductions_of(rest) else lower_pointwise
    two = lower(rest, (*places, *(ins[i] for i in left)), outs, machine)

    results = [Arg("temp", i) for i in range(len(firsts))]
    temps = [Arg("temp", len(firsts) + i) for i in range(len(one.temps) + len(two.temps))]
    steps = [with_args(s, {"in": [Arg("in", i) for i in own], "out": results, "temp": temps}) for s in one.steps]
    given_args = [*results, *(Arg("in", i) for i in left)]
    steps += [with_args(s, {"in": given_args, "temp": temps[len(one.temps) :]}) for s in two.steps]
    return Lowered(tuple(steps), (*(n.type.nbytes for n in firsts), *one.temps, *two.temps))


def with_args(step: Step, places: Mapping[str, Sequence[Arg]]) -> Step:
    return Step(step.kernel, tuple(places[a.kind][a.index] if a.kind in places else a for a in step.args))


def lower_rows(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """One kernel for a group whose reductions share their rows (see `rows_of`); several where rows are few and long."""
    rows = rows_of(body)
    if rows is None:
        raise CompileError("a row group needs reductions over one set of dimensions")
    inside = box_inside(body, rows.shape, ins, outs)
    if inside is not None:
        return lower_rows(*inside, machine)
    reshaped = [n for n in body.outputs if reshapes(n, rows.shape)]
    if reshaped:  # what no strides express
        return _lower_apart(body, tuple({n.inputs[0]: None for n in reshaped}), ins, outs, machine)
    joined = join_reduced(body, rows.shape, rows.reduced, ins, outs)
    if joined is not None:
        return lower_rows(*joined, machine)
    cut, found = _parts(body, rows, machine), reductions_of(body)
    levelled = any(m in topological([n.inputs[0]]) for n in found for m in found)
    ends_in_rows = all(product(n.shape) == product(rows.kept_shape) for n in body.outputs)
    if cut is not None and ends_in_rows and not levelled:
        return _lower_parts(body, ins, outs, *cut, machine)
    if cut is not None and len({n.shape for n in body.outputs}) == 1:
        return _lower_levels(body, ins, outs, machine)
    return _Lowering(body, ins, outs, rows, machine).lower()


__all__ = ["Parts", "Rows", "lower_folded", "lower_rows", "reductions_of", "rest_of", "rows_of", "with_args"]
