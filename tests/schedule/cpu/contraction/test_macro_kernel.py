"""The contraction generator against numpy: matmul, convolution, groups, edges, dynamic extents, narrow machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike, likely_sizes, symbol, symbols_of
from ingot.ir.kernel import Buffer, Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.types import DType, bf16, f16, f32, f64
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.cost_model import plan_contraction
from ingot.schedule.cpu.contraction.macro_kernel import emit_macro_kernel
from ingot.schedule.cpu.contraction.operands import Operand
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.contraction.plan import Plan, scattered_run
from ingot.schedule.cpu.machine import AVX2, AVX512, Machine
from ingot.schedule.index import linear
from ingot.targets.cpu.workers import host_features
from tests.targets.cpu.native import Native, place

MACHINES = [AVX512, AVX2] if "avx512f" in host_features() else [AVX2]


def build(
    c: Contraction, machine: Machine, out_strides: tuple[DimLike, ...], bias: bool = False, plan: Plan | None = None
) -> tuple[Kernel, Plan]:
    """A kernel that stores relu(acc + bias[last column axis]) (or acc) with `out_strides` per batch, row and column
    axis.
    """
    plan = plan or plan_contraction(c, machine)
    a, b = Buffer("a", c.a), Buffer("b", c.b)
    result, extra = Buffer("out", c.acc, writable=True), Buffer("bias", c.acc)
    top, chunk = Block(), k.var("chunk")

    def write(block: Block, index: tuple[k.Expr, ...], acc: k.Expr, mask: k.Expr | None) -> None:
        at = linear(index, out_strides)  # type: ignore[arg-type]
        first = at.base if isinstance(at, k.Ramp) else at
        if bias:
            last = index[-1].base if isinstance(index[-1], k.Ramp) else index[-1]
            acc = k.binary("max", k.add(acc, k.load(extra, last, acc.lanes, mask)), k.lit(0.0, c.acc, acc.lanes))
        if isinstance(at, k.Ramp) and at.step != 1:
            block.store(result, at, acc, mask)
        else:
            block.store(result, first, acc, mask)

    chunks = emit_macro_kernel(top, chunk, c, plan, Operand(a), Operand(b), write)
    dims = [x.extent for g in (c.batch, c.rows, c.cols, c.reduce) for x in g]
    dims += [s for g in (c.batch, c.rows, c.cols, c.reduce) for x in g for s in (x.a, x.b)]
    dims += out_strides
    names = sorted(set().union(*(symbols_of(d) for d in dims)))
    params = (a, b, result, extra) if bias else (a, b, result)
    return Kernel("k", params, tuple(k.var(n) for n in names), chunk, chunks, top.body), plan


def count(e: k.Expr, dims: dict[str, int]) -> int:
    match e:
        case k.Lit():
            return int(e.value)
        case k.Var():
            return dims[e.name]
        case k.Binary():
            x, y = count(e.a, dims), count(e.b, dims)
            return {
                "add": x + y,
                "sub": x - y,
                "mul": x * y,
                "div": x // max(y, 1),
                "rem": x % max(y, 1),
                "min": min(x, y),
            }[e.fn]
    raise AssertionError(e)


def run(kernel: Kernel, arrays: list[np.ndarray], dims: dict[str, int] | None = None) -> None:
    dims = dims or {}
    Native(kernel)(arrays, [dims[d.name] for d in kernel.dims], count(kernel.chunks, dims))


def random(*shape: int, dtype: DType = f32) -> np.ndarray:
    return place(np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype.numpy))


def matmul(m: object, n: object, kk: object, dtype: DType = f32, packed: bool = True) -> Contraction:
    return Contraction(
        (), (Axis(m, kk),), (Axis(n, 0, 1),), (Axis(kk, 1, n),), dtype, dtype, dtype, packed  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 100, 37), (5, 64, 16), (13, 33, 8), (128, 96, 40), (50, 200, 31), (197, 17, 64)]
)
def test_matmul(shape: tuple[int, int, int], machine: Machine) -> None:
    m, n, kk = shape
    c = matmul(m, n, kk)
    kernel, plan = build(c, machine, (n, 1), bias=True)
    a, b, bias, result = random(m, kk), random(kk, n), random(n), place(np.full((m, n), np.nan, np.float32))
    run(kernel, [a, place(pack_panels(1, c, plan).apply(b)), result, bias])
    np.testing.assert_allclose(result, np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("packed", [True, False])
def test_f64_and_run_time_b(packed: bool, machine: Machine) -> None:
    m, n, kk = 37, 45, 20
    c = matmul(m, n, kk, f64, packed)
    kernel, plan = build(c, machine, (n, 1))
    a, b, result = random(m, kk, dtype=f64), random(kk, n, dtype=f64), place(np.full((m, n), np.nan))
    run(kernel, [a, place(pack_panels(1, c, plan).apply(b)) if packed else b, result])
    np.testing.assert_allclose(result, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 3, 5), (64, 130, 64), (131, 16, 9)])
def test_dynamic_extents(sizes: tuple[int, int, int], machine: Machine) -> None:
    """Rows, columns and K known at run time, B read in place, with a batch."""
    m, n, kk = symbol("m"), symbol("n"), symbol("kk")
    c = Contraction(
        (Axis(3, m * kk, kk * n),), (Axis(m, kk),), (Axis(n, 0, 1),), (Axis(kk, 1, n),), f32, f32, f32, False
    )
    kernel, _ = build(c, machine, (m * n, n, 1))
    x, y, z = sizes
    a, b, result = random(3, x, z), random(3, z, y), place(np.full((3, x, y), np.nan, np.float32))
    run(kernel, [a, b, result], {"m": x, "n": y, "kk": z})
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)


def test_dynamic_rows_packed_b() -> None:
    m = symbol("m")
    c = matmul(m, 200, 48)
    kernel, plan = build(c, MACHINES[0], (200, 1), bias=True)
    b, bias = random(48, 200), random(200)
    packed = place(pack_panels(1, c, plan).apply(b))
    native = Native(kernel)
    for rows in (1, 2, 7, 29, 300):
        a, result = random(rows, 48), place(np.full((rows, 200), np.nan, np.float32))
        native([a, packed, result, bias], [rows], count(kernel.chunks, {"m": rows}))
        np.testing.assert_allclose(result, np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-4)


CONVS = [  # n, h, w, ci, co, kernel, stride, groups
    (1, 9, 9, 3, 16, 7, 2, 1), (2, 14, 14, 16, 24, 3, 1, 1), (1, 15, 15, 8, 40, 3, 2, 1), (1, 7, 7, 32, 64, 1, 1, 1),
    (2, 12, 10, 24, 48, 3, 1, 3), (1, 9, 30, 5, 100, 3, 1, 1), (2, 13, 21, 48, 48, 3, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("conv", CONVS)
def test_convolution(conv: tuple[int, ...], machine: Machine) -> None:
    """Implicit GEMM over an NHWC input that carries its padding; weights [kh, kw, ci / groups, co]."""
    n, h, w, ci, co, s, stride, groups = conv
    c, oh, ow = convolution(conv)
    x, weights, bias = random(n, h, w, ci), random(s, s, ci // groups, co), random(co)
    kernel, plan = build(c, machine, (co // groups, oh * ow * co, ow * co, co, 1))
    result = place(np.full((n, oh, ow, co), np.nan, np.float32))
    run(kernel, [x, place(pack_panels(1, c, plan).apply(weights)), result])
    np.testing.assert_allclose(result, reference(x, weights, stride, groups), rtol=1e-4, atol=1e-4)
    del bias


def convolution(conv: tuple[int, ...]) -> tuple[Contraction, int, int]:
    n, h, w, ci, co, s, stride, groups = conv
    oh, ow = (h - s) // stride + 1, (w - s) // stride + 1
    gi, go = ci // groups, co // groups
    c = Contraction(
        batch=(Axis(groups, gi, go),),
        rows=(Axis(n, h * w * ci), Axis(oh, stride * w * ci), Axis(ow, stride * ci)),
        cols=(Axis(go, 0, 1),),
        reduce=(Axis(s, w * ci, s * gi * co), Axis(s, ci, gi * co), Axis(gi, 1, co)),
        a=f32, b=f32, acc=f32,
    )  # fmt: skip
    return c, oh, ow


def reference(x: np.ndarray, weights: np.ndarray, stride: int, groups: int) -> np.ndarray:
    s, _, gi, co = weights.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (s, s), axis=(1, 2))[:, ::stride, ::stride]
    go = co // groups
    parts = [
        np.einsum("nhwcij,ijco->nhwo", windows[:, :, :, g * gi : (g + 1) * gi], weights[..., g * go : (g + 1) * go])
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=-1)


def test_pieces_of_places() -> None:
    """Grouped convolutions prefetch; where a group has the whole place, or more than a line of it, hardware does."""
    grouped, dense, wide = (convolution(conv)[0] for conv in (CONVS[-1], CONVS[1], (1, 9, 9, 64, 64, 3, 1, 2)))
    assert (scattered_run(grouped), scattered_run(dense), scattered_run(wide), scattered_run(matmul(9, 9, 9))) == (
        16,
        0,
        0,
        0,
    )
    kernel, _ = build(grouped, AVX512, (16, 6 * 10 * 48, 10 * 48, 48, 1))
    assert "prefetch a[" in show_kernel(kernel)


@pytest.mark.parametrize("tile", [(2, 7, 2), (3, 7, 1), (1, 5, 3), (1, 14, 2), (1, 1, 1)])
def test_every_tile_shape_is_exact(tile: tuple[int, int, int]) -> None:
    """Left-over lines, rows and columns, and chunks that do not divide the output."""
    conv = (1, 7, 7, 16, 70, 1, 1, 1)
    c, oh, ow = convolution(conv)
    lines, width, vectors = tile
    plan = replace(
        plan_contraction(c, AVX512), lines=lines, width=width, vectors=vectors, chunk_line_groups=2, chunk_panels=2
    )
    plan = replace(plan, chunk_rows=ow if lines > 1 else min(width, ow))
    x, weights = random(1, 7, 7, 16), random(1, 1, 16, 70)
    kernel, _ = build(c, AVX512, (70, oh * ow * 70, ow * 70, 70, 1), plan=plan)
    result = place(np.full((1, oh, ow, 70), np.nan, np.float32))
    run(kernel, [x, place(pack_panels(1, c, plan).apply(weights)), result])
    np.testing.assert_allclose(result, reference(x, weights, 1, 1), rtol=1e-4, atol=1e-4)


def test_transposed_output() -> None:
    m, n, kk = 20, 24, 8
    c = matmul(m, n, kk)
    kernel, plan = build(c, MACHINES[0], (1, m))
    a, b, result = random(m, kk), random(kk, n), place(np.full((n, m), np.nan, np.float32))
    run(kernel, [a, place(pack_panels(1, c, plan).apply(b)), result])
    np.testing.assert_allclose(result, (a @ b).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [45, "m"])
def test_reduction_in_blocks(rows: object) -> None:
    """Partial sums in scratch, with left-over rows and columns; several row blocks and column panels."""
    m = symbol("m") if rows == "m" else rows
    c = matmul(m, 70, 96)
    plan = replace(
        plan_contraction(c, AVX512), width=6, vectors=2, chunk_rows=24, chunk_panels=2, unroll=4, k_block=24,
        prefetch_lines=2, scratch_bytes=24 * 32 * 4,
    )  # fmt: skip
    kernel, _ = build(c, AVX512, (70, 1), plan=plan)
    kernel = replace(kernel, scratch_bytes=plan.scratch_bytes)
    a, b, result = random(45, 96), random(96, 70), place(np.full((45, 70), np.nan, np.float32))
    run(kernel, [a, place(pack_panels(1, c, plan).apply(b)), result], {"m": 45})
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)


def test_convolution_in_blocks_of_kernel_rows() -> None:
    conv = (1, 9, 9, 16, 40, 3, 1, 1)
    c, oh, ow = convolution(conv)
    plan = replace(
        plan_contraction(c, AVX512), lines=1, width=7, vectors=2, k_block=1, chunk_line_groups=3, chunk_rows=ow
    )
    plan = replace(plan, scratch_bytes=3 * 7 * 32 * 4)
    x, weights = random(1, 9, 9, 16), random(3, 3, 16, 40)
    kernel, _ = build(c, AVX512, (40, oh * ow * 40, ow * 40, 40, 1), plan=plan)
    result = place(np.full((1, oh, ow, 40), np.nan, np.float32))
    run(replace(kernel, scratch_bytes=plan.scratch_bytes), [x, place(pack_panels(1, c, plan).apply(weights)), result])
    np.testing.assert_allclose(result, reference(x, weights, 1, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [45, 16, "n"])
@pytest.mark.parametrize("kk", [40, "kk"])
def test_transposed_run_time_b(n: int | str, kk: int | str, machine: Machine) -> None:
    """q @ k.T: panels transposed in scratch where K is known, gathered otherwise."""
    columns, depth = (symbol(size) if isinstance(size, str) else size for size in (n, kk))
    c = Contraction(
        (Axis(2, 21 * depth, columns * depth),), (Axis(21, depth),), (Axis(columns, 0, depth),), (Axis(depth, 1, 1),),
        f32, f32, f32, False,
    )  # fmt: skip
    kernel, plan = build(c, machine, (21 * columns, columns, 1))
    assert (plan.panel_offset >= 0) == isinstance(kk, int)
    x, y = 45 if n == "n" else int(str(n)), 40
    a, b, result = random(2, 21, y), random(2, x, y), place(np.full((2, 21, x), np.nan, np.float32))
    run(replace(kernel, scratch_bytes=plan.scratch_bytes), [a, b, result], {"n": x, "kk": y})
    np.testing.assert_allclose(result, a @ b.transpose(0, 2, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_half_operands_accumulate_in_f32(dtype: DType) -> None:
    c = replace(matmul(19, 50, 24), a=dtype, b=dtype)
    kernel, plan = build(c, MACHINES[0], (50, 1))
    a, b = random(19, 24, dtype=dtype), random(24, 50, dtype=dtype)
    result = place(np.full((19, 50), np.nan, np.float32))
    run(kernel, [a, place(pack_panels(1, c, plan).apply(b)), result])
    np.testing.assert_allclose(result, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)


def test_rows_of_unknown_number_share_a_panel() -> None:
    """Likely is a single row; but a batch of many must not read B for each of its rows."""
    with likely_sizes({"m": 1}):
        c = matmul(symbol("m"), 256, 256)
        plan = plan_contraction(c, AVX512)
        assert plan.width >= 4
        assert isinstance(plan.chunk_rows, int)
        assert plan.chunk_rows >= 32
        kernel, _ = build(c, AVX512, (256, 1), plan=plan)
    for m in (1, 37):
        a, b, result = random(m, 256), random(256, 256), place(np.full((m, 256), np.nan, np.float32))
        run(kernel, [a, place(pack_panels(1, c, plan).apply(b)), result], {"m": m})
        np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)
