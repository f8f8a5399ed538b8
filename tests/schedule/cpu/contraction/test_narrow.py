"""Contractions with narrow operands: bf16 and f16, summed in f32, and bytes, summed in i32."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ingot.ir.dims import DimLike, symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import DType, bf16, f16, f32, i8, i32, u8
from ingot.schedule.axes import Axis, Contraction
from ingot.schedule.cpu.contraction.cost_model import plan_contraction
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.machine import AVX2, AVX512, Machine, machine_of
from ingot.support.native import Features
from ingot.targets.cpu.workers import host_features
from tests.schedule.cpu.contraction.test_macro_kernel import CONVS, build, convolution, count, matmul, random, reference
from tests.targets.cpu.native import Native, place, without

HOST = host_features()
# (what the schedule knows of the machine, what the code is for)
TARGETS: list[tuple[Machine, Features]] = [
    (machine_of(HOST.arch, HOST.features), HOST),
    (machine_of(HOST.arch, without("avx512bf16").features), without("avx512bf16")),
    (AVX2, without(*(f for f in HOST.features if f.startswith("avx512")))),
]
TYPES = [(bf16, bf16), (f32, bf16), (f32, f16), (f16, f16), (bf16, f16)]


def run(
    c: Contraction,
    target: tuple[Machine, Features],
    a: np.ndarray,
    b: np.ndarray,
    result: np.ndarray,
    strides: tuple[DimLike, ...],
    dims: dict[str, int] | None = None,
) -> None:
    machine, features = target
    kernel, plan = build(c, machine, strides)
    kernel = replace(kernel, scratch_bytes=plan.scratch_bytes)
    verify_kernel(kernel)
    packed = place(pack_panels(1, c, plan).apply(b)) if c.packed else place(b)
    sizes = dims or {}
    values = [sizes[v.name] for v in kernel.dims]
    Native(kernel, features)([place(a), packed, result], values, count(kernel.chunks, sizes))


def near(got: np.ndarray, a: np.ndarray, b: np.ndarray, terms: int) -> None:
    """Against sums in f64 of the operands as stored: each of `terms` f32 additions rounds what is there so far."""
    want = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) * terms * 2.0**-24
    assert np.all(np.abs(got - want) <= bound + 1e-30)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("shape", [(5, 9, 7), (1, 200, 33), (20, 17, 1), (33, 100, 2050), (64, 96, 768), (3, 40, 2)])
def test_matmul(shape: tuple[int, int, int], types: tuple[DType, DType], target: tuple[Machine, Features]) -> None:
    m, n, kk = shape
    c = replace(matmul(m, n, kk), a=types[0], b=types[1])
    a, b = random(m, kk, dtype=types[0]), random(kk, n, dtype=types[1])
    result = place(np.full((m, n), np.nan, np.float32))
    run(c, target, a, b, result, (n, 1))
    near(result, a, b, kk + 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("conv", CONVS)
def test_convolution(conv: tuple[int, ...], types: tuple[DType, DType], target: tuple[Machine, Features]) -> None:
    """Odd channels, and rows of the window that are runs of odd length."""
    n, h, w, ci, co, s, stride, groups = conv
    c, oh, ow = convolution(conv)
    c = replace(c, a=types[0], b=types[1])
    x, weights = random(n, h, w, ci, dtype=types[0]), random(s, s, ci // groups, co, dtype=types[1])
    result = place(np.full((n, oh, ow, co), np.nan, np.float32))
    run(c, target, x, weights, result, (co // groups, oh * ow * co, ow * co, co, 1))
    want = reference(x.astype(np.float32), weights.astype(np.float32), stride, groups)
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_known_at_run_time(target: tuple[Machine, Features]) -> None:
    c = replace(matmul(symbol("m"), 70, 47), a=bf16, b=bf16)
    for rows in (1, 6, 45):
        a, b = random(rows, 47, dtype=bf16), random(47, 70, dtype=bf16)
        result = place(np.full((rows, 70), np.nan, np.float32))
        run(c, target, a, b, result, (70, 1), {"m": rows})
        near(result, a, b, 48)


@pytest.mark.parametrize("target", TARGETS)
def test_strided_rows_of_a(target: tuple[Machine, Features]) -> None:
    """A's k are not side by side: no pairs."""
    c = Contraction((), (Axis(9, 1),), (Axis(40, 0, 1),), (Axis(21, 9, 40),), bf16, bf16, f32)
    assert c.k_per_lane == 1
    a, b = random(21, 9, dtype=bf16), random(21, 40, dtype=bf16)
    result = place(np.full((9, 40), np.nan, np.float32))
    run(c, target, a, b, result, (40, 1))
    near(result, np.ascontiguousarray(a.T), b, 22)


BYTES: list[tuple[Machine, Features]] = [
    (machine_of(HOST.arch, HOST.features), HOST),
    (machine_of(HOST.arch, without("avx512vnni", "avxvnni").features), without("avx512vnni", "avxvnni")),
    (AVX2, without(*(f for f in HOST.features if f.startswith("avx512")))),
]


def of_bytes(c: Contraction) -> Contraction:
    return replace(c, a=u8, b=i8, acc=i32)


def bytes_of(dtype: DType, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype.numpy)
    return place(np.random.default_rng(sum(shape)).integers(info.min, info.max + 1, shape).astype(dtype.numpy))


@pytest.mark.parametrize("target", BYTES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (5, 9, 7), (1, 200, 33), (20, 17, 2), (33, 100, 2050), (64, 96, 768), (3, 40, 4), (9, 50, 99)]
)
def test_matmul_of_bytes(shape: tuple[int, int, int], target: tuple[Machine, Features]) -> None:
    """Exact, whatever is missing of a whole lane of k."""
    m, n, kk = shape
    c = of_bytes(matmul(m, n, kk))
    assert c.k_per_lane == (4 if kk > 1 else 1)
    a, b = bytes_of(u8, m, kk), bytes_of(i8, kk, n)
    result = place(np.full((m, n), -7, np.int32))
    run(c, target, a, b, result, (n, 1))
    np.testing.assert_array_equal(result, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("target", BYTES)
@pytest.mark.parametrize("conv", CONVS)
def test_convolution_of_bytes(conv: tuple[int, ...], target: tuple[Machine, Features]) -> None:
    n, h, w, ci, co, s, stride, groups = conv
    c, oh, ow = convolution(conv)
    x, weights = bytes_of(u8, n, h, w, ci), bytes_of(i8, s, s, ci // groups, co)
    result = place(np.full((n, oh, ow, co), -7, np.int32))
    run(of_bytes(c), target, x, weights, result, (co // groups, oh * ow * co, ow * co, co, 1))
    np.testing.assert_array_equal(result, reference(x.astype(np.int64), weights.astype(np.int64), stride, groups))


@pytest.mark.parametrize("target", BYTES)
def test_strided_bytes_of_a(target: tuple[Machine, Features]) -> None:
    c = Contraction((), (Axis(9, 1),), (Axis(40, 0, 1),), (Axis(21, 9, 40),), u8, i8, i32)
    assert c.k_per_lane == 1
    a, b = bytes_of(u8, 21, 9), bytes_of(i8, 21, 40)
    result = place(np.full((9, 40), -7, np.int32))
    run(c, target, a, b, result, (40, 1))
    np.testing.assert_array_equal(result, a.astype(np.int64).T @ b.astype(np.int64))


def test_packed_pairs() -> None:
    """[panel][k / 2][columns][2]; what an odd k lacks is zero."""
    c = replace(matmul(4, 3, 5), a=bf16, b=bf16)
    b = np.arange(15, dtype=np.float32).reshape(5, 3).astype(ml_dtypes.bfloat16)
    plan = plan_contraction(c, AVX2)
    packed = pack_panels(1, c, plan).apply(b).astype(np.float32).reshape(3, 8, 2)
    assert packed[:, :3].tolist() == [[[0, 3], [1, 4], [2, 5]], [[6, 9], [7, 10], [8, 11]], [[12, 0], [13, 0], [14, 0]]]
    assert not packed[:, 3:].any()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_infinities_and_nan_pass(special: float) -> None:
    """Also beside the zero that fills up an odd k."""
    for kk in (6, 7):
        a, b = random(4, kk, dtype=bf16), random(kk, 20, dtype=bf16)
        a[1, kk - 1] = b[kk - 1, 3] = special
        c = replace(matmul(4, 20, kk), a=bf16, b=bf16)
        for target in TARGETS:
            result = place(np.zeros((4, 20), np.float32))
            run(c, target, a, b, result, (20, 1))
            with np.errstate(invalid="ignore"):
                want = a.astype(np.float32) @ b.astype(np.float32)
            np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def test_large_values_do_not_overflow_before_the_sum() -> None:
    a = np.full((1, 4), 3e38, np.float32).astype(ml_dtypes.bfloat16)
    b = np.tile(np.array([[0.5], [-0.5], [0.25], [0.25]], np.float32), (1, 16)).astype(ml_dtypes.bfloat16)
    for target in TARGETS:
        result = place(np.zeros((1, 16), np.float32))
        run(replace(matmul(1, 16, 4), a=bf16, b=bf16), target, a, b, result, (16, 1))
        np.testing.assert_allclose(result, float(a[0, 0]) / 2, rtol=1e-6)


def test_the_kernel_reads_pairs() -> None:
    c = replace(matmul(2, 16, 4), a=bf16, b=bf16)
    kernel, _ = build(c, AVX512, (16, 1))
    text = show_kernel(kernel)
    assert "dot(" in text and "bits.u32" in text and ":32]" in text
