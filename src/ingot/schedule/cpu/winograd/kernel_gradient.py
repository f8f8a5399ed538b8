"""Gradients of 3x3 kernels by Winograd's algorithm: a tile of cotangents is the window, and tiles are summed.

    for each tile of 4 x 4 positions:  V[e][tile][ci] = B^T d B    d: the 6 x 6 inputs that these positions read
                                       U[e][tile][co] = G g G^T    g: the 4 x 4 cotangents
    for e in 36:                       M[e] = U[e]^T V[e]          summed over all tiles of all images
    for each co, 16 channels:          out = A^T M A               3 x 3; computed directly if that is not finite

This is F(3, 4) with a window that is split into tiles of 4 x 4: 36 products instead of 144. The last tiles of a row or
column are shifted back inside the image; cotangents that earlier tiles include are zero in g.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import is_static
from ingot.ir.kernel import Buffer, Expr, Kernel, integer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import f32, f64
from ingot.schedule import index as ix
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.block import Block
from ingot.schedule.buffers import Operands
from ingot.schedule.cpu.chunks import vector_loop
from ingot.schedule.cpu.contraction.cost_model import partial_sums_bytes, plan_contraction
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.plan import CACHE_LINE_BYTES, Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Shape
from ingot.schedule.cpu.winograd.tiles import TilePosition, Tiles
from ingot.schedule.cpu.winograd.toom_cook import Matrix, apply, transform
from ingot.schedule.emit import Index
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

_R, _TILE = 3, 4  # the kernel's and the tile's size along each dimension
_T = transform(_R, _TILE)
_PRODUCTS = _T.alpha**2
_CHUNK_CYCLES = 40000  # per chunk of a step that transforms tiles
_MIN_CHANNELS = 12  # input and output channels, for which the transforms take little of the time


def has_winograd_gradient(node: Node) -> bool:
    """Whether `lower_kernel_gradient` supports the node and is faster than the direct sums."""
    x, g = node.inputs
    sizes = (*x.shape, *g.shape)
    if not isinstance(node.op, ops.KernelGradient) or x.type.rank != 4 or not is_static(sizes):
        return False
    if node.op.depthwise or any(d != 1 for d in (*node.op.strides, *node.op.dilation)):
        return False
    types = {x.dtype, g.dtype, node.dtype}
    _, h, w, co = (int(d) for d in g.shape)
    if len(types) != 1 or not types <= {f32, f64} or node.shape[2:] != (_R, _R) or min(h, w) < _TILE:
        return False
    products = -(-h // _TILE) * -(-w // _TILE) * _PRODUCTS
    return min(int(x.shape[3]), co) >= _MIN_CHANNELS and products <= 0.6 * h * w * _R * _R


def lower_kernel_gradient(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """Lower a KernelGradient that `has_winograd_gradient`, with the reshapes and transposes of its result."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.body, self.outs, self.machine = body, outs, machine
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, ops.KernelGradient))
        x, g = self.anchor.inputs
        (self.x_input, self.x_layout), (self.g_input, self.g_layout) = (operand_memory(body, v, ins) for v in (x, g))
        self.images, self.h, self.w, self.co = (int(d) for d in g.shape)
        self.ci, self.dtype = int(x.shape[3]), x.dtype
        self.lanes = machine.lanes(self.dtype)
        self.tiling = Tiles(Shape(self.images, self.h, self.w, self.ci, self.co, _R, self.dtype), _TILE)
        self.tile_count = self.images * -(-self.h // _TILE) * -(-self.w // _TILE)
        line_elements = CACHE_LINE_BYTES // self.dtype.nbytes
        # an odd number of cache lines: the rows of a block of tiles are in different sets of the L1 cache
        self.u_stride = (-(-self.co // line_elements) | 1) * line_elements
        self.v_stride = -(-self.ci // self.lanes) * self.lanes  # of V
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.contraction = Contraction(
            batch=(Axis(_PRODUCTS, self.tile_count * self.u_stride, self.tile_count * self.v_stride),),
            rows=(Axis(self.co, 1),), cols=(Axis(self.ci, 0, 1),),
            reduce=(Axis(self.tile_count, self.u_stride, self.v_stride),),
            a=self.dtype, b=self.dtype, acc=self.dtype,
        )  # fmt: skip
        self.plan = self._plan()

    def _plan(self) -> Plan:
        """The plan of the products. A chunk has a block of rows and columns of all products, so large that M stays in
        L2 and that there are chunks for all threads. A k block has so many tiles that V's panel stays in L1."""
        p = plan_contraction(self.contraction, self.machine)
        panel_count, row_tiles = -(-self.ci // p.panel_columns), -(-self.co // p.width)
        size, best = self.dtype.nbytes, (float("inf"), 1, 1)
        for panels in {-(-panel_count // n) for n in range(1, panel_count + 1)}:
            for tiles in {-(-row_tiles // n) for n in range(1, row_tiles + 1)}:
                column_blocks, row_blocks = -(-panel_count // panels), -(-row_tiles // tiles)
                m_bytes = _PRODUCTS * panels * p.panel_columns * tiles * p.width * size
                if m_bytes > 0.6 * self.machine.l2 and (panels, tiles) != (1, 1):
                    continue
                idle_factor = (
                    -(-column_blocks * row_blocks // self.machine.threads)
                    * self.machine.threads
                    / (column_blocks * row_blocks)
                )
                stream_elements = self.tile_count * (self.u_stride * column_blocks + self.v_stride * row_blocks)
                # the multiply-adds, and the operands that are streamed again
                cost = idle_factor * (
                    self.tile_count * self.ci * self.co / (2 * self.lanes) + stream_elements / self.lanes * 4
                )
                best = min(best, (cost, panels, tiles))
        _, panels, tiles = best
        chunk_rows = min(self.co, tiles * p.width)
        p = replace(
            p, chunk_line_groups=1, chunk_rows=chunk_rows, chunk_panels=panels, chunk_entries=_PRODUCTS,
            prefetch_lines=0, prefetch_distance=0, k_block=0, panel_offset=-1, a_block_offset=-1, scratch_bytes=0,
        )  # fmt: skip
        count = self.tile_count
        block_counts = (n for n in range(2, count + 1) if count % n == 0 and count // n % p.unroll == 0)
        k_blocks = next(
            (n for n in block_counts if self.tile_count // n * p.panel_columns * size <= self.machine.l1 / 2), 1
        )
        if tiles == 1 or k_blocks == 1 or self.tile_count * p.panel_columns * size <= self.machine.l1 / 2:
            return p
        return replace(
            p, k_block=self.tile_count // k_blocks, scratch_bytes=partial_sums_bytes(self.contraction, p, tiles)
        )

    def lower(self) -> Lowered:
        tiles = _PRODUCTS * self.tile_count * self.dtype.nbytes
        g_step = self._transform("u", self.g_input, self.g_layout, self.co, _T.g, self._u_position, Arg("temp", 0))
        x_step = self._transform("v", self.x_input, self.x_layout, self.ci, _T.bt, self._v_position, Arg("temp", 1))
        return Lowered((g_step, x_step, self._multiply()), (tiles * self.u_stride, tiles * self.v_stride))

    # Tiles

    def _u_position(self, tile: Expr, channel: Expr) -> tuple[Expr, int]:
        """The offset of a tile's channel in U's first product, and the stride to the next product."""
        return k.add(k.mul(tile, integer(self.u_stride)), channel), self.tile_count * self.u_stride

    def _v_position(self, tile: Expr, channel: Expr) -> tuple[Expr, int]:
        """The same for V, which is stored in panels."""
        panel = integer(self.plan.panel_columns)
        panel_start = k.mul(k.binary("div", channel, panel), panel)
        width = k.binary("min", panel, k.sub(integer(self.v_stride), panel_start))
        row = k.add(k.mul(panel_start, integer(self.tile_count)), k.mul(tile, width))
        return k.add(row, k.sub(channel, panel_start)), self.tile_count * self.v_stride

    def _transform(
        self, name: str, position: int, layout: Layout, channels: int, matrix: Matrix, position_of, temp: Arg
    ) -> Step:
        """The step that transforms all tiles of an operand. position_of(tile, channel): the offset in the first
        product, and the stride to the next one."""
        size, alpha = len(matrix[0]), _T.alpha
        cost = -(-channels // self.lanes) * _PRODUCTS * CYCLES_PER_VECTOR
        chunk_tiles = max(1, min(int(_CHUNK_CYCLES / cost), -(-self.tile_count // (2 * self.machine.threads))))
        source, target = self.operands.ins[position], Buffer(name, self.dtype, writable=True)
        image_stride, row_stride, column_stride, _ = (dim_expr(s) for s in layout.strides)
        chunk, top = k.var("chunk"), Block()
        low = top.let(k.mul(chunk, integer(chunk_tiles)), "t")
        high = top.let(k.binary("min", k.add(low, integer(chunk_tiles)), integer(self.tile_count)), "t")

        def emit_tile(block: Block, i: Expr) -> None:
            tile = self.tiling.position(block, ZERO, i, 1)
            y, x = tile.origin
            start = k.add(
                k.mul(tile.slice_index[0], image_stride), k.add(k.mul(y, row_stride), k.mul(x, column_stride))
            )
            start = block.let(k.add(start, dim_expr(layout.offset)), "s")

            def emit_vector(b: Block, c: Expr, mask: Expr | None) -> None:
                channel = ix.first_lane(c)
                half = b.alloc("half", self.dtype, alpha * (alpha + 1) * self.lanes, stack=True)

                def transform_column(z: Block, j: Expr) -> None:
                    base = z.let(k.add(k.add(start, k.mul(j, column_stride)), channel), "x")
                    lines = [
                        k.load(source, k.add(base, k.mul(integer(n), row_stride)), c.lanes, mask) for n in range(size)
                    ]
                    if size == _TILE:
                        lines = [self._zero_overlap(tile, integer(n), j, v) for n, v in enumerate(lines)]
                    for n, v in enumerate(apply(z, matrix, [z.let(v, "d") for v in lines])):
                        z.store(half, self._half_slot(integer(n), j), v)

                def transform_row(z: Block, n: Expr) -> None:
                    values = [z.let(k.load(half, self._half_slot(n, integer(j)), c.lanes), "h") for j in range(size)]
                    first, step = position_of(i, channel)
                    first = z.let(k.add(first, k.mul(n, integer(alpha * step))), "e")
                    for j, v in enumerate(apply(z, matrix, values)):
                        z.store(target, k.add(first, integer(j * step)), v, mask)

                b.loop("j", 0, size, 1, transform_column)
                b.loop("r", 0, alpha, 1, transform_row)

            vector_loop(block, ZERO, channels, self.lanes, self.machine, emit_vector)

        top.loop("i", low, high, 1, emit_tile)
        kernel = Kernel(
            "winograd_tiles", (source, target), (), chunk, integer(-(-self.tile_count // chunk_tiles)), top.body
        )
        return Step(kernel, (Arg("in", position), temp))

    @staticmethod
    def _zero_overlap(position: TilePosition, line: Expr, column: Expr, value: Expr) -> Expr:
        """Return 0 for values that a tile shares with earlier tiles, else `value`."""
        for origin, store_start, n in zip(position.origin, position.store_start, (line, column), strict=True):
            if origin is not store_start:
                is_stored = k.binary("ge", k.add(origin, n), store_start)
                value = k.select(k.splat(is_stored, value.lanes), value, k.lit(0.0, value.dtype, value.lanes))
        return value

    def _half_slot(self, row: Expr, column: Expr) -> Expr:
        """The offset of a vector in a tile that is transformed along one dimension."""
        return ix.linear((row, column), ((_T.alpha + 1) * self.lanes, self.lanes))

    # Products

    def _multiply(self) -> Step:
        p, chunk, top = self.plan, k.var("chunk"), Block()
        block_columns, block_rows = min(p.chunk_panels * p.panel_columns, self.v_stride), int(p.chunk_rows)
        column_blocks, row_blocks = -(-self.ci // block_columns), -(-self.co // block_rows)
        blocks = [top.let(e, "c") for e in ix.delinearize(chunk, (column_blocks, row_blocks), top.multiples)]
        column, row = (
            top.let(k.mul(b, integer(n)), "n") for b, n in zip(blocks, (block_columns, block_rows), strict=True)
        )
        m_offset = -(-p.scratch_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        entries = _PRODUCTS * block_columns * block_rows
        m = top.alloc("m", self.dtype, entries, scratch=m_offset)

        def m_index(e: Expr, i: Expr, j: Expr) -> Expr:
            return ix.linear((e, k.sub(i, row), k.sub(j, column)), (block_rows * block_columns, block_columns, 1))

        def write(b: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
            e, i, j = index
            b.store(m, m_index(e, i, ix.first_lane(j)), acc, mask)

        u, v = Buffer("u", self.dtype), Buffer("v", self.dtype)
        chunks = emit_macro_kernel(top, chunk, self.contraction, p, Operand(u), Operand(v), write)
        last_row = k.binary("min", k.add(row, integer(block_rows)), integer(self.co))
        last_column = top.let(k.binary("min", k.add(column, integer(block_columns)), integer(self.ci)), "n")

        def emit_row(b: Block, i: Expr) -> None:
            def emit_vector(z: Block, j: Expr, mask: Expr | None) -> None:
                self._transform_output(z, lambda e: k.load(m, m_index(e, i, ix.first_lane(j)), j.lanes), i, j, mask)

            vector_loop(b, column, last_column, self.lanes, self.machine, emit_vector, multiple=self.lanes)

        top.loop("i", row, top.let(last_row, "n"), 1, emit_row)
        params = [*zip(self.operands.params, self.operands.args, strict=True), (u, Arg("temp", 0)), (v, Arg("temp", 1))]
        scratch = m_offset + entries * self.dtype.nbytes
        kernel = Kernel("winograd_gradient", tuple(b for b, _ in params), (), chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(a for _, a in params))

    def _transform_output(self, block: Block, load, row: Expr, column: Expr, mask: Expr | None) -> None:
        """The taps of an output channel and a vector of input channels."""
        alpha, lanes = _T.alpha, column.lanes
        half = block.alloc("half", self.dtype, alpha * (alpha + 1) * self.lanes, stack=True)
        taps = block.alloc("taps", self.dtype, _R * _R * self.lanes, stack=True)

        def tap_offset(tap: Expr) -> Expr:
            return k.mul(tap, integer(self.lanes))

        def transform_column(b: Block, j: Expr) -> None:
            products = [b.let(load(k.add(integer(r * alpha), j)), "m") for r in range(alpha)]
            for r, value in enumerate(apply(b, _T.at, products)):
                b.store(half, self._half_slot(integer(r), j), value)

        block.loop("j", 0, alpha, 1, transform_column)
        values: list[Expr] = []
        for r in range(_R):
            line = [block.let(k.load(half, self._half_slot(integer(r), integer(j)), lanes), "h") for j in range(alpha)]
            values += apply(block, _T.at, line)
        zero = k.lit(0.0, self.dtype, lanes)
        nan_sum = k.mul(values[0], zero)
        for i, value in enumerate(values):
            block.store(taps, tap_offset(integer(i)), value)
            nan_sum = block.let(k.fma(value, zero, nan_sum), "z")  # NaN if a value is not finite
        is_nan = k.binary("ne", nan_sum, nan_sum)
        if mask is not None:
            is_nan = k.binary("and", is_nan, mask)
        is_nan = k.reduce("or", is_nan) if lanes > 1 else is_nan
        block.when(is_nan, lambda b: self._direct_sums(b, taps, row, column, mask))
        store = self._store_vectors if self._has_contiguous_channels() else self._store_channels
        store(block, taps, row, column, mask)

    def _has_contiguous_channels(self) -> bool:
        """Whether the input channels of the result are contiguous."""
        root = self.body.outputs[0]
        return len(self.body.outputs) == 1 and root is self.anchor and self.outs[0].strides[1] == 1

    def _store_vectors(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        for i in range(_R * _R):
            value = block.let(k.load(taps, integer(i * self.lanes), column.lanes), "y")
            self._store(block, value, row, column, integer(i // _R), integer(i % _R), mask)

    def _store_channels(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        """Store one channel at a time: the taps of a channel are contiguous."""
        first = ix.first_lane(column)
        count: Expr = integer(column.lanes)
        if mask is not None:
            count = block.let(k.binary("min", count, k.sub(integer(self.ci), first)), "n")

        def store_channel(b: Block, lane: Expr) -> None:
            for i in range(_R * _R):
                value = b.let(k.load(taps, k.add(integer(i * self.lanes), lane)), "y")
                self._store(b, value, row, k.add(first, lane), integer(i // _R), integer(i % _R), None)

        block.loop("l", 0, count, 1, store_channel)

    def _store(self, block: Block, value: Expr, o: Expr, i: Expr, y: Expr, x: Expr, mask: Expr | None) -> None:
        bind_result(self.em, block, self.anchor, value)
        index = result_index(block, self.body.outputs[0], self.anchor, (o, i, y, x))
        store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)

    def _direct_sums(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        """Compute the taps directly: the transforms give NaN beside an infinity, or overflow."""
        x, g = self.operands.ins[self.x_input], self.operands.ins[self.g_input]

        def emit_tap(b: Block, i: Expr, j: Expr) -> None:
            total = b.alloc("acc", self.dtype, 1, lanes=column.lanes)
            b.store(total, ZERO, k.lit(0.0, self.dtype, column.lanes))

            def emit_term(z: Block, n: Expr, p: Expr, q: Expr) -> None:
                g_index = ix.linear((n, p, q, row), self.g_layout.strides, self.g_layout.offset)
                x_index = (n, k.add(p, i), k.add(q, j), ix.first_lane(column))
                value = k.load(x, ix.linear(x_index, self.x_layout.strides, self.x_layout.offset), column.lanes, mask)
                factor = k.load(g, g_index)
                factor = k.splat(factor, column.lanes) if column.lanes > 1 else factor
                z.store(total, ZERO, k.fma(value, factor, k.load(total, ZERO)))

            def emit_line(z: Block, n: Expr, p: Expr) -> None:
                z.loop("q", 0, self.w, 1, lambda y, q: emit_term(y, n, p, q))

            def emit_image(z: Block, n: Expr) -> None:
                z.loop("p", 0, self.h, 1, lambda y, p: emit_line(y, n, p))

            b.loop("n", 0, self.images, 1, emit_image)
            tap_offset = k.mul(k.add(k.mul(i, integer(_R)), j), integer(self.lanes))
            b.store(taps, tap_offset, k.load(total, ZERO))

        block.loop("i", 0, _R, 1, lambda b, i: b.loop("j", 0, _R, 1, lambda z, j: emit_tap(z, i, j)))


__all__ = ["has_winograd_gradient", "lower_kernel_gradient"]
