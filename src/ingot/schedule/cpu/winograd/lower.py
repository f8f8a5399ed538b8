"""Winograd convolution: 3x3 and 5x5 windows of stride 1 as small matrix products of transformed tiles.

    a chunk: T tiles of m x m outputs, a block of output channels; alpha = m + r - 1

    for each tile, 16 channels:  V[alpha^2][tile][ci] = B^T d B           d: alpha x alpha inputs of the tile
    for e in alpha^2:            M[e][tile][co] = V[e] U[e]               U = G g G^T, packed at compile time
    for each tile, 16 channels:  out = epilogue(A^T M A)                  computed directly if that is not finite

V and M are scratch that stays in L2; U is a stream. A V that is large or that many chunks use is a temporary that a
separate step fills. F(4, 3) takes 36 products instead of 144 for the direct convolution; F(2, 3) takes 16 instead of
36. The last tiles of a row or column are shifted back inside the image, so that nothing beyond the input is read, and
do not store the outputs of earlier tiles. A dilated window is a plain window over d x d images of every d-th row and
column. A third spatial dimension and groups are more loops of the products. If few tiles share the weights, each chunk
transforms them itself, for a few input channels at a time, one row of alpha products at a time, which are added to M.
docs/inside/winograd.md has the error bounds and says when the algorithm pays.
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
from ingot.schedule.cpu.contraction.pack import pack_product_panels, pack_window_stream, panel_widths, strided_view
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.definition import Fallback
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Winograd, winograd_shape_of
from ingot.schedule.cpu.winograd.tiles import TilePosition, Tiles
from ingot.schedule.cpu.winograd.toom_cook import apply, transform, transformed_weights
from ingot.schedule.cpu.winograd.weights import contiguous_copy, weights_step
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
    plan: Winograd,
    machine: Machine,
    packed: bool = True,
) -> Lowered:
    """Lower the group of a convolution that has a `winograd_shape_of`. packed: its weights are constant and packed when
    the model is compiled; other weights are packed at each call."""
    return _Winograd(body, ins, outs, anchor, plan, machine, packed).lower()


class _Winograd:
    def __init__(
        self,
        body: Graph,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        anchor: Node,
        plan: Winograd,
        machine: Machine,
        packed: bool,
    ):
        self.body, self.ins, self.outs, self.anchor, self.plan, self.machine = body, ins, outs, anchor, plan, machine
        op = anchor.op
        assert isinstance(op, ops.Convolution)
        self.op, self.packed = op, packed
        x, w = anchor.inputs
        self.x_input, x_layout = operand_memory(body, x, ins)
        self.w_input, self.w_layout = operand_memory(body, w, ins)
        shape = winograd_shape_of(anchor, x_layout, self.w_layout)
        assert shape is not None
        self.shape = shape
        self.x_layout = x_layout.transpose(tuple(op.lhs_layout.index(c) for c in ("N", *op.spatial, "C")))
        images, *spatial_strides, _ = self.x_layout.strides
        self.x_strides = (images, *((0,) * (3 - len(spatial_strides))), *spatial_strides)
        self.t, self.lanes = transform(plan.m, shape.r), machine.lanes(shape.dtype)
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.tiling = Tiles(shape, plan.m)
        self.slice_tiles = product((*shape.dilation, *shape.tile_grid(plan.m)))
        self.units, slices = shape.units()
        self.unit_tiles = self.slice_tiles * slices
        self.tile_runs = ceildiv(self.unit_tiles, plan.tiles)
        self.column_blocks = -(-shape.co // plan.columns)  # blocks of columns of each group
        self.blocks = shape.groups * self.column_blocks
        self.v_channels = shape.ci * (shape.groups if plan.split else 1)  # channels in a row of V
        line_elements = 64 // shape.dtype.nbytes
        # an odd number of cache lines: the rows of a register tile are in different sets of the L1 cache
        self.v_stride = plan.late or (-(-self.v_channels // line_elements) | 1) * line_elements
        self.products = self.t.alpha**2
        self.v_tiles = self._count_v_tiles()
        # elements of U per product that a chunk transforms at a time: an odd number of cache lines
        self.late_stride = (plan.late * plan.columns // line_elements | 1) * line_elements
        # elements of V for all channels, or for the channels that a chunk transforms at a time
        self.v_part_size = self.products * self.v_tiles * self.v_stride
        self.v_unit_size = self.v_part_size * (self.v_channels // plan.late if plan.late else 1)
        self.contraction = self._contraction()
        self.gemm_plan = self._plan_gemm()

    def _count_v_tiles(self) -> int:
        """The number of tiles per product in V."""
        if not self.plan.split:
            return self.plan.tiles
        assert isinstance(self.tile_runs, int) and isinstance(self.slice_tiles, int)
        return self.plan.tiles * self.tile_runs + self.slice_tiles * self.shape.extra_slices

    def _contraction(self) -> Contraction:
        p, s = self.plan, self.shape
        if p.late:
            return Contraction(
                batch=(Axis(self.t.alpha, self.v_tiles * self.v_stride, self.late_stride),),
                rows=(Axis(p.tiles, self.v_stride),), cols=(Axis(p.columns, 0, 1),),
                reduce=(Axis(p.late, 1, p.columns),), a=s.dtype, b=s.dtype, acc=s.dtype, packed=False,
            )  # fmt: skip
        panels = s.k * p.columns  # elements of B for one product
        tap_stride = s.depth_dilation * self.slice_tiles * self.v_stride
        return Contraction(
            batch=(
                Axis(s.groups, s.ci if p.split else 0, self.column_blocks * self.products * panels),
                Axis(self.column_blocks, 0, self.products * panels),
                Axis(self.products, self.v_tiles * self.v_stride, panels),
            ),
            rows=(Axis(p.tiles, self.v_stride),),
            cols=(Axis(p.columns, 0, 1),),
            reduce=(Axis(s.taps, tap_stride, s.ci * p.columns), Axis(s.ci, 1, p.columns)),
            a=s.dtype, b=s.dtype, acc=s.dtype,
        )  # fmt: skip

    def _plan_gemm(self) -> Plan:
        """A chunk has all products of one block of columns, or those of one row of U."""
        p = plan_contraction(self.contraction, self.machine)
        panels, entries = -(-self.plan.columns // p.panel_columns), self.t.alpha if self.plan.late else self.products
        return replace(
            p, chunk_line_groups=1, chunk_rows=self.plan.tiles, chunk_panels=panels, chunk_entries=entries, k_block=0,
            panel_offset=-1, scratch_bytes=0,
        )  # fmt: skip

    def lower(self) -> Lowered:
        v = Buffer("v", self.shape.dtype, writable=True) if self.plan.split else None
        steps = () if v is None else (self._transform(v),)
        temps = () if v is None else (self.units * (self.v_unit_size * self.shape.dtype.nbytes),)
        packs = self._packs()
        weights = [Arg("pack", i) for i in range(len(packs))]
        if not self.packed:
            weights = [Arg("temp", len(temps) + i) for i in range(len(packs))]
            temps += tuple(x.nbytes for x in packs)
            weight_steps, weight_temps = self._weights_at_run_time(weights, len(temps))
            steps, temps, packs = (*weight_steps, *steps), (*temps, *weight_temps), ()
        return Lowered((*steps, self._multiply(v, weights)), temps, packs)

    def _weights_at_run_time(self, targets: list[Arg], temp_count: int) -> tuple[list[Step], tuple[DimLike, ...]]:
        """Return steps that compute the contents of `_packs` into `targets`, and the bytes of further temporaries."""
        w, layout, arg = self.anchor.inputs[1], self.w_layout, Arg("in", self.w_input)
        dim, temp_bytes, steps = self.op.rhs_layout.index("O"), (), []
        if layout.strides[dim] != 1 and w.shape[dim] != 1:
            copy, layout = contiguous_copy(w, layout, dim, self.machine, arg, Arg("temp", temp_count))
            arg, temp_bytes, steps = Arg("temp", temp_count), (w.type.nbytes,), [copy]
        # the windows come first: chunks that transform the weights need no others
        args = [arg, *reversed(targets)]
        panel = self.gemm_plan.panel_columns
        step = weights_step(self.op, layout, self.shape, self.plan, self.t, panel, self.machine, args)
        return [*steps, step], temp_bytes

    def _transform(self, v: Buffer) -> Step:
        """The step that fills all of V."""
        tiles = self.v_tiles
        cost = -(-self.v_channels // self.lanes) * self.products * CYCLES_PER_VECTOR
        chunk_tiles = max(1, min(int(CHUNK_CYCLES / cost), tiles // (2 * self.machine.threads)))
        chunk, top = k.var("chunk"), Block()
        extents = self.units, -(-tiles // chunk_tiles)
        unit, part = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
        low = top.let(k.mul(part, integer(chunk_tiles)), "t")
        high = k.add(low, integer(chunk_tiles))
        if tiles % chunk_tiles:
            high = top.let(k.binary("min", high, integer(tiles)), "t")
        base = top.let(k.mul(unit, integer(self.v_unit_size)), "u")

        def emit_tile(b: Block, i: Expr) -> None:
            self._transform_input(b, v, unit, ZERO, i, k.add(base, k.mul(i, integer(self.v_stride))))

        top.loop("i", low, high, 1, emit_tile)
        x = self.operands.ins[self.x_input]
        dims = symbol_params(*body_dims(self.body, self.ins))
        kernel = Kernel("winograd_tiles", (x, v), dims, chunk, dim_expr(product(extents)), top.body)
        return Step(kernel, (Arg("in", self.x_input), Arg("temp", 0)))

    def _multiply(self, tiles: Buffer | None, weights: list[Arg]) -> Step:
        """The step that multiplies and transforms the products back. tiles: V; None: the step computes V in scratch.
        weights: the contents of `_packs`."""
        p, s = self.plan, self.shape
        chunk, top = k.var("chunk"), Block()
        extents = (self.blocks, self.units, self.tile_runs)
        block, unit, run = (top.let(e, "c") for e in ix.delinearize(chunk, extents, top.multiples))
        if self.blocks == 1:
            block = ZERO
        extents = (s.groups, self.column_blocks)
        group, column_block = (top.let(e, "c") for e in ix.delinearize(block, extents, top.multiples))
        if s.groups == 1:
            group = ZERO
        first_tile = top.let(k.mul(run, integer(p.tiles)), "t") if self.tile_runs != 1 else ZERO
        m_offset = 0
        v_offset: Expr = ZERO
        if tiles is None:
            v = top.alloc("v", s.dtype, self.v_unit_size, scratch=0)
            m_offset = -(-self.v_unit_size * s.dtype.nbytes // 64) * 64
            channel = k.mul(group, integer(s.ci))

            def emit_tile(b: Block, i: Expr) -> None:
                self._transform_input(b, v, unit, channel, k.add(first_tile, i), k.mul(i, integer(self.v_stride)))

            top.loop("i", 0, p.tiles, 1, emit_tile)
        else:
            v = tiles
            v_offset = k.add(k.mul(unit, integer(self.v_unit_size)), k.mul(first_tile, integer(self.v_stride)))
        size = self.products * p.tiles * p.columns
        m = top.alloc("m", s.dtype, size, scratch=m_offset)
        packed = Buffer("u", s.dtype)
        scratch = m_offset + size * s.dtype.nbytes
        if p.late:
            if p.split:
                v_offset = k.add(v_offset, k.mul(group, integer(s.ci // p.late * self.v_part_size)))
            scratch = self._late_products(top, v, top.let(v_offset, "v"), block, packed, m, scratch)
        else:

            def write(b: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
                *_, e, row, column = index
                b.store(m, ix.first_lane(self._m_index(e, row, column)), acc, mask)

            self._products(top, v, v_offset, block, packed, write)
        windows = packed if p.late else Buffer("w", s.dtype)
        fallback = self._fallback(windows, block, group)
        self._transform_output(top, m, unit, first_tile, group, column_block, fallback)
        dims = symbol_params(*body_dims(self.body, (*self.ins, *self.outs)))
        params = list(zip(self.operands.params, self.operands.args, strict=True))
        if not self._has_other_readers(self.w_input):
            params = [(b, a) for b, a in params if a != Arg("in", self.w_input)]
        params += [(packed, weights[0])] + ([(v, Arg("temp", 0))] if tiles is not None else [])
        params += [(windows, weights[1])] if windows is not packed else []
        chunks = dim_expr(self.blocks * self.units * self.tile_runs)
        kernel = Kernel("winograd", tuple(b for b, _ in params), dims, chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(a for _, a in params))

    def _products(self, top: Block, v: Buffer, start: Expr, block: Expr, u: Buffer, write: Write) -> None:
        """V U, whose vectors are passed to `write`."""
        # an operand's offset is a dimension: here a symbol that this kernel itself defines
        v_offset, block_index = top.fresh("va"), top.fresh("cb")
        top.stmts += [k.Let(v_offset, start), k.Let(block_index, block)]
        a, b = Operand(v, symbol(v_offset.name)), Operand(u)
        emit_macro_kernel(top, block_index, self.contraction, self.gemm_plan, a, b, write)

    def _late_products(
        self, top: Block, v: Buffer, start: Expr, block: Expr, packed: Buffer, m: Buffer, scratch: int
    ) -> int:
        """M = V U, one row of U for some input channels at a time. Return the bytes of scratch."""
        p, s, alpha = self.plan, self.shape, self.t.alpha
        u = top.alloc("ub", s.dtype, alpha * self.late_stride, scratch=scratch)
        part_weights = s.r * s.r * p.late * p.columns  # elements that are transformed at a time
        entries = self.products * p.tiles * p.columns
        zero = k.lit(0.0, s.dtype, self.lanes)
        top.loop("z", 0, entries, self.lanes, lambda b, i: b.store(m, i, zero))
        base = top.let(k.mul(block, integer(s.ci // p.late * part_weights)), "w")

        def emit_channels(b: Block, i: Expr) -> None:
            source = b.let(k.add(base, k.mul(i, integer(part_weights))), "w")

            def emit_row(x: Block, r: Expr) -> None:
                def accumulate(y: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
                    e, tile, column = index
                    product = k.add(k.mul(r, integer(alpha)), e)
                    m_offset = y.let(self._m_index(product, tile, ix.first_lane(column)), "m")
                    y.store(m, m_offset, k.add(k.load(m, m_offset, acc.lanes, mask), acc), mask)

                self._transform_weights(x, packed, source, r, u)
                u_row = k.mul(r, integer(alpha * self.v_tiles * self.v_stride))
                part_offset = k.add(k.mul(i, integer(self.v_part_size)), u_row)
                self._products(x, v, k.add(start, part_offset), ZERO, u, accumulate)

            b.loop("r", 0, alpha, 1, emit_row)

        top.loop("kb", 0, s.ci // p.late, 1, emit_channels)
        return u.offset + alpha * self.late_stride * s.dtype.nbytes

    def _transform_weights(self, block: Block, packed: Buffer, source: Expr, row: Expr, u: Buffer) -> None:
        """Compute a row of U = G g G^T for some input channels and all columns of a block."""
        p, r, g = self.plan, self.shape.r, self.t.g
        tables = [tuple(float(line[i]) for line in (g * 2)[:8]) for i in range(r)]  # their length is a power of two
        factors = [block.let(k.splat(k.lookup(table, row, u.dtype), self.lanes), "g") for table in tables]

        # each row prefetches its share of the next channels' weights
        share, size = -(-r * r // self.t.alpha), r * r * p.late * p.columns

        def emit_vector(b: Block, c: Expr, n: Expr) -> None:
            base = b.let(k.add(source, k.mul(k.add(k.mul(c, integer(p.columns)), n), integer(r * r))), "g")
            taps = [b.let(k.load(packed, k.add(base, integer(i * self.lanes)), self.lanes), "g") for i in range(r * r)]
            line = [b.let(k.mul(taps[j], factors[0]), "g") for j in range(r)]
            for i in range(1, r):
                line = [b.let(k.fma(taps[i * r + j], factors[i], x), "g") for j, x in enumerate(line)]
            next_offset = b.let(k.add(base, k.mul(row, integer(share * self.lanes))), "f")
            b.stmts += [k.Prefetch(packed, k.add(next_offset, integer(size + i * self.lanes))) for i in range(share)]
            u_offset = b.let(k.add(k.mul(c, integer(p.columns)), n), "u")
            for j, value in enumerate(apply(b, g, line)):
                b.store(u, k.add(u_offset, integer(j * self.late_stride)), value)

        def emit_channel(b: Block, c: Expr) -> None:
            b.loop("n", 0, p.columns, self.lanes, lambda x, n: emit_vector(x, c, n))

        block.loop("c", 0, p.late, 1, emit_channel)

    def _has_other_readers(self, position: int) -> bool:
        """Whether the epilogue reads the group's input at `position`, too."""
        x = self.body.inputs[position]
        users = sum(n.inputs.count(x) for n in self.body.nodes())
        return x in self.body.outputs or users > 1 or x not in self.anchor.inputs

    def _packs(self) -> tuple[Pack, ...]:
        """The weights that the products read, and the windows, which tiles that are not finite need."""
        return (self._pack(True),) if self.plan.late else (self._pack(False), self._pack(True))

    def _pack(self, windows: bool) -> Pack:
        t, p, s, lay = self.t, self.plan, self.shape, self.w_layout
        order = tuple(self.op.rhs_layout.index(letter) for letter in (*self.op.spatial, "I", "O"))
        shape = tuple(int(lay.shape[d]) for d in order)
        strides = tuple(int(lay.strides[d]) for d in order)
        offset = int(lay.offset)
        widths = panel_widths(p.columns, self.gemm_plan)
        products = s.r * s.r if windows else self.products
        window = (s.taps, s.r, s.r, s.ci, s.groups, s.co)

        def write(array: np.ndarray, flat_out: np.ndarray) -> None:
            w = np.moveaxis(strided_view(array, offset, shape, strides).reshape(window), 0, 2)
            out = flat_out.reshape(s.groups, self.column_blocks, -1)
            for group, block in itertools.product(range(s.groups), range(self.column_blocks)):
                block_weights = w[..., group, block * p.columns : (block + 1) * p.columns]
                block_weights = block_weights.reshape(s.r, s.r, s.k, -1)
                if windows:
                    pack_window_stream(block_weights, out[group, block], self.lanes)
                else:
                    pack_product_panels(transformed_weights(block_weights, t), out[group, block], widths)

        layout = "windows" if windows else widths
        key = f"winograd {t.m} {shape} {strides} @{offset} {p.columns} {layout} {s.groups}"
        return Pack(self.w_input, key, s.dtype, self.blocks * products * s.k * p.columns, write)

    # Tiles

    def _transform_input(self, block: Block, v: Buffer, unit: Expr, channel: Expr, tile: Expr, v_offset: Expr) -> None:
        """Transform a unit's tile, from `channel`, into V at `v_offset`. Tiles beyond the last one repeat it. If a
        slice is smaller than a tile, the lines beyond it repeat its last line."""
        alpha, x = self.t.alpha, self.operands.ins[self.x_input]
        *outer, sh, sw = self.x_strides
        product_stride = self.v_tiles * self.v_stride
        if self.unit_tiles % self.plan.tiles != 0:
            last = self.unit_tiles + self.slice_tiles * self.shape.extra_slices - 1
            tile = block.let(k.binary("min", tile, dim_expr(last)), "t")
        position = self.tiling.position(block, unit, tile, self.shape.depth + self.shape.extra_slices)
        corner = (self.tiling.slice_line(position, dim, position.origin[dim]) for dim in (0, 1))
        start = ix.linear((*position.slice_index, *corner), (*outer, sh, sw), self.x_layout.offset)
        base = block.let(k.add(start, channel), "x")
        sh, sw = sh * self.shape.dilation[0], sw * self.shape.dilation[1]
        v_offset = block.let(v_offset, "v")
        # prefetch the next tile's inputs if they come from beyond L2
        is_far = estimate(self.x_layout.strides[0] * self.shape.dtype.nbytes) > self.machine.l2
        next_tile = dim_expr(self.t.m * sw)

        def emit_vector(b: Block, c: Expr, mask: Expr | None) -> None:
            scalar = ix.first_lane(c)
            half = b.alloc("half", v.dtype, alpha * (alpha + 1) * self.lanes, stack=True)
            source, target = k.add(base, scalar), k.add(v_offset, scalar)
            if self.plan.late:
                part = ix.delinearize(scalar, (self.v_channels // self.plan.late, self.plan.late), b.multiples)
                target = b.let(k.add(v_offset, ix.linear(part, (self.v_part_size, 1))), "v")

            def transform_column(y: Block, j: Expr) -> None:
                start = y.let(k.add(source, k.mul(self.tiling.input_line(position, 1, j), dim_expr(sw))), "x")
                rows = [self.tiling.input_line(position, 0, integer(n)) for n in range(alpha)]
                lines = [k.add(start, k.mul(row, dim_expr(sh))) for row in rows]
                column = [y.let(k.load(x, line, c.lanes, mask), "d") for line in lines]
                if is_far:
                    y.stmts += [k.Prefetch(x, k.add(line, next_tile)) for line in lines]
                for n, value in enumerate(apply(y, self.t.bt, column)):
                    y.store(half, self._half_slot(integer(n), j), value)

            def transform_row(y: Block, n: Expr) -> None:
                row = [y.let(k.load(half, self._half_slot(n, integer(j)), c.lanes), "h") for j in range(alpha)]
                start = y.let(k.add(target, k.mul(n, integer(alpha * product_stride))), "v")
                for j, value in enumerate(apply(y, self.t.bt, row)):
                    y.store(v, k.add(start, integer(j * product_stride)), value, mask)

            b.loop("j", 0, alpha, 1, transform_column)
            b.loop("r", 0, alpha, 1, transform_row)

        vector_loop(block, ZERO, self.v_channels, self.lanes, self.machine, emit_vector)

    def _m_index(self, e: Expr, tile: Expr, column: Expr) -> Expr:
        p = self.plan
        return ix.linear((e, tile, column), (p.tiles * p.columns, p.columns, 1))

    def _fallback(self, windows: Buffer, block: Expr, group: Expr) -> Fallback:
        s = self.shape
        x = Operand(self.operands.ins[self.x_input], self.x_layout.offset)
        return Fallback(
            self.tiling, x, self.x_strides, windows, self.plan.columns, self.lanes,
            first_channel=k.mul(group, integer(s.ci)), first_window=k.mul(block, integer(s.k)),
        )  # fmt: skip

    def _transform_output(
        self, block: Block, m: Buffer, unit: Expr, first_tile: Expr, group: Expr, column_block: Expr, fallback: Fallback
    ) -> None:
        alpha, p, s = self.t.alpha, self.plan, self.shape
        block_column = block.let(k.mul(column_block, integer(p.columns)), "n")
        first_channel = block.let(k.add(k.mul(group, integer(s.co)), block_column), "n")
        if isinstance(first_channel, k.Var):
            block.multiples[first_channel.name] = p.columns if s.groups == 1 else gcd(p.columns, s.co)
        width: DimLike | Expr = p.columns
        if s.co % p.columns:
            width = block.let(k.binary("min", integer(p.columns), k.sub(integer(s.co), block_column)), "w")
        count: DimLike | Expr = p.tiles
        if self.unit_tiles % p.tiles != 0:
            count = block.let(k.binary("min", integer(p.tiles), k.sub(dim_expr(self.unit_tiles), first_tile)), "n")

        def emit_tile(b: Block, i: Expr) -> None:
            position = self.tiling.position(b, unit, k.add(first_tile, i), s.depth)

            def emit_vector(c: Block, column: Expr, mask: Expr | None) -> None:
                scalar = ix.first_lane(column)
                half = c.alloc("half", m.dtype, alpha * (alpha + 1) * self.lanes, stack=True)

                def transform_column(y: Block, j: Expr) -> None:
                    index = [self._m_index(k.add(integer(r * alpha), j), i, scalar) for r in range(alpha)]
                    loaded = [y.let(k.load(m, e, column.lanes), "m") for e in index]
                    for r, value in enumerate(apply(y, self.t.at, loaded)):
                        y.store(half, self._half_slot(integer(r), j), value)

                def transform_row(y: Block, r: Expr) -> None:
                    row = [y.let(k.load(half, self._half_slot(r, integer(j)), column.lanes), "h") for j in range(alpha)]
                    values = fallback.replace_nonfinite(y, apply(y, self.t.at, row), position, r, column)
                    line, channel = y.let(k.add(position.origin[0], r), "y"), ix.add(first_channel, column)

                    def store(z: Block) -> None:
                        self._store(z, position, line, channel, values, mask)

                    self.tiling.if_stored(y, 0, line, position, store)

                c.loop("j", 0, alpha, 1, transform_column)
                c.loop("r", 0, self.t.m, 1, transform_row)

            vector_loop(b, ZERO, width, self.lanes, self.machine, emit_vector)

        block.loop("i", 0, count, 1, emit_tile)

    def _half_slot(self, row: Expr, column: Expr) -> Expr:
        """The offset of a vector in a tile that is transformed along one dimension."""
        return ix.linear((row, column), ((self.t.alpha + 1) * self.lanes, self.lanes))

    def _store(
        self, block: Block, position: TilePosition, line: Expr, channel: Expr, values: list[Expr], mask: Expr | None
    ) -> None:
        """Emit the epilogue of one line of a tile, for the columns that the tile stores."""
        (n, d), x = position.slice_index, position.origin[1]
        *outer, a, b = self.op.spatial
        if self.shape.co * self.shape.groups == 1:
            # a single channel is lane 0
            channel, mask = ZERO, None
            values = [k.Extract(v.dtype, 1, v, 0) for v in values]

        def store_column(block: Block, j: int) -> None:
            y, z = self.tiling.slice_line(position, 0, line), self.tiling.slice_line(position, 1, k.add(x, integer(j)))
            index = {"N": n, **dict.fromkeys(outer, d), a: y, b: z, "C": channel}
            bind_result(self.em, block, self.anchor, values[j])
            result = tuple(index[c] for c in self.op.out_layout)
            result = result_index(block, self.body.outputs[0], self.anchor, result)
            store_results(self.em, block, self.body, self.operands.outs, self.outs, result, mask)

        for j in range(self.t.m):
            # no earlier tile stores a tile's last column, but it may be beyond an image that is smaller than others
            if j == self.t.m - 1 and not self.tiling.can_exceed_image[1] and self.shape.dilation[1] == 1:
                store_column(block, j)
            else:
                self.tiling.if_stored(block, 1, k.add(x, integer(j)), position, lambda z, j=j: store_column(z, j))


__all__ = ["lower_winograd"]
