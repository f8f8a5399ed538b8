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
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.schedule.index import ZERO, integer
from ingot.support.dataclass import dataclass
from ingot.support.native import Features

_COPY_BYTES = 512 << 20  # ten times the second-level cache of any current GPU
_PROGRAM_ELEMENTS = 4096  # copied by a program
PROGRAM_BYTES = 4 * _PROGRAM_ELEMENTS  # bytes
_REPEATS = 5
TENSOR_CORES = (f16, bf16, i8)


@dataclass(frozen=True)
class Peak:
    """Products of one pair of tiles over and over: rows, columns and depth of these, programs, iterations, warps."""

    rows: int
    columns: int
    depth: int
    programs: int
    iterations: int
    warps: int

    @property
    def flops(self) -> int:
        return 2 * prod((self.rows, self.columns, self.depth, self.programs, self.iterations))


def measure(features: Features, dtype: DType, tf32: bool | None = None) -> Rates:
    """dtype: of the operands whose products are counted; what tensor cores have none of is multiplied in f32. tf32: see
    `ops.DotGeneral`."""
    dtype = dtype if dtype in TENSOR_CORES else f32
    target = target_of(features)
    machine = target.machine(features, 1, {})
    processors, is_cut = machine.processors, bool(tf32) and dtype == f32 and machine.has_tf32
    multiplied = Multiplied((dtype, dtype), is_cut, dtype == f32 and tf32 is None and machine.gains_by_bf16x6)
    peak = Peak(128, 256, 32 if is_cut else 64, processors, 4000, 8)
    if multiplied.bf16x6:
        peak = Peak(128, 128, 32, processors, 1500, 8)
    elif not multiplied.by_tensor_cores:
        peak = Peak(64, 64, 16, 4 * processors, 2000, 4)
    assembler = target.assembler(features)
    chunks = _COPY_BYTES // 2 // 4 // _PROGRAM_ELEMENTS
    for kernel in (peak_kernel(peak, multiplied), copy_kernel(chunks)):
        assembler.add(kernel)
    steps = (
        rt.Step("peak", ((0, 0), (1, 0), (2, 0)), (), peak.programs, device=target.name),
        rt.Step("copy", ((3, 0), (4, 0)), (), chunks, device=target.name),
        rt.Step("copy", ((4, 0), (3, 0)), (), chunks, device=target.name),
    )
    sums = peak.rows * peak.columns
    shapes = (peak.rows, peak.depth), (peak.depth, peak.columns)
    buffers = (
        *(rt.Buffer(i, "input", prod(s) * dtype.nbytes, index=i, device=target.name) for i, s in enumerate(shapes)),
        rt.Buffer(2, "output", 4 * sums, index=0, device=target.name),
        *(rt.Buffer(i, "arena", _COPY_BYTES // 2, 0, len(steps) - 1, device=target.name) for i in (3, 4)),
    )
    program = rt.Program(
        symbols=(),
        inputs=tuple(rt.TensorSpec(name, dtype.name, s) for name, s in zip("ab", shapes, strict=True)),
        outputs=(rt.TensorSpec("sums", _sums(dtype).name, (sums,)),),
        buffers=buffers,
        steps=steps,
        code={target.name: assembler.finish()},
        weights=np.empty(0, np.uint8),
    )
    rng = np.random.default_rng(0)  # products of zeros are faster
    operands = [(rng.standard_normal(s) * (20 if dtype == i8 else 1e-3)).astype(dtype.numpy) for s in shapes]
    model = CompiledModel(program)
    times = np.array([[seconds for _, seconds in model.profile(*operands)] for _ in range(_REPEATS)])
    multiplied, copied = times[:, 0].min(), times[1:, 1:].min()
    return Rates(driver().name, 0, peak.flops / multiplied / 1e9, _COPY_BYTES / copied / 1e9, _COPY_BYTES)


def _sums(dtype: DType) -> DType:
    return i32 if dtype == i8 else f32


def peak_kernel(peak: Peak, multiplied: Multiplied) -> Kernel:
    """sums = sums + a . b, as often as there are iterations; all programs but the first keep theirs."""
    assert multiplied.dtypes is not None
    dtype = multiplied.dtypes[0]
    chunk, top, sum_dtype = k.var("chunk"), Block(), _sums(dtype)
    a, b = Buffer("a", dtype, align=ALIGNMENT_BYTES), Buffer("b", dtype, align=ALIGNMENT_BYTES)
    sums = Buffer("out", sum_dtype, writable=True, align=ALIGNMENT_BYTES)
    tile = peak.rows, peak.columns

    def offsets(rows: int, columns: int) -> k.Expr:
        return k.add(*k.broadcast(k.mul(k.lane_indices(rows, 0), integer(columns)), k.lane_indices(columns, 1)))

    x = top.let(k.gather(a, offsets(peak.rows, peak.depth)))
    y = top.let(k.gather(b, offsets(peak.depth, peak.columns)))
    acc = top.alloc("acc", sum_dtype, 1, lanes=prod(tile), tile=tile)
    top.store(acc, ZERO, Lit(sum_dtype, prod(tile), 0.0 if sum_dtype.is_float else 0, tile=tile))

    def multiply(body: Block, turn: k.Expr) -> None:
        body.store(acc, ZERO, multiplied.product(body, x, y, k.load(acc, ZERO)))

    top.loop("t", 0, peak.iterations, 1, multiply)
    first = k.spread(k.binary("eq", chunk, ZERO), tile)
    top.store(sums, offsets(*tile), k.load(acc, ZERO), first)
    hints = (("warps", peak.warps), ("stages", 1), ("narrow", 1))
    return Kernel("peak", (a, b, sums), (), chunk, integer(peak.programs), top.body, hints=hints)


def copy_kernel(chunks: int) -> Kernel:
    """Neighbouring elements of one array to another."""
    chunk, top = k.var("chunk"), Block()
    x, y = Buffer("x", f32, align=ALIGNMENT_BYTES), Buffer("y", f32, writable=True, align=ALIGNMENT_BYTES)
    index = top.let(k.add(k.mul(chunk, integer(_PROGRAM_ELEMENTS)), k.lane_indices(_PROGRAM_ELEMENTS, 1)))
    top.store(y, index, k.gather(x, index))
    return Kernel(
        "copy", (x, y), (), chunk, integer(chunks), top.body, hints=(("warps", 8), ("stages", 1), ("narrow", 1))
    )


__all__ = ["PROGRAM_BYTES", "copy_kernel", "measure", "peak_kernel"]
