"""What a GPU can do right now, by tiny kernels of Ingot's own: products of tiles, and copies of memory."""

from __future__ import annotations

from math import prod

import numpy as np

from ingot.debug.probe import Rates
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, Lit
from ingot.ir.types import DType, bf16, f16, f32, i8, i32
from ingot.pipeline.target import target_of
from ingot.runtime import program as rt
from ingot.runtime.cuda.driver import driver
from ingot.runtime.executor import CompiledModel
from ingot.schedule.block import Block
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass
from ingot.support.native import Features

_COPIED = 512 << 20  # bytes: ten times the second-level cache of any current GPU
_ELEMENTS = 4096  # that a program copies
CHUNK = 4 * _ELEMENTS  # bytes
_REPEATS = 5
TENSOR_CORES = (f16, bf16, i8)


@dataclass(frozen=True)
class Peak:
    """Products of one pair of tiles over and over: rows, columns and depth of these, programs, turns, warps."""

    rows: int
    columns: int
    depth: int
    programs: int
    turns: int
    warps: int

    @property
    def flops(self) -> int:
        return 2 * prod((self.rows, self.columns, self.depth, self.programs, self.turns))


def measure(features: Features, dtype: DType) -> Rates:
    """dtype: of the operands whose products are counted; what tensor cores have none of is multiplied in f32."""
    dtype = dtype if dtype in TENSOR_CORES else f32
    target = target_of(features)
    processors = target.machine(features, 1, {}).processors
    peak = Peak(128, 256, 64, processors, 4000, 8) if dtype != f32 else Peak(64, 64, 16, 4 * processors, 2000, 4)
    assembler = target.assembler(features)
    chunks = _COPIED // 2 // 4 // _ELEMENTS
    for kernel in (peak_kernel(peak, dtype), copy_kernel(chunks)):
        assembler.add(kernel)
    steps = (
        rt.Step("peak", ((0, 0), (1, 0), (2, 0)), (), peak.programs, device=target.name),
        rt.Step("copy", ((3, 0), (4, 0)), (), chunks, device=target.name),
        rt.Step("copy", ((4, 0), (3, 0)), (), chunks, device=target.name),
    )
    sums = peak.rows * peak.columns
    sides = (peak.rows, peak.depth), (peak.depth, peak.columns)
    buffers = (
        *(rt.Buffer(i, "input", prod(s) * dtype.nbytes, index=i, device=target.name) for i, s in enumerate(sides)),
        rt.Buffer(2, "output", 4 * sums, index=0, device=target.name),
        *(rt.Buffer(i, "arena", _COPIED // 2, 0, len(steps) - 1, device=target.name) for i in (3, 4)),
    )
    program = rt.Program(
        symbols=(),
        inputs=tuple(rt.TensorSpec(name, dtype.name, s) for name, s in zip("ab", sides, strict=True)),
        outputs=(rt.TensorSpec("sums", _sums(dtype).name, (sums,)),),
        buffers=buffers,
        steps=steps,
        code={target.name: assembler.finish()},
        weights=np.empty(0, np.uint8),
    )
    rng = np.random.default_rng(0)  # products of zeros are faster
    operands = [(rng.standard_normal(s) * (20 if dtype == i8 else 1e-3)).astype(dtype.numpy) for s in sides]
    model = CompiledModel(program)
    times = np.array([[seconds for _, seconds in model.profile(*operands)] for _ in range(_REPEATS)])
    multiplied, copied = times[:, 0].min(), times[1:, 1:].min()
    return Rates(driver().name, 0, peak.flops / multiplied / 1e9, _COPIED / copied / 1e9, _COPIED)


def _sums(dtype: DType) -> DType:
    return i32 if dtype == i8 else f32


def peak_kernel(peak: Peak, dtype: DType) -> Kernel:
    """sums = sums + a . b, as often as there are turns; all programs but the first keep theirs."""
    chunk, top, wide = k.var("chunk"), Block(), _sums(dtype)
    a, b = Buffer("a", dtype, align=ALIGNMENT_BYTES), Buffer("b", dtype, align=ALIGNMENT_BYTES)
    out = Buffer("out", wide, writable=True, align=ALIGNMENT_BYTES)
    tile = peak.rows, peak.columns

    def places(rows: int, columns: int) -> k.Expr:
        return k.add(*k.broadcast(k.mul(k.lane_indices(rows, 0), integer(columns)), k.lane_indices(columns, 1)))

    x = top.let(k.gather(a, places(peak.rows, peak.depth)))
    y = top.let(k.gather(b, places(peak.depth, peak.columns)))
    acc = top.alloc("acc", wide, 1, lanes=prod(tile), tile=tile)
    top.store(acc, ZERO, Lit(wide, prod(tile), 0.0 if wide.is_float else 0, tile=tile))
    top.loop(
        "t", 0, peak.turns, 1, lambda body, _: body.store(acc, ZERO, k.tile_product(x, y, k.load(acc, ZERO)))
    )  # fmt: skip
    first = k.spread(k.binary("eq", chunk, ZERO), tile)
    top.store(out, places(*tile), k.load(acc, ZERO), first)
    hints = (("warps", peak.warps), ("stages", 1), ("narrow", 1))
    return Kernel("peak", (a, b, out), (), chunk, integer(peak.programs), top.body, hints=hints)


def copy_kernel(chunks: int) -> Kernel:
    """Neighbouring elements of one array to another."""
    chunk, top = k.var("chunk"), Block()
    x, y = Buffer("x", f32, align=ALIGNMENT_BYTES), Buffer("y", f32, writable=True, align=ALIGNMENT_BYTES)
    at = top.let(k.add(k.mul(chunk, integer(_ELEMENTS)), k.lane_indices(_ELEMENTS, 1)))
    top.store(y, at, k.gather(x, at))
    return Kernel(
        "copy", (x, y), (), chunk, integer(chunks), top.body, hints=(("warps", 8), ("stages", 1), ("narrow", 1))
    )


__all__ = ["CHUNK", "copy_kernel", "measure", "peak_kernel"]
