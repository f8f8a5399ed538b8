"""Gradients of 3x3 kernels by Winograd's algorithm: the places of a tile are the taps, and tiles are summed over.

    for each tile of 4 x 4 places:  V[e][tile][ci] = B^T d B       d: the 6 x 6 inputs that these places read
                                    U[e][tile][co] = G g G^T       g: the 4 x 4 cotangents
    for e in 36:                    M[e] = U[e]^T V[e]             summed over all tiles of all images
    for each co, 16 channels:       out = A^T M A                  3 x 3; by the definition where that is not finite

This is F(3, 4) with a window that is cut into pieces of 4 x 4: 36 products where the definition takes 144. The last
tiles of a row or column are moved back inside the image; what tiles before them have counted is zero in g.
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
from ingot.schedule.cpu.contraction.cost_model import plan_contraction, tiles_bytes
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.plan import LINE, Plan
from ingot.schedule.cpu.machine import Machine
from ingot.schedule.cpu.winograd.plan import CYCLES_PER_VECTOR, Shape
from ingot.schedule.cpu.winograd.tiles import Place, Tiles
from ingot.schedule.cpu.winograd.toom_cook import Matrix, apply, transform
from ingot.schedule.emit import Index
from ingot.schedule.group_io import bind_result, operand_memory, result_index, store_results
from ingot.schedule.index import ZERO, dim_expr
from ingot.schedule.lowered import Arg, Lowered, Step

_R, _PLACES = 3, 4  # taps of the kernel, and places of a tile
_T = transform(_R, _PLACES)
_PRODUCTS = _T.alpha**2
_CHUNK_CYCLES = 40000  # of a step that transforms tiles
_LEAST = 12  # channels on either side, from which on transforms are a small part


def has_winograd_gradient(node: Node) -> bool:
    """Whether `lower_kernel_gradient` takes the node, and is faster than the convolution that it stands for."""
    x, g = node.inputs
    sizes = (*x.shape, *g.shape)
    if not isinstance(node.op, ops.KernelGradient) or x.type.rank != 4 or not is_static(sizes):
        return False
    if node.op.depthwise or any(d != 1 for d in (*node.op.strides, *node.op.dilation)):
        return False
    types = {x.dtype, g.dtype, node.dtype}
    _, h, w, co = (int(d) for d in g.shape)
    if len(types) != 1 or not types <= {f32, f64} or node.shape[2:] != (_R, _R) or min(h, w) < _PLACES:
        return False
    covered = -(-h // _PLACES) * -(-w // _PLACES) * _PRODUCTS
    return min(int(x.shape[3]), co) >= _LEAST and covered <= 0.6 * h * w * _R * _R


def lower_kernel_gradient(body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> Lowered:
    """A KernelGradient that `has_winograd_gradient`, and the reshapes and transposes behind it."""
    return _Gradient(body, ins, outs, machine).lower()


class _Gradient:
    def __init__(self, body: Graph, ins: tuple[Layout, ...], outs: tuple[Layout, ...], machine: Machine) -> None:
        self.body, self.outs, self.machine = body, outs, machine
        self.anchor = next(n for n in body.nodes() if isinstance(n.op, ops.KernelGradient))
        x, g = self.anchor.inputs
        (self.x_at, self.x), (self.g_at, self.g) = (operand_memory(body, v, ins) for v in (x, g))
        self.images, self.h, self.w, self.co = (int(d) for d in g.shape)
        self.ci, self.dtype = int(x.shape[3]), x.dtype
        self.lanes = machine.lanes(self.dtype)
        self.tiling = Tiles(Shape(self.images, self.h, self.w, self.ci, self.co, _R, self.dtype), _PLACES)
        self.count = self.images * -(-self.h // _PLACES) * -(-self.w // _PLACES)
        line = LINE // self.dtype.nbytes
        # an odd number of cache lines between rows: no two of a block of tiles in one set of the first-level cache
        self.row = (-(-self.co // line) | 1) * line
        self.width = -(-self.ci // self.lanes) * self.lanes  # of V
        self.operands = Operands.of(body)
        self.em = self.operands.emitter(body, ins)
        self.contraction = Contraction(
            batch=(Axis(_PRODUCTS, self.count * self.row, self.count * self.width),), rows=(Axis(self.co, 1),),
            cols=(Axis(self.ci, 0, 1),), reduce=(Axis(self.count, self.row, self.width),),
            a=self.dtype, b=self.dtype, acc=self.dtype,
        )  # fmt: skip
        self.plan = self._plan()

    def _plan(self) -> Plan:
        """A chunk has a block of rows and columns of all products, so many that M stays in the second-level cache and
        that there are chunks for all threads; tiles of the reduction so many that V's panel stays in the first."""
        p = plan_contraction(self.contraction, self.machine)
        widths, heights = -(-self.ci // p.panel), -(-self.co // p.width)
        size, chosen = self.dtype.nbytes, (float("inf"), 1, 1)
        for panels in {-(-widths // n) for n in range(1, widths + 1)}:
            for tiles in {-(-heights // n) for n in range(1, heights + 1)}:
                across, down = -(-widths // panels), -(-heights // tiles)
                held = _PRODUCTS * panels * p.panel * tiles * p.width * size
                if held > 0.6 * self.machine.l2 and (panels, tiles) != (1, 1):
                    continue
                idle = -(-across * down // self.machine.threads) * self.machine.threads / (across * down)
                streams = self.count * (self.row * across + self.width * down)
                # a multiply-add for each element of a tile's row and column, and what is read again
                cost = idle * (self.count * self.ci * self.co / (2 * self.lanes) + streams / self.lanes * 4)
                chosen = min(chosen, (cost, panels, tiles))
        _, panels, tiles = chosen
        block = min(self.co, tiles * p.width)
        p = replace(
            p, row_run=1, row_block=block, panels=panels, batch_run=_PRODUCTS, prefetch=0, ahead=0, k_block=0,
            panel_at=-1, rows_at=-1, scratch_bytes=0,
        )  # fmt: skip
        cuts = (n for n in range(2, self.count + 1) if self.count % n == 0 and self.count // n % p.unroll == 0)
        small = next((n for n in cuts if self.count // n * p.panel * size <= self.machine.l1 / 2), 1)
        if tiles == 1 or small == 1 or self.count * p.panel * size <= self.machine.l1 / 2:
            return p
        return replace(p, k_block=self.count // small, scratch_bytes=tiles_bytes(self.contraction, p, tiles))

    def lower(self) -> Lowered:
        tiles = _PRODUCTS * self.count * self.dtype.nbytes
        of_g = self._transform("u", self.g_at, self.g, self.co, _T.g, self._row_place, Arg("temp", 0))
        of_x = self._transform("v", self.x_at, self.x, self.ci, _T.bt, self._panel_place, Arg("temp", 1))
        return Lowered((of_g, of_x, self._multiply()), (tiles * self.row, tiles * self.width))

    # Tiles

    def _row_place(self, tile: Expr, channel: Expr) -> tuple[Expr, int]:
        """Where a tile's channel lies in U's first product, and how far from there in the next."""
        return k.add(k.mul(tile, integer(self.row)), channel), self.count * self.row

    def _panel_place(self, tile: Expr, channel: Expr) -> tuple[Expr, int]:
        """The same in V, which lies in panels."""
        panel = integer(self.plan.panel)
        begin = k.mul(k.binary("div", channel, panel), panel)
        width = k.binary("min", panel, k.sub(integer(self.width), begin))
        row = k.add(k.mul(begin, integer(self.count)), k.mul(tile, width))
        return k.add(row, k.sub(channel, begin)), self.count * self.width

    def _transform(self, hint: str, at: int, layout: Layout, channels: int, matrix: Matrix, place, to: Arg) -> Step:
        """The step that transforms all tiles of an operand, `size` lines by `size` columns of it each."""
        size, alpha = len(matrix[0]), _T.alpha
        cost = -(-channels // self.lanes) * _PRODUCTS * CYCLES_PER_VECTOR
        per = max(1, min(int(_CHUNK_CYCLES / cost), -(-self.count // (2 * self.machine.threads))))
        source, target = self.operands.ins[at], Buffer(hint, self.dtype, writable=True)
        image, down, along, _ = (dim_expr(s) for s in layout.strides)
        chunk, top = k.var("chunk"), Block()
        low = top.let(k.mul(chunk, integer(per)), "t")
        high = top.let(k.binary("min", k.add(low, integer(per)), integer(self.count)), "t")

        def tile(block: Block, i: Expr) -> None:
            where = self.tiling.place(block, ZERO, i, 1)
            y, x = where.at
            start = k.add(k.mul(where.slice[0], image), k.add(k.mul(y, down), k.mul(x, along)))
            start = block.let(k.add(start, dim_expr(layout.offset)), "s")

            def vector(b: Block, c: Expr, mask: Expr | None) -> None:
                channel = ix.first_lane(c)
                half = b.alloc("half", self.dtype, alpha * (alpha + 1) * self.lanes, stack=True)

                def columns(z: Block, j: Expr) -> None:
                    base = z.let(k.add(k.add(start, k.mul(j, along)), channel), "x")
                    lines = [k.load(source, k.add(base, k.mul(integer(n), down)), c.lanes, mask) for n in range(size)]
                    if size == _PLACES:
                        lines = [self._uncounted(where, integer(n), j, v) for n, v in enumerate(lines)]
                    for n, v in enumerate(apply(z, matrix, [z.let(v, "d") for v in lines])):
                        z.store(half, self._half(integer(n), j), v)

                def rows(z: Block, n: Expr) -> None:
                    values = [z.let(k.load(half, self._half(n, integer(j)), c.lanes), "h") for j in range(size)]
                    first, step = place(i, channel)
                    first = z.let(k.add(first, k.mul(n, integer(alpha * step))), "e")
                    for j, v in enumerate(apply(z, matrix, values)):
                        z.store(target, k.add(first, integer(j * step)), v, mask)

                b.loop("j", 0, size, 1, columns)
                b.loop("r", 0, alpha, 1, rows)

            vector_loop(block, ZERO, channels, self.lanes, self.machine, vector)

        top.loop("i", low, high, 1, tile)
        kernel = Kernel("winograd_tiles", (source, target), (), chunk, integer(-(-self.count // per)), top.body)
        return Step(kernel, (Arg("in", at), to))

    @staticmethod
    def _uncounted(place: Place, line: Expr, column: Expr, value: Expr) -> Expr:
        """0 for what a tile has in common with those before it."""
        for at, begin, n in zip(place.at, place.stores, (line, column), strict=True):
            if at is not begin:
                own = k.binary("ge", k.add(at, n), begin)
                value = k.select(k.splat(own, value.lanes), value, k.lit(0.0, value.dtype, value.lanes))
        return value

    def _half(self, row: Expr, column: Expr) -> Expr:
        """Where a tile that is transformed in one dimension keeps a vector."""
        return ix.linear((row, column), ((_T.alpha + 1) * self.lanes, self.lanes))

    # Products

    def _multiply(self) -> Step:
        p, chunk, top = self.plan, k.var("chunk"), Block()
        wide, high = min(p.panels * p.panel, self.width), int(p.row_block)
        across, down = -(-self.ci // wide), -(-self.co // high)
        blocks = [top.let(e, "c") for e in ix.delinearize(chunk, (across, down), top.multiples)]
        column, row = (top.let(k.mul(b, integer(n)), "n") for b, n in zip(blocks, (wide, high), strict=True))
        m_at = -(-p.scratch_bytes // LINE) * LINE
        entries = _PRODUCTS * wide * high
        m = top.alloc("m", self.dtype, entries, scratch=m_at)

        def place(e: Expr, i: Expr, j: Expr) -> Expr:
            return ix.linear((e, k.sub(i, row), k.sub(j, column)), (high * wide, wide, 1))

        def write(b: Block, index: Index, acc: Expr, mask: Expr | None) -> None:
            e, i, j = index
            b.store(m, place(e, i, ix.first_lane(j)), acc, mask)

        u, v = Buffer("u", self.dtype), Buffer("v", self.dtype)
        chunks = emit_macro_kernel(top, chunk, self.contraction, p, Operand(u), Operand(v), write)
        last_row = k.binary("min", k.add(row, integer(high)), integer(self.co))
        last_column = top.let(k.binary("min", k.add(column, integer(wide)), integer(self.ci)), "n")

        def line(b: Block, i: Expr) -> None:
            def vector(z: Block, j: Expr, mask: Expr | None) -> None:
                self._output(z, lambda e: k.load(m, place(e, i, ix.first_lane(j)), j.lanes), i, j, mask)

            vector_loop(b, column, last_column, self.lanes, self.machine, vector, multiple=self.lanes)

        top.loop("i", row, top.let(last_row, "n"), 1, line)
        params = [*zip(self.operands.params, self.operands.args, strict=True), (u, Arg("temp", 0)), (v, Arg("temp", 1))]
        scratch = m_at + entries * self.dtype.nbytes
        kernel = Kernel("winograd_gradient", tuple(b for b, _ in params), (), chunk, chunks, top.body, scratch)
        return Step(kernel, tuple(a for _, a in params))

    def _output(self, block: Block, load, row: Expr, column: Expr, mask: Expr | None) -> None:
        """The taps of an output channel and a vector of input channels."""
        alpha, lanes = _T.alpha, column.lanes
        half = block.alloc("half", self.dtype, alpha * (alpha + 1) * self.lanes, stack=True)
        taps = block.alloc("taps", self.dtype, _R * _R * self.lanes, stack=True)

        def at(tap: Expr) -> Expr:
            return k.mul(tap, integer(self.lanes))

        def down(b: Block, j: Expr) -> None:
            products = [b.let(load(k.add(integer(r * alpha), j)), "m") for r in range(alpha)]
            for r, value in enumerate(apply(b, _T.at, products)):
                b.store(half, self._half(integer(r), j), value)

        block.loop("j", 0, alpha, 1, down)
        found: list[Expr] = []
        for r in range(_R):
            line = [block.let(k.load(half, self._half(integer(r), integer(j)), lanes), "h") for j in range(alpha)]
            found += apply(block, _T.at, line)
        zero = k.lit(0.0, self.dtype, lanes)
        none = k.mul(found[0], zero)
        for i, value in enumerate(found):
            block.store(taps, at(integer(i)), value)
            none = block.let(k.fma(value, zero, none), "z")  # NaN of what is not finite
        wrong = k.binary("ne", none, none)
        if mask is not None:
            wrong = k.binary("and", wrong, mask)
        wrong = k.reduce("or", wrong) if lanes > 1 else wrong
        block.when(wrong, lambda b: self._definition(b, taps, row, column, mask))
        store = self._store_vectors if self._vectors_lie() else self._store_channels
        store(block, taps, row, column, mask)

    def _vectors_lie(self) -> bool:
        """Whether the input channels of a result lie side by side."""
        root = self.body.outputs[0]
        return len(self.body.outputs) == 1 and root is self.anchor and self.outs[0].strides[1] == 1

    def _store_vectors(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        for i in range(_R * _R):
            value = block.let(k.load(taps, integer(i * self.lanes), column.lanes), "y")
            self._store(block, value, row, column, integer(i // _R), integer(i % _R), mask)

    def _store_channels(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        """One channel after the other: the taps of one lie side by side."""
        first = ix.first_lane(column)
        count: Expr = integer(column.lanes)
        if mask is not None:
            count = block.let(k.binary("min", count, k.sub(integer(self.ci), first)), "n")

        def channel(b: Block, lane: Expr) -> None:
            for i in range(_R * _R):
                value = b.let(k.load(taps, k.add(integer(i * self.lanes), lane)), "y")
                self._store(b, value, row, k.add(first, lane), integer(i // _R), integer(i % _R), None)

        block.loop("l", 0, count, 1, channel)

    def _store(self, block: Block, value: Expr, o: Expr, i: Expr, y: Expr, x: Expr, mask: Expr | None) -> None:
        bind_result(self.em, block, self.anchor, value)
        index = result_index(block, self.body.outputs[0], self.anchor, (o, i, y, x))
        store_results(self.em, block, self.body, self.operands.outs, self.outs, index, mask)

    def _definition(self, block: Block, taps: Buffer, row: Expr, column: Expr, mask: Expr | None) -> None:
        """The same by the definition: the transforms make NaN of what lies beside an infinity, or overflow."""
        x, g = self.operands.ins[self.x_at], self.operands.ins[self.g_at]

        def tap(b: Block, i: Expr, j: Expr) -> None:
            total = b.alloc("acc", self.dtype, 1, lanes=column.lanes)
            b.store(total, ZERO, k.lit(0.0, self.dtype, column.lanes))

            def term(z: Block, n: Expr, p: Expr, q: Expr) -> None:
                here = ix.linear((n, p, q, row), self.g.strides, self.g.offset)
                there = (n, k.add(p, i), k.add(q, j), ix.first_lane(column))
                seen = k.load(x, ix.linear(there, self.x.strides, self.x.offset), column.lanes, mask)
                factor = k.load(g, here)
                factor = k.splat(factor, column.lanes) if column.lanes > 1 else factor
                z.store(total, ZERO, k.fma(seen, factor, k.load(total, ZERO)))

            def line(z: Block, n: Expr, p: Expr) -> None:
                z.loop("q", 0, self.w, 1, lambda y, q: term(y, n, p, q))

            def picture(z: Block, n: Expr) -> None:
                z.loop("p", 0, self.h, 1, lambda y, p: line(y, n, p))

            b.loop("n", 0, self.images, 1, picture)
            at = k.mul(k.add(k.mul(i, integer(_R)), j), integer(self.lanes))
            b.store(taps, at, k.load(total, ZERO))

        block.loop("i", 0, _R, 1, lambda b, i: b.loop("j", 0, _R, 1, lambda z, j: tap(z, i, j)))


__all__ = ["has_winograd_gradient", "lower_kernel_gradient"]
