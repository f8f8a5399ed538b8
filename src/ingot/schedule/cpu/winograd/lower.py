"""Winograd convolution: 3x3 (and 5x5) windows of stride 1 by small matrix products on transformed tiles.

    a chunk: T tiles of m x m outputs, a block of output channels; alpha = m + r - 1

    for each tile, 16 channels:  V[alpha^2][tile][ci] = B^T d B           d: alpha x alpha inputs of the tile
    for e in alpha^2:            M[e][tile][co] = V[e] U[e]               U = G g G^T, packed at compile time
    for each tile, 16 channels:  out = epilogue(A^T M A)                  by the definition where that is not finite

V and M are scratch that stays in the second-level cache; U is a stream. Where V is large or used by many chunks, it is
a temporary that a step of its own fills. F(4, 3) takes 36 products where the direct convolution takes 144, F(2, 3) 16
instead of 36. The last tiles of a row or column of tiles are moved back inside the image, so that nothing beyond the
input is read, and leave alone what the tiles before them store. Dilated windows are those of d x d images, of every
d-th row and column. A third spatial dimension and groups are more loops of the products. Where few tiles share the
weights, U is made late: of some input channels at a time, row by row of alpha products, which are added to M.
docs/winograd.md: error bounds, and when this pays.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import gcd

import numpy as np

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, ceildiv, estimate, product, symbol
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands, body_dims, symbol_params
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.contraction.cost_model import plan_contraction
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import Operand, Write
from ingot.schedule.cpu.contraction.pack import panel_widths, product_panels, stepped, window_stream
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.definition import Definition
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Pieces, covered
from ingot.schedule.cpu.winograd.tiles import Place, Tiles
from ingot.schedule.cpu.winograd.toom_cook import apply, transform, transformed_weights
from ingot.schedule.cpu.winograd.weights import side_by_side, weights_step
from ingot.schedule.emit import Index
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Pack, Step

CHUNK_CYCLES = 40000  # of a step that only transforms the input


def lower_winograd(
    body: Graph,
    ins: tuple[Layout, ...],
    outs: tuple[Layout, ...],
    anchor: Node,
    plan: Pieces,
    machine: Machine,
    packed: bool = True,
) -> Lowered:
    """The group of a convolution that is `covered`, in the pieces of `plan`. packed: its weights are a constant, laid
    out when it is compiled; others are laid out at each call."""
    return _Winograd(body, ins, outs, anchor, plan, machine, packed).lower()


class _Winograd:
    def __init__(
        self,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        anchor: Node,
        plan: Pieces,
        machine: Machine,
        packed: bool,
    ):
        self.packed = packed
        self.body, self.ins, self.outs, self.anchor, self.plan, self.machine = body, ins, outs, anchor, plan, machine
        op = anchor.op
        assert isinstance(op, ops.Convolution)
        self.op = op
        x, w = anchor.inputs
        self.x_at, x_layout = operand_memory(body, x, ins)
        self.w_at, self.w_layout = operand_memory(body, w, ins)
        shape = covered(anchor, x_layout, self.w_layout)
        assert shape is not None
        self.shape = shape
        self.x_layout = x_layout.transpose(tuple(op.lhs_layout.index(c) for c in ("N", *op.spatial, "C")))
        images, *positions, _ = self.x_layout.strides
        self.x_strides = (images, *((0,) * (3 - len(positions))), *positions)
        self.t = transform(plan.m, shape.r)
        self.lanes = machine.lanes(shape.dtype)
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.tiling = Tiles(shape, plan.m)
        self.slice = product((*shape.dilation, *shape.grid(plan.m)))
        self.units, slices = shape.units()
        self.tiles = self.slice * slices
        self.runs = ceildiv(self.tiles, plan.tiles)
        self.per = -(-shape.co // plan.columns)  # blocks of columns of each group
        self.blocks = shape.groups * self.per
        self.kept = shape.ci * (shape.groups if plan.split else 1)  # channels in a row of V
        line = 64 // shape.dtype.nbytes
        # an odd number of cache lines between rows: no two of a register tile in one set of the first-level cache
        self.row = plan.late or (-(-self.kept // line) | 1) * line
        self.products = self.t.alpha**2
        # tiles of one product in V
        self.stacked = self._stacked()
        # elements of weights that a chunk transforms at a time for one product: an odd number of cache lines
        self.late_step = (plan.late * plan.columns // line | 1) * line
        self.part = self.products * self.stacked * self.row  # of V, whose rows hold all channels or those of a part
        self.unit_size = self.part * (self.kept // plan.late if plan.late else 1)
        self.contraction = self._contraction()
        self.gemm = self._gemm_plan()

    def _stacked(self) -> int:
        if not self.plan.split:
            return self.plan.tiles
        assert isinstance(self.runs, int) and isinstance(self.slice, int)
        return self.plan.tiles * self.runs + self.slice * self.shape.extra

    def _contraction(self) -> Contraction:
        p, s = self.plan, self.shape
        if p.late:
            return Contraction(
                batch=(Axis(self.t.alpha, self.stacked * self.row, self.late_step),),
                rows=(Axis(p.tiles, self.row),), cols=(Axis(p.columns, 0, 1),), reduce=(Axis(p.late, 1, p.columns),),
                a=s.dtype, b=s.dtype, acc=s.dtype, packed=False,
            )  # fmt: skip
        panels = s.k * p.columns  # elements of B for one product
        return Contraction(
            batch=(
                Axis(s.groups, s.ci if p.split else 0, self.per * self.products * panels),
                Axis(self.per, 0, self.products * panels),
                Axis(self.products, self.stacked * self.row, panels),
            ),
            rows=(Axis(p.tiles, self.row),),
            cols=(Axis(p.columns, 0, 1),),
            reduce=(Axis(s.taps, s.apart * self.slice * self.row, s.ci * p.columns), Axis(s.ci, 1, p.columns)),
            a=s.dtype, b=s.dtype, acc=s.dtype,
        )  # fmt: skip

    def _gemm_plan(self) -> Plan:
        """All products of one block of columns are one run, or those of a row of U."""
        p = plan_contraction(self.contraction, self.machine)
        panels, run = -(-self.plan.columns // p.panel), self.t.alpha if self.plan.late else self.products
        return replace(
            p, row_run=1, row_block=self.plan.tiles, panels=panels, batch_run=run, k_block=0, panel_at=-1,
            scratch_bytes=0,
        )  # fmt: skip

    def lower(self) -> Lowered:
        v = Buffer("v", self.shape.dtype, writable=True) if self.plan.split else None
        steps = () if v is None else (self._transform(v),)
        temps = () if v is None else (self.units * (self.unit_size * self.shape.dtype.nbytes),)
        packs = self._packs()
        weights = [Arg("pack", i) for i in range(len(packs))]
        if not self.packed:
            weights = [Arg("temp", len(temps) + i) for i in range(len(packs))]
            temps += tuple(x.nbytes for x in packs)
            made, more = self._weights_at_run_time(weights, len(temps))
            steps, temps, packs = (*made, *steps), (*temps, *more), ()
        return Lowered((*steps, self._multiply(v, weights)), temps, packs)

    def _weights_at_run_time(self, to: list[Arg], temps: int) -> tuple[list[Step], tuple[DimLike, ...]]:
        """Steps that make what `_packs` says, and their temporaries behind the others."""
        w, layout, arg = self.anchor.inputs[1], self.w_layout, Arg("in", self.w_at)
        at, more, steps = self.op.rhs_layout.index("O"), (), []
        if layout.strides[at] != 1 and w.shape[at] != 1:
            copy, layout = side_by_side(w, layout, at, self.machine, arg, Arg("temp", temps))
            arg, more, steps = Arg("temp", temps), (w.type.nbytes,), [copy]
        # the windows come first: late weights are these alone
        args = [arg, *reversed(to)]
        panel = self.gemm.panel
        made = weights_step(self.op, layout, self.shape, self.plan, self.t, panel, self.machine, args)
        return [*steps, made], more

    def _transform(self, v: Buffer) -> Step:
        """The step that fills all of V."""
        tiles = self.stacked
        cost = -(-self.kept // self.lanes) * self.products * CYCLES_PER_VECTOR
        per = max(1, min(int(CHUNK_CYCLES / cost), tiles // (2 * self.machine.threads)))
        chunk, top = k.var("chunk"), Block()
        unit, part = (top.let(e, "c") for e in ix.delinearize(chunk, (self.units, -(-tiles // per)), top.multiples))
        low = top.let(k.mul(part, integer(per)), "t")
        high = k.add(low, integer(per))
        if tiles % per:
            high = top.let(k.binary("min", high, integer(tiles)), "t")
        base = top.let(k.mul(unit, integer(self.unit_size)), "u")

        def tile(b: Block, i: Expr) -> None:
            self._input(b, v, unit, ZERO, i, k.add(base, k.mul(i, integer(self.row))))

        top.loop("i", low, high, 1, tile)
        x = self.operands.ins[self.x_at]
        dims = symbol_params(*body_dims(self.body, self.ins))
        kernel = Kernel("winograd_tiles", (x, v), dims, chunk, dim_expr(self.units * -(-tiles // per)), top.body)
        return Step(kernel, (Arg("in", self.x_at), Arg("temp", 0)))

    def _multiply(self, tiles: Buffer | None, weights: list[Arg]) -> Step:
        """The step that multiplies and transforms back. Without `tiles` it fills V itself, in scratch. weights: those
        of `_packs`."""
        p, s = self.plan, self.shape
        chunk, top = k.var("chunk"), Block()
        extents = (self.blocks, self.units, self.runs)
        block, unit, run = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
        if self.blocks == 1:
            block = ZERO
        group, part = (top.let(e, "c") for e in ix.delinearize(block, (s.groups, self.per), top.multiples))
        if s.groups == 1:
            group = ZERO
        first = top.let(k.mul(run, integer(p.tiles)), "t") if self.runs != 1 else ZERO
        m_at = 0
        start: Expr = ZERO
        if tiles is None:
            v = top.alloc("v", s.dtype, self.unit_size, scratch=0)
            m_at = -(-self.unit_size * s.dtype.nbytes // 64) * 64
            channel = k.mul(group, integer(s.ci))

            def tile(b: Block, i: Expr) -> None:
                self._input(b, v, unit, channel, k.add(first, i), k.mul(i, integer(self.row)))

            top.loop("i", 0, p.tiles, 1, tile)
        else:
            v = tiles
            start = k.add(k.mul(unit, integer(self.unit_size)), k.mul(first, integer(self.row)))
        size = self.products * p.tiles * p.columns
        m = top.alloc("m", s.dtype, size, scratch=m_at)
        packed = Buffer("u", s.dtype)
        scratch = m_at + size * s.dtype.nbytes
        if p.late:
            if p.split:
                start = k.add(start, k.mul(group, integer(s.ci // p.late * self.part)))
            scratch = self._late_products(top, v, top.let(start, "v"), block, packed, m, scratch)
        else:

            def write(b: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
                *_, e, row, column = index
                b.store(m, ix.first_lane(self._m_index(e, row, column)), acc, mask)

            self._products(top, v, start, block, packed, write)
        windows = packed if p.late else Buffer("w", s.dtype)
        exact = self._definition(windows, block, group)
        self._output(top, m, unit, first, group, part, exact)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        params = list(zip(self.operands.params, self.operands.args, strict=True))
        if not self._used_elsewhere(self.w_at):
            params = [(b, a) for b, a in params if a != Arg("in", self.w_at)]
        params += [(packed, weights[0])] + ([(v, Arg("temp", 0))] if tiles is not None else [])
        params += [(windows, weights[1])] if windows is not packed else []
        chunks = dim_expr(self.blocks * self.units * self.runs)
        kernel = Kernel("winograd", tuple(b for b, _ in params), dims, chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(a for _, a in params))

    def _products(self, top: Block, v: Buffer, start: Expr, block: Expr, u: Buffer, write: Write) -> None:
        """V U, of which `write` gets all vectors."""
        # an operand's offset is a dimension: here one that this kernel itself computes
        here, which = top.fresh("va"), top.fresh("cb")
        top.stmts += [k.Let(here, start), k.Let(which, block)]
        emit_macro_kernel(top, which, self.contraction, self.gemm, Operand(v, symbol(here.name)), Operand(u), write)

    def _late_products(
        self, top: Block, v: Buffer, start: Expr, block: Expr, packed: Buffer, m: Buffer, scratch: int
    ) -> int:
        """M = V U, the weights of some input channels at a time and of them one row of U. Returns bytes of scratch."""
        p, s, alpha = self.plan, self.shape, self.t.alpha
        u = top.alloc("ub", s.dtype, alpha * self.late_step, scratch=scratch)
        taps = s.r * s.r * p.late * p.columns  # elements that are transformed at a time
        entries = self.products * p.tiles * p.columns
        zero = k.lit(0.0, s.dtype, self.lanes)
        top.loop("z", 0, entries, self.lanes, lambda b, i: b.store(m, i, zero))
        base = top.let(k.mul(block, integer(s.ci // p.late * taps)), "w")

        def channels(b: Block, i: Expr) -> None:
            source = b.let(k.add(base, k.mul(i, integer(taps))), "w")

            def row(x: Block, r: Expr) -> None:
                def more(y: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
                    e, tile, column = index
                    at = y.let(self._m_index(k.add(k.mul(r, integer(alpha)), e), tile, ix.first_lane(column)), "m")
                    y.store(m, at, k.add(k.load(m, at, acc.lanes, mask), acc), mask)

                self._weights(x, packed, source, r, u)
                at = k.add(k.mul(i, integer(self.part)), k.mul(r, integer(alpha * self.stacked * self.row)))
                self._products(x, v, k.add(start, at), ZERO, u, more)

            b.loop("r", 0, alpha, 1, row)

        top.loop("kb", 0, s.ci // p.late, 1, channels)
        return u.offset + alpha * self.late_step * s.dtype.nbytes

    def _weights(self, block: Block, packed: Buffer, source: Expr, row: Expr, u: Buffer) -> None:
        """A row of U = G g G^T, of some input channels and all columns of a block."""
        p, r, g = self.plan, self.shape.r, self.t.g
        tables = [tuple(float(line[i]) for line in (g * 2)[:8]) for i in range(r)]  # their length is a power of two
        factors = [block.let(k.splat(k.lookup(table, row, u.dtype), self.lanes), "g") for table in tables]

        # each row asks for its share of the next channels' weights
        share, step = -(-r * r // self.t.alpha), r * r * p.late * p.columns

        def vector(b: Block, c: Expr, n: Expr) -> None:
            at = b.let(k.add(source, k.mul(k.add(k.mul(c, integer(p.columns)), n), integer(r * r))), "g")
            taps = [b.let(k.load(packed, k.add(at, integer(i * self.lanes)), self.lanes), "g") for i in range(r * r)]
            line = [b.let(k.mul(taps[j], factors[0]), "g") for j in range(r)]
            for i in range(1, r):
                line = [b.let(k.fma(taps[i * r + j], factors[i], x), "g") for j, x in enumerate(line)]
            ahead = b.let(k.add(at, k.mul(row, integer(share * self.lanes))), "f")
            b.stmts += [k.Prefetch(packed, k.add(ahead, integer(step + i * self.lanes))) for i in range(share)]
            to = b.let(k.add(k.mul(c, integer(p.columns)), n), "u")
            for j, value in enumerate(apply(b, g, line)):
                b.store(u, k.add(to, integer(j * self.late_step)), value)

        def channel(b: Block, c: Expr) -> None:
            b.loop("n", 0, p.columns, self.lanes, lambda x, n: vector(x, c, n))

        block.loop("c", 0, p.late, 1, channel)

    def _used_elsewhere(self, at: int) -> bool:
        """Whether the epilogue reads input `at` of the group too."""
        x = self.body.inputs[at]
        users = sum(n.inputs.count(x) for n in self.body.nodes())
        return x in self.body.outputs or users > 1 or x not in self.anchor.inputs

    def _packs(self) -> tuple[Pack, ...]:
        """What the products read, and the windows, which tiles that are not finite need."""
        return (self._pack(True),) if self.plan.late else (self._pack(False), self._pack(True))

    def _pack(self, windows: bool) -> Pack:
        t, p, s, lay = self.t, self.plan, self.shape, self.w_layout
        order = tuple(self.op.rhs_layout.index(letter) for letter in (*self.op.spatial, "I", "O"))
        shape = tuple(int(lay.shape[d]) for d in order)
        strides = tuple(int(lay.strides[d]) for d in order)
        offset = int(lay.offset)
        widths = panel_widths(p.columns, self.gemm)
        products = s.r * s.r if windows else self.products
        window = (s.taps, s.r, s.r, s.ci, s.groups, s.co)

        def write(array: np.ndarray, flat_out: np.ndarray) -> None:
            w = np.moveaxis(stepped(array, offset, shape, strides).reshape(window), 0, 2)
            out = flat_out.reshape(s.groups, self.per, -1)
            for group, block in itertools.product(range(s.groups), range(self.per)):
                own = w[..., group, block * p.columns : (block + 1) * p.columns]
                own = own.reshape(s.r, s.r, s.k, -1)
                if windows:
                    window_stream(own, out[group, block], self.lanes)
                else:
                    product_panels(transformed_weights(own, t), out[group, block], widths)

        layout = "windows" if windows else widths
        key = f"winograd {t.m} {shape} {strides} @{offset} {p.columns} {layout} {s.groups}"
        return Pack(self.w_at, key, s.dtype, self.blocks * products * s.k * p.columns, write)

    # Tiles

    def _input(self, block: Block, v: Buffer, unit: Expr, channel: Expr, at: Expr, to: Expr) -> None:
        """Transform tile `at` of a unit, from `channel` on, into V from `to` on. Tiles beyond the last repeat it, and
        lines beyond those of a slice that is smaller than a tile the slice's last."""
        alpha, x = self.t.alpha, self.operands.ins[self.x_at]
        *outer, sh, sw = self.x_strides
        step = self.stacked * self.row
        x_bytes = self.x_layout.strides[0] * self.shape.dtype.nbytes
        if self.tiles % self.plan.tiles != 0:
            at = block.let(k.binary("min", at, dim_expr(self.tiles + self.slice * self.shape.extra - 1)), "t")
        place = self.tiling.place(block, unit, at, self.shape.depth + self.shape.extra)
        corner = (self.tiling.in_slice(place, dim, place.at[dim]) for dim in (0, 1))
        start = ix.linear((*place.slice, *corner), (*outer, sh, sw), self.x_layout.offset)
        base = block.let(k.add(start, channel), "x")
        sh, sw = sh * self.shape.dilation[0], sw * self.shape.dilation[1]
        to = block.let(to, "v")
        # the next tile's inputs are on their way while this one is computed, where they come from far
        far = estimate(x_bytes) > self.machine.l2
        next_tile = dim_expr(self.t.m * sw)

        def vector(b: Block, c: Expr, mask: Expr | None) -> None:
            scalar = ix.first_lane(c)
            half = b.alloc("half", v.dtype, alpha * (alpha + 1) * self.lanes, stack=True)
            source, target = k.add(base, scalar), k.add(to, scalar)
            if self.plan.late:
                part = ix.delinearize(scalar, (self.kept // self.plan.late, self.plan.late), b.multiples)
                target = b.let(k.add(to, ix.linear(part, (self.part, 1))), "v")

            def down(y: Block, j: Expr) -> None:
                start = y.let(k.add(source, k.mul(self.tiling.line(place, 1, j), dim_expr(sw))), "x")
                rows = [self.tiling.line(place, 0, integer(n)) for n in range(alpha)]
                lines = [k.add(start, k.mul(row, dim_expr(sh))) for row in rows]
                column = [y.let(k.load(x, line, c.lanes, mask), "d") for line in lines]
                if far:
                    y.stmts += [k.Prefetch(x, k.add(line, next_tile)) for line in lines]
                for n, value in enumerate(apply(y, self.t.bt, column)):
                    y.store(half, self._half(integer(n), j), value)

            def along(y: Block, n: Expr) -> None:
                row = [y.let(k.load(half, self._half(n, integer(j)), c.lanes), "h") for j in range(alpha)]
                start = y.let(k.add(target, k.mul(n, integer(alpha * step))), "v")
                for j, value in enumerate(apply(y, self.t.bt, row)):
                    y.store(v, k.add(start, integer(j * step)), value, mask)

            b.loop("j", 0, alpha, 1, down)
            b.loop("r", 0, alpha, 1, along)

        vector_loop(block, ZERO, self.kept, self.lanes, self.machine, vector)

    def _m_index(self, e: Expr, tile: Expr, column: Expr) -> Expr:
        p = self.plan
        return ix.linear((e, tile, column), (p.tiles * p.columns, p.columns, 1))

    def _definition(self, windows: Buffer, block: Expr, group: Expr) -> Definition:
        s = self.shape
        x = Operand(self.operands.ins[self.x_at], self.x_layout.offset)
        return Definition(
            self.tiling, x, self.x_strides, windows, self.plan.columns, self.lanes,
            channel=k.mul(group, integer(s.ci)), start=k.mul(block, integer(s.k)),
        )  # fmt: skip

    def _output(
        self, block: Block, m: Buffer, unit: Expr, first: Expr, group: Expr, part: Expr, exact: Definition
    ) -> None:
        alpha, p, s = self.t.alpha, self.plan, self.shape
        inside = block.let(k.mul(part, integer(p.columns)), "n")
        start = block.let(k.add(k.mul(group, integer(s.co)), inside), "n")
        if isinstance(start, k.Var):
            block.multiples[start.name] = p.columns if s.groups == 1 else gcd(p.columns, s.co)
        width: DimLike | Expr = p.columns
        if s.co % p.columns:
            width = block.let(k.binary("min", integer(p.columns), k.sub(integer(s.co), inside)), "w")
        count: DimLike | Expr = p.tiles
        if self.tiles % p.tiles != 0:
            count = block.let(k.binary("min", integer(p.tiles), k.sub(dim_expr(self.tiles), first)), "n")

        def tile(b: Block, i: Expr) -> None:
            place = self.tiling.place(b, unit, k.add(first, i), s.depth)

            def vector(c: Block, column: Expr, mask: Expr | None) -> None:
                scalar = ix.first_lane(column)
                half = c.alloc("half", m.dtype, alpha * (alpha + 1) * self.lanes, stack=True)

                def down(y: Block, j: Expr) -> None:
                    index = [self._m_index(k.add(integer(r * alpha), j), i, scalar) for r in range(alpha)]
                    loaded = [y.let(k.load(m, e, column.lanes), "m") for e in index]
                    for r, value in enumerate(apply(y, self.t.at, loaded)):
                        y.store(half, self._half(integer(r), j), value)

                def along(y: Block, r: Expr) -> None:
                    row = [y.let(k.load(half, self._half(r, integer(j)), column.lanes), "h") for j in range(alpha)]
                    values = exact.where_not_finite(y, apply(y, self.t.at, row), place, r, column)
                    line, channel = y.let(k.add(place.at[0], r), "y"), ix.add(start, column)
                    self.tiling.where_stored(
                        y, 0, line, place, lambda z: self._store(z, place, line, channel, values, mask)
                    )

                c.loop("j", 0, alpha, 1, down)
                c.loop("r", 0, self.t.m, 1, along)

            vector_loop(b, ZERO, width, self.lanes, self.machine, vector)

        block.loop("i", 0, count, 1, tile)

    def _half(self, row: Expr, column: Expr) -> Expr:
        """Where a tile that is transformed in one dimension keeps a vector."""
        return ix.linear((row, column), ((self.t.alpha + 1) * self.lanes, self.lanes))

    def _store(self, block: Block, at: Place, line: Expr, channel: Expr, values: list[Expr], mask: Expr | None) -> None:
        """The epilogue of one line of a tile, of the columns that it stores."""
        (n, d), x = at.slice, at.at[1]
        *outer, a, b = self.op.spatial
        if self.shape.co * self.shape.groups == 1:
            # a single channel is lane 0
            channel, mask = ZERO, None
            values = [k.Extract(v.dtype, 1, v, 0) for v in values]

        def one(block: Block, j: int) -> None:
            y, z = self.tiling.in_slice(at, 0, line), self.tiling.in_slice(at, 1, k.add(x, integer(j)))
            index = {"N": n, **dict.fromkeys(outer, d), a: y, b: z, "C": channel}
            bind_result(self.em, block, self.anchor, values[j])
            place = tuple(index[c] for c in self.op.out_layout)
            place = result_index(block, self.body.outputs[0], self.anchor, place)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, place, mask)

        for j in range(self.t.m):
            # a tile's last column is its own, but where it lies beyond an image that is smaller than others
            if j == self.t.m - 1 and not self.tiling.short[1] and self.shape.dilation[1] == 1:
                one(block, j)
            else:
                self.tiling.where_stored(block, 1, k.add(x, integer(j)), at, lambda z, j=j: one(z, j))


__all__ = ["lower_winograd"]
